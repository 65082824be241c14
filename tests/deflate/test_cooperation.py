"""Unequal parts of one global batch on real DDP over gloo: the same gradients, every sample once, the same weights."""

from collections import Counter
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

from stallwise.elastic._batches import BatchParts, Resumable, rank_batches
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
    parts = BatchParts(Wrapped(net), 1, 2, None)

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
    assert "DataLoader" in BatchParts(Wrapped(nn.BatchNorm1d(2)), 0, 2, None).why_not(None)
    assert "SyncBatchNorm" in BatchParts(Wrapped(nn.Sequential(nn.SyncBatchNorm(2))), 0, 2, None).why_not(None)


def test_a_loader_that_was_never_deflated_is_not_touched() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

        def __setattr__(self, name: str, value: object) -> None:
            raise AssertionError(name)

    parts = BatchParts(nn.Linear(2, 2), 0, 2, None)
    loader = Untouchable()
    assert not parts.changed((0.0, 0.0), loader)
    assert parts.take(loader) is None
    parts.begin(loader, 0)
    parts.close()
    assert not BatchParts(nn.Linear(2, 2), 0, 1, None).changed((0.5,), loader), "a rank alone has nobody to share with"


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


def test_no_request_is_left(deflated: Path) -> None:
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
    ranks = [rank_batches(items, parts, rank, drop_last=drop_last) for rank in range(world)]
    assert len({len(rank) for rank in ranks}) == 1
    assert all(len(batch) > 0 for rank in ranks for batch in rank)
    whole = [sorted(item for rank in ranks for item in rank[step]) for step in range(len(ranks[0]))]
    kept = len(items) - len(items) % (batch * world) if drop_last else len(items)
    assert [item for step in whole for item in step] == items[:kept]
    for rank, own in zip(ranks, parts, strict=True):
        assert all(len(batch) == own for batch in rank[:-1])
        assert all(len(batch) <= own for batch in rank)
