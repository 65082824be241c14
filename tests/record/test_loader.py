"""An epoch keeps its length, whenever batches are replayed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from stallwise.record.ablate.loader import BatchSource, Loaders


class Replays:
    """Hands out a batch of its own from fetch number `first` up to `last`."""

    resting = 0

    def __init__(self, first: int, last: int) -> None:
        self.replayed = range(first, last)
        self.fetches = 0

    def fetch_begins(self, source: BatchSource) -> Any | None:
        self.fetches += 1
        return "again" if self.fetches - 1 in self.replayed else None

    def fetch_ended(self, source: BatchSource, batch: Any, start_s: float, end_s: float) -> None: ...

    def epoch_ended(self, source: BatchSource) -> None: ...

    def iterator_created(self, source: BatchSource, start_s: float, end_s: float) -> None: ...


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 3), (3, 9), (4, 9), (5, 9), (0, 9)])
def test_an_epoch_keeps_its_length_wherever_replay_begins(first: int, last: int, tmp_path: Path) -> None:
    loaders = Loaders(Replays(first, last), str(tmp_path))
    loaders.watch()
    try:
        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
        assert [len(list(loader)) for _ in range(2)] == [4, 4]
    finally:
        loaders.release()


class Sized:
    """A loader by its settings alone."""

    def __init__(self, batches: int, workers: int, depth: int | None = 2) -> None:
        self.num_workers, self.prefetch_factor, self.batches = workers, depth if workers else None, batches

    def __len__(self) -> int:
        return self.batches


@pytest.mark.parametrize(
    ("batches", "workers", "steady"),
    [
        (24, 4, range(9, 21)),  # the queue of 8, then three whole bursts; the last step contains the end of the epoch
        (10, 4, range(1, 11)),  # nothing but queue: whole epochs are all there is
        (1, 0, range(1, 2)),  # one batch an epoch: every step begins one
        (3, 0, range(2, 4)),
        (469, 4, range(9, 469)),
    ],
)
def test_batches_of_the_first_queue_are_not_steady(batches: int, workers: int, steady: range) -> None:
    source = BatchSource(0, Sized(batches, workers))
    kept = []
    for number in range(1, batches + 1):
        source.prepared += 1
        source.delivered += 1
        kept += [number] if source.steady else []
    assert kept == list(steady)


class _Unsized(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class _Broken(TensorDataset):
    def __len__(self) -> int:
        raise RuntimeError("the script never calls this")


def test_an_epoch_covers_the_dataset_less_what_the_sampler_leaves_out() -> None:
    data = TensorDataset(torch.arange(1001))

    def samples(loader: DataLoader[Any], world_size: int = 1) -> int | None:
        return BatchSource(0, loader).epoch_samples(world_size)

    assert samples(DataLoader(data, batch_size=4)) == 1001
    assert samples(DataLoader(data, batch_size=4, shuffle=True), 8) == 1001, "a loader that nobody divides"
    for drop_last in (False, True):
        divided = DistributedSampler(data, num_replicas=4, rank=1, drop_last=drop_last)
        assert samples(DataLoader(data, batch_size=4, sampler=divided), 4) == 1001
    assert samples(DataLoader(data, batch_size=4, sampler=SubsetRandomSampler(range(600)))) == 600
    assert samples(DataLoader(data, sampler=RandomSampler(data, replacement=True, num_samples=50))) == 50
    assert samples(DataLoader(_Unsized(), batch_size=4)) is None
    assert BatchSource(0, DataLoader(_Broken(torch.arange(4)), sampler=[0, 1])).epoch_samples(1) is None
