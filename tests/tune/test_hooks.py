"""Settings reach loaders as the script makes them, and change nothing else."""

import contextlib
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

from stallwise.tune._hooks import (
    BlockSequence,
    SwitchingIterator,
    apply,
    compile_trained_model,
    describe,
    fuse_optimizers,
    is_fusable,
)
from stallwise.tune.knobs import Knobs, LoaderFacts, TrialSpec, decode_loaders

DATA = TensorDataset(torch.arange(12.0))


def test_what_is_not_set_stays_the_scripts_own() -> None:
    given = {"dataset": DATA, "batch_size": 4, "num_workers": 3, "prefetch_factor": 5, "pin_memory": True}
    assert apply(Knobs(), given) == given


def test_a_loader_without_workers_gets_no_queue() -> None:
    found = apply(Knobs(num_workers=0), {"dataset": DATA, "num_workers": 2, "prefetch_factor": 4})
    assert "prefetch_factor" not in found
    assert found["persistent_workers"] is False
    DataLoader(**found)


def test_the_batch_is_never_among_what_can_be_turned() -> None:
    assert {"batch_size", "drop_last", "collate_fn", "dtype"}.isdisjoint(Knobs.__struct_fields__)


def test_knobs_add_up() -> None:
    both = Knobs(num_workers=2, lookahead=True).with_(Knobs(num_workers=4, pin_memory=False))
    assert both.as_dict() == {"num_workers": 4, "lookahead": True, "pin_memory": False}


def test_a_trial_travels_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = TrialSpec(
        folder="/x", site="train.py:3", fixed=Knobs(bucket_cap_mb=50.0), arms=(Knobs(), Knobs(num_workers=2))
    )
    for name, value in trial.to_environment().items():
        monkeypatch.setenv(name, value)
    assert TrialSpec.from_environment() == trial


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's optimizers are made fused in this test."""
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    fuse_optimizers()


def test_optimizers_are_fused_where_the_script_leaves_that_open(fused: None) -> None:
    model = torch.nn.Linear(4, 2)
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        assert kind(model.parameters(), lr=0.1).defaults["fused"] is True
    assert torch.optim.AdamW([{"params": model.parameters(), "lr": 0.2}]).param_groups[0]["fused"] is True
    assert torch.optim.AdamW(model.parameters(), fused=False).defaults["fused"] is False
    assert not torch.optim.AdamW(model.parameters(), foreach=True).defaults["fused"]
    assert "fused" not in torch.optim.RMSprop(model.parameters()).defaults


def test_a_fused_optimizer_is_not_proposed_twice() -> None:
    parameters = list(torch.nn.Linear(2, 2).parameters())
    assert is_fusable(torch.optim.AdamW(parameters))
    assert not is_fusable(torch.optim.AdamW(parameters, fused=True))
    assert not is_fusable(torch.optim.AdamW(parameters, capturable=True))
    assert not is_fusable(torch.optim.RMSprop(parameters))


class _Outer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 2))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.inner(batch)  # type: ignore[no-any-return]


def test_the_outermost_model_that_is_trained_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: compiled.append(module))
    monkeypatch.setattr(torch, "compile", lambda forward: compiled.append(forward) or forward)
    frozen, model, plain = torch.nn.Linear(4, 4).requires_grad_(False), _Outer(), torch.nn.Sequential(_Outer())
    compile_trained_model()
    with torch.no_grad():
        model(torch.ones(1, 4))
    for _ in range(3):
        model(frozen(torch.ones(1, 4)))
    assert compiled == [model]
    compile_trained_model()
    plain(torch.ones(1, 4))  # a class of torch's own: its forward is compiled
    assert compiled == [model, plain.forward]


class _Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(3))


def test_only_loaders_with_samplers_that_can_be_drawn_from_twice_are_switched() -> None:
    own = iter([0, 1])
    assert describe(DataLoader(DATA, 4, shuffle=True), "a:1").switchable
    assert not describe(DataLoader(DATA, 4, sampler=list(own)), "a:1").switchable
    stream = describe(DataLoader(_Stream()), "a:1")
    assert stream.iterable
    assert not stream.switchable
    assert stream.length is None


def _train(loader: DataLoader, board: BlockSequence, seen: list[int]) -> None:  # type: ignore[type-arg]
    """Epoch after epoch, more than there are blocks for; `seen` gets the length of each that ended."""
    for _ in range(20):
        epoch, given = SwitchingIterator(loader, board), 0
        with contextlib.suppress(StopIteration):
            while True:
                epoch.advance()
                given += 1
        seen.append(given)


