"""Unequal parts of one global batch on real DDP over gloo: the same gradients, every sample once, the same weights."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from stallwise.deflate.door import Ask, Door, doors, folder_of, read_ask, sweep, trusted, withdraw, write_ask
from stallwise.elastic.order import Resumable, dealt
from stallwise.elastic.place import Scratch
from stallwise.elastic.shares import Parts
from stallwise.errors import InputError
from stallwise.model.deflation import shares
from tests.deflate.lab import steps, train, weights

GRADIENT = 1e-6


def seen(lines: list[dict[str, Any]], epoch: int) -> Counter[int]:
    return Counter(sample for line in lines if line["epoch"] == epoch for sample in line["samples"])


@pytest.fixture(scope="module")
def deflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with two loader workers each; the second is asked at step 3 and let go again at step 12."""
    root = tmp_path_factory.mktemp("deflated")
    train(root, 2, "--ask-at", "3", "--undo-at", "12", "--workers", "2", "--speed", "0.4")
    return root


def test_the_gradient_is_the_global_batches(deflated: Path) -> None:
    lines = steps(deflated)
    unequal = [line for line in lines if line["weight"] != 1.0]
    assert {line["step"] for line in unequal} == set(range(5, 14)), "two steps after the ask, on both ranks at once"
    assert len(unequal) == 18
    assert max(line["off"] for line in lines) <= GRADIENT
    assert {len(line["samples"]) for line in unequal if line["rank"] == 1} <= {1, 2}
    assert {line["workers"] for line in unequal} == {1, 2}, "a deflated rank needs fewer"
    assert lines[-1]["weight"] == 1.0, "and it was undone"
    assert lines[-1]["workers"] == 2


def test_workers_of_former_parts_end_with_them(deflated: Path) -> None:
    assert [line for line in steps(deflated) if line["children"] != line["workers"]] == []


def test_gradients_that_are_accumulated_without_an_exchange(tmp_path: Path) -> None:
    """Two batches a step of the optimizer, DDP's no_sync over the first; still unequal at the end, and all as made."""
    train(tmp_path, 2, "--ask-at", "1", "--epochs", "1", "--samples", "76", "--accumulate", "2")
    lines = steps(tmp_path)
    assert {line["weight"] for line in lines if line["rank"] == 1} > {1.0}
    assert 0 < max(line["off"] for line in lines) <= GRADIENT


