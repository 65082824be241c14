"""An epoch keeps its length, whenever batches are replayed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stallwise.record.loader import Loaders, Source


class Replays:
    """Hands out a batch of its own from fetch number `first` up to `last`."""

    def __init__(self, first: int, last: int) -> None:
        self.replayed = range(first, last)
        self.asked = 0

    def wants(self, source: Source) -> Any | None:
        self.asked += 1
        return "again" if self.asked - 1 in self.replayed else None

    def fetched(self, source: Source, batch: Any, start_s: float, end_s: float) -> None: ...

    def ended(self, source: Source) -> None: ...

    def started(self, source: Source, start_s: float, end_s: float) -> None: ...


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 3), (3, 9), (4, 9), (5, 9), (0, 9)])
def test_an_epoch_keeps_its_length_wherever_replay_begins(first: int, last: int, tmp_path: Path) -> None:
    loaders = Loaders(Replays(first, last), str(tmp_path))
    loaders.watch()
    try:
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
        assert [len(list(loader)) for _ in range(2)] == [4, 4]
    finally:
        loaders.release()