@pytest.mark.parametrize("workers", [0, 1])
def test_blocks_go_through_the_arms_and_end_the_job(tmp_path: Path, workers: int) -> None:
    from stallwise.record.rank.recorder import ProfileDone
    from stallwise.tune.knobs import BLOCKS_NAME, TrialBlock, decode_blocks

    arms = (Knobs(num_workers=0), Knobs(num_workers=workers))
    blocks = (TrialBlock(arm=0, settle=1, batches=3), TrialBlock(arm=1, settle=2, batches=4))
    board = BlockSequence(TrialSpec(folder=str(tmp_path), arms=arms, blocks=blocks), first=True)
    loader = DataLoader(DATA, 4, sampler=RandomSampler(DATA))
    seen: list[int] = []
    with pytest.raises(ProfileDone):
        _train(loader, board, seen)
    # Ten batches: three epochs of three, and one that the end of the last block cuts short.
    assert seen == [3, 3, 3]
    assert [(block.arm, block.batches) for block in decode_blocks((tmp_path / BLOCKS_NAME).read_bytes())] == [
        (0, 3),
        (1, 4),
    ]


def test_an_unmodified_script_gets_its_settings(tmp_path: Path) -> None:
    import os
    import subprocess

    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "from stallwise.tune._hooks import install\n"
        "from stallwise.tune.knobs import Knobs, TrialSpec\n"
        "import os\n"
        "install(TrialSpec.from_environment())\n"
        "weight = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)\n"
        "loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)\n"
        "other = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)\n"
        "for (x,) in loader:\n"
        "    weight(x).sum().backward(); optimizer.step()\n"
        "print(loader.num_workers, loader.prefetch_factor, loader.batch_size, other.num_workers)\n"
    )
    trial = TrialSpec(folder=str(tmp_path), site=f"{script}:9", fixed=Knobs(num_workers=1, prefetch_factor=3))
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | trial.to_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    assert done.stdout.split() == ["1", "3", "2", "0"], done.stderr
    (seen,) = decode_loaders((tmp_path / "loaders.json").read_bytes())
    assert (seen.site, seen.steps, seen.num_workers) == (f"{script}:9", 4, 1)


def test_one_function_may_make_the_loaders_for_training_and_validation(tmp_path: Path) -> None:
    from stallwise.tune._hooks import _site

    def make() -> str:
        return _site()

    training = make()
    validation = make()
    again = [make() for _ in range(2)]
    assert training != validation
    assert again[0] == again[1], "made anew for every epoch, it is the same loader"


def test_a_loader_is_described_as_the_script_made_it() -> None:
    found = describe(DataLoader(DATA, 4, num_workers=2, prefetch_factor=3, persistent_workers=True), "train.py:3")
    assert isinstance(found, LoaderFacts)
    assert (found.num_workers, found.prefetch_factor, found.persistent_workers, found.length) == (2, 3, True, 3)
    assert not found.bucket


def test_a_core_taken_away_while_measuring_does_not_end_the_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is proposed comes from the times of batches: one slow look at /proc once hid hundreds of them."""
    import time

    from stallwise.record.observe.worker import BatchCostLog

    account = BatchCostLog(str(tmp_path), 0, 0)
    for _ in range(10):
        account.measure(lambda: time.sleep(0.02), lambda _: 4)
    monkeypatch.setattr(account, "_read_bytes", lambda: time.sleep(0.1) or 0)
    account.measure(lambda: time.sleep(0.02), lambda _: 4)
    assert account.skip < 100  # 0.2 s of measuring, taken for its cost, would be 2,000


def test_the_job_ends_after_the_round_that_decides(tmp_path: Path) -> None:
    """Two arms that differ by a factor of ten: two rounds suffice of the eight that were planned."""
    from stallwise.record.rank.recorder import ProfileDone
    from stallwise.tune.knobs import BLOCKS_NAME, TrialBlock, decode_blocks

    blocks = tuple(TrialBlock(arm=arm, settle=1, batches=4) for arm in (0, 1, 1, 0) * 4)
    trial = TrialSpec(
        folder=str(tmp_path),
        arms=(Knobs(), Knobs(num_workers=0)),
        blocks=blocks,
        predictions=((0.0, 0.0, 0.0), (0.8, 0.6, 0.95)),
    )
    board = BlockSequence(trial, first=True)

    def train() -> None:
        for _ in range(1000):
            time.sleep(0.06 if board.arm == 0 else 0.005)
            board.count()

    with pytest.raises(ProfileDone):
        train()
    records = decode_blocks((tmp_path / BLOCKS_NAME).read_bytes())
    assert len(records) % 2 == 0
    assert 4 <= len(records) < len(blocks)
