"""Light mode: which steps of a job with short steps are watched."""

import inspect
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from stallwise.record.rank import recorder as recorders
from stallwise.record.rank.environment import RecordSettings, begin_record
from stallwise.record.rank.recorder import Recorder
from stallwise.run.writer import RankWriter

EPOCH, EPOCHS, ACCUMULATED = 410, 4, 2
"""Steps of an epoch, no multiple of a stretch; epochs; batches of a step."""


@contextmanager
def recording(folder: Path) -> Iterator[Recorder]:
    begin_record(folder / "run", script="job.py", arguments=(), launcher=None)
    settings = RecordSettings(folder=str(folder / "run"), light=True)
    writer = RankWriter.open(folder / "run", 0, clock_zero_s=time.monotonic())
    recorder = Recorder(settings, writer, str(folder / "workers"))
    before = DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook
    recorder.watch()
    try:
        yield recorder
    finally:
        recorder.detach()
        # What a rank keeps until it ends, other tests of this process must not see.
        DistributedDataParallel.__init__, DistributedDataParallel.register_comm_hook = before  # type: ignore[method-assign]


def rows_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """Steps and events of a job that accumulates gradients, and validates after every epoch."""
    written: dict[str, list[Any]] = {"steps": [], "events": []}
    monkeypatch.setattr(RankWriter, "append", lambda self, table, row: written[table].append(row))
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with recording(folder) as recorder:
        training = DataLoader(TensorDataset(torch.arange(2.0 * EPOCH * ACCUMULATED)), batch_size=2)
        validation = DataLoader(TensorDataset(torch.arange(6.0)), batch_size=2)
        for _ in range(EPOCHS):
            for number, (batch,) in enumerate(training):
                (parameter * batch.sum()).backward()
                if number % ACCUMULATED:
                    optimizer.step()
            with torch.no_grad():
                for _ in validation:
                    pass
        recorder.close(exit_code=0, reason=None)
    return written["steps"], written["events"]


def test_short_steps_are_watched_a_stretch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_ALWAYS_WATCHED_S", 1e9)
    steps, events = rows_of(tmp_path, monkeypatch)
    numbers = [row.step for row in steps]
    assert numbers == sorted(set(numbers))
    assert numbers[:256] == list(range(256)), "the first ones are all watched"
    assert len(numbers) < 0.5 * EPOCH * EPOCHS
    begun = [EPOCH * epoch for epoch in range(1, EPOCHS)]
    assert all(first in numbers and first - 2 not in numbers for first in begun), "unwatched steps are counted"
    assert all(row.fetches == ACCUMULATED and row.samples == 2 * ACCUMULATED for row in steps if row.kept)
    # What begins an epoch and what validates is watched wherever it falls.
    assert sum(event.kind == "validation" for event in events) >= EPOCHS - 1
    assert sum(event.kind == "first_batch" for event in events) >= EPOCHS


def test_long_steps_are_all_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_ALWAYS_WATCHED_S", 0.0)
    steps, _ = rows_of(tmp_path, monkeypatch)
    assert [row.step for row in steps] == list(range(len(steps)))
    assert len(steps) > 0.95 * EPOCH * EPOCHS


def test_what_options_ddp_has_can_still_be_asked(tmp_path: Path) -> None:
    options = inspect.signature(DistributedDataParallel.__init__).parameters
    with recording(tmp_path):
        assert inspect.signature(DistributedDataParallel.__init__).parameters == options