class Wrapped(DistributedDataParallel):
    """One that no process group is needed for."""

    def __init__(self, inside: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = inside


def test_a_loader_is_set_and_given_back() -> None:
    data, net = list(range(40)), nn.Linear(2, 1)
    sampler: DistributedSampler[int] = DistributedSampler(data, 2, 1)  # type: ignore[arg-type]
    loader = DataLoader(data, batch_size=4, sampler=Resumable(sampler), num_workers=2)  # type: ignore[arg-type,var-annotated]
    parts = Parts(Wrapped(net), 1, 2, None)

    def gradient() -> float:
        net.zero_grad()
        net(torch.ones(2)).backward()
        assert net.bias.grad is not None
        return net.bias.grad.item()

    def state() -> tuple[Any, ...]:
        return getattr(loader.batch_sampler, "batch_size", None), loader.num_workers, loader.sampler.parts  # type: ignore[attr-defined]

    as_made = state()
    assert parts.changed((0.0, 0.4), loader)
    for given_back in (lambda: parts.take(["another loader"]), parts.close):
        assert parts.take(loader) == (6, 2)
        assert state() == (2, 1, (6, 2))
        assert len(list(loader.sampler)) == 10
        parts.begin(loader, 0)
        assert gradient() == 0.5
        given_back()  # type: ignore[no-untyped-call]
        assert (gradient(), parts.weight) == (1.0, 1.0), "no hook outlives its loader"
    assert state() == as_made


def test_a_model_that_exchanges_by_itself_is_not_asked() -> None:
    assert "DataLoader" in Parts(Wrapped(nn.BatchNorm1d(2)), 0, 2, None).why_not(None)
    assert "SyncBatchNorm" in Parts(Wrapped(nn.Sequential(nn.SyncBatchNorm(2))), 0, 2, None).why_not(None)


def test_a_loader_that_was_never_deflated_is_not_touched() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

        def __setattr__(self, name: str, value: object) -> None:
            raise AssertionError(name)

    parts = Parts(nn.Linear(2, 2), 0, 2, None)
    loader = Untouchable()
    assert not parts.changed((0.0, 0.0), loader)
    assert parts.take(loader) is None
    parts.begin(loader, 0)
    parts.close()
    assert not Parts(nn.Linear(2, 2), 0, 1, None).changed((0.5,), loader), "a rank alone has nobody to share with"


def test_every_sample_once(deflated: Path) -> None:
    for epoch in (0, 1):
        assert seen(steps(deflated), epoch) == Counter(range(100))


def test_global_batches_stay_and_so_do_the_weights(deflated: Path, tmp_path: Path) -> None:
    train(tmp_path, 2)
    both = [steps(deflated), steps(tmp_path)]
    batches = [
        {step: sorted(i for line in lines if line["step"] == step for i in line["samples"]) for step in range(26)}
        for lines in both
    ]
    assert batches[0] == batches[1]
    assert weights(deflated) == pytest.approx(weights(tmp_path), abs=1e-9)


def test_nothing_is_left_at_the_door(deflated: Path) -> None:
    assert list((deflated / "doors").iterdir()) == []


def test_three_ranks_interrupted_while_deflated_go_on_as_two(tmp_path: Path) -> None:
    """With a last batch that is short and does not divide, and a limit to what a rank can take."""
    train(tmp_path, 3, "--ask-at", "1", "--stop-at", "6", "--largest", "5", "--samples", "101")
    before = steps(tmp_path)
    assert max(len(line["samples"]) for line in before) == 5
    assert max(line["off"] for line in before) <= GRADIENT
    train(tmp_path, 2, "--ask-at", "7", "--samples", "101")
    lines = steps(tmp_path)
    # The step at which the first run was stopped had not been counted: it is made again.
    first = [line for line in before if line["step"] < 5]
    after = [line for line in lines if line not in before]
    assert max(line["off"] for line in after) <= GRADIENT
    assert any(line["weight"] != 1.0 for line in after)
    epoch = seen(first, 0) + seen(after, 0)
    assert set(epoch) == set(range(101))
    assert sum(epoch.values()) <= 101 + 1, "padding makes the rest divide by two"
    assert set(seen(after, 1)) == set(range(101))


@pytest.mark.soak
def test_short_last_batches_are_dropped_on_all_ranks(tmp_path: Path) -> None:
    train(tmp_path, 2, "--ask-at", "1", "--epochs", "1", "--drop-last")
    lines = steps(tmp_path)
    assert seen(lines, 0).total() == 96
    assert len(seen(lines, 0)) == 96
    assert max(line["off"] for line in lines) <= GRADIENT


@given(
    st.integers(1, 200),
    st.integers(1, 8),
    st.lists(st.floats(min_value=0.05, max_value=1.0), min_size=1, max_size=5),
    st.booleans(),
)
def test_dealing_is_exact(count: int, batch: int, speeds: list[float], drop_last: bool) -> None:
    """Every rank has as many batches, none is empty, and together they are all items, in global batches."""
    world = len(speeds)
    items = list(range(count * world))
    parts = shares(batch * world, speeds)
    ranks = [dealt(items, parts, rank, drop_last=drop_last) for rank in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    assert all(len(batch) > 0 for rank in ranks for batch in rank)
    whole = [sorted(item for rank in ranks for item in rank[step]) for step in range(len(ranks[0]))]
    kept = len(items) - len(items) % (batch * world) if drop_last else len(items)
    assert [item for step in whole for item in step] == items[:kept]
    for rank, own in zip(ranks, parts, strict=True):
        assert all(len(batch) == own for batch in rank[:-1])
        assert all(len(batch) <= own for batch in rank)


class TestDoor:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("STALLWISE_DOORS", str(tmp_path / "doors"))
        return tmp_path / "doors"

    def test_an_ask_is_heard_by_the_asked_and_by_all_below_it(self, folder: Path) -> None:
        import os

        door = Door(1, 2)
        door.open(8, "")
        (rank,) = doors(folder)
        assert (rank.pid, rank.rank, rank.world, rank.batch) == (os.getpid(), 1, 2, 8)
        assert door.asked() is None
        write_ask(folder, os.getppid(), Ask(speed=0.5))
        assert Door(1, 2).asked() == Ask(speed=0.5)
        write_ask(folder, os.getpid(), Ask(speed=0.25))
        assert Door(1, 2).asked() == Ask(speed=0.25), "the strictest"
        for pid in (os.getpid(), os.getppid()):
            withdraw(folder, pid)
        assert Door(1, 2).asked() is None
        door.close()
        assert list(folder.iterdir()) == []

    def test_a_rank_tells_how_long_its_steps_are(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        door, now_s = Door(1, 2), 100.0
        monkeypatch.setattr("stallwise.deflate.door.time.monotonic", lambda: now_s)
        door.open(8, "")
        assert next(doors(folder)).step_s is None
        for _ in range(8):
            now_s += 0.25
            door.asked()
        assert next(doors(folder)).step_s == pytest.approx(0.25)
        for _ in range(10):
            now_s += 0.5
            door.asked()
        assert next(doors(folder)).step_s == pytest.approx(0.5), "of the last"
        door.open(8, "")
        assert next(doors(folder)).step_s == pytest.approx(0.5), "the next epoch's are like it"

    def test_the_folder_is_the_same_for_a_job_and_for_who_deflates_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A batch system gives every job a TMPDIR of its own, which whoever deflates it does not have."""
        monkeypatch.delenv("STALLWISE_DOORS", raising=False)
        found = []
        for folder in ("/scratch/job7", "/scratch/job8"):
            monkeypatch.setenv("TMPDIR", folder)
            monkeypatch.setattr("tempfile.tempdir", None)
            found.append(folder_of(1000))
        assert len(set(found)) == 1

    def test_nonsense_asks_for_nothing(self, folder: Path) -> None:
        Door(0, 1)
        for text in ("", "{", '{"speed": 0}', '{"speed": "half"}', "[]", '{"rank": 1}'):
            (folder / "77.ask.json").write_text(text)
            assert read_ask(folder, 77) is None, text
        with pytest.raises(InputError, match="above 0 and up to 1"):
            Ask(speed=1.5)

    def test_what_others_put_there_is_not_believed(self, folder: Path) -> None:
        import os

        Door(0, 1).open(8, "")
        (known,) = doors(folder)
        path = folder / f"{os.getpid()}.door.json"
        for changed in (
            {"world": "2"},
            {"batch": 1.5},
            {"why": "\x1b[2J"},
            {"why": None},
            {"pid": [1]},
            {"step_s": -1.0},
        ):
            path.write_text(json.dumps({**asdict(known), **changed}))
            assert list(doors(folder)) == [], changed
        path.unlink()
        os.mkfifo(path)
        assert list(doors(folder)) == [], "a pipe is not waited for"
        os.mkfifo(folder / "77.ask.json")
        assert read_ask(folder, 77) is None
        (folder / "real").write_text('{"speed": 0.5}')
        (folder / "78.ask.json").symlink_to(folder / "real")
        assert read_ask(folder, 78) is None
        assert trusted(folder, os.getuid())
        assert not trusted(Path("/proc/1/cwd"), os.getuid())
        write_ask(folder, os.getpid(), Ask(speed=0.5, started=1))
        assert read_ask(folder, os.getpid()) is None, "asked was an earlier process of this number"

    def test_scratch_of_others_is_left_alone(self, tmp_path: Path) -> None:
        import os

        theirs = tmp_path / "stallwise-scratch-theirs"
        theirs.mkdir()
        os.mkfifo(theirs / "lock")
        (tmp_path / "stallwise-scratch-link").symlink_to(theirs)
        Scratch(tmp_path).close()  # and does not hang
        assert (tmp_path / "stallwise-scratch-link").is_symlink()

    def test_what_the_dead_have_left_is_swept(self, folder: Path) -> None:
        Door(0, 1)
        (folder / f"{2**22 + 1}.door.json").write_text("{}")
        (folder / f"{2**22 + 1}.ask.json").write_text("{}")
        sweep(folder)
        assert list(folder.iterdir()) == []

    def test_a_folder_of_somebody_else_is_not_used(self, folder: Path) -> None:
        folder.symlink_to(folder.parent)
        door = Door(0, 1)
        door.open(8, "")
        assert door.asked() is None
        assert not list(folder.parent.glob("*.door.json"))
