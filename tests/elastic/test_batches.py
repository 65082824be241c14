"""Every sample once on any number of ranks; learning rates and augmentation that follow."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stallwise.elastic._batches import (
    Augmented,
    Resumable,
    begin_epoch,
    loader_position,
    rate_factor,
    rescale_rates,
    seed_of,
)
from stallwise.elastic._checkpoints import (
    random_state,
    to_bytes,
)


def test_learning_rate_follows_the_workers() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    rescale_rates(optimizer, scheduler, rate_factor(4, 3, "linear"))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.3)
    weight.grad = torch.zeros(1)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.15)
    assert rate_factor(4, 1, "sqrt") == 0.5
    assert rate_factor(4, 1, "none") == 1.0


def test_augmentation_does_not_depend_on_what_was_drawn_before() -> None:
    data = Augmented(list(range(10)), lambda x: (x, torch.rand(1).item(), np.random.rand(), random.random()), seed=3)
    data.set_epoch(2)
    first = data[4]
    torch.rand(17)
    np.random.rand(17)
    random.random()
    before = random_state()
    assert data[4] == first
    assert to_bytes(random_state()) == to_bytes(before)
    data.set_epoch(3)
    assert data[4] != first
    assert len({seed_of(s, e, i) for s in range(9) for e in range(9) for i in range(9)}) == 9**3


def test_the_epoch_reaches_augmentation_inside_other_datasets() -> None:
    parts = [Augmented(list(range(4)), lambda x: x + torch.rand(1).item(), seed=seed) for seed in range(3)]
    inside = ConcatDataset([Subset(parts[0], [1, 2]), StackDataset(parts[1], parts[2])])
    begin_epoch(DataLoader(inside), 5, None)
    assert [int(part._epoch[0]) for part in parts] == [5, 5, 5]


@given(
    count=st.integers(1, 97),
    batch=st.integers(1, 5),
    worlds=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_every_sample_once_however_many_ranks(count: int, batch: int, worlds: list[tuple[int, int]]) -> None:
    """Each world trains a few steps and hands its position to the next; the last trains to the end."""
    data = TensorDataset(torch.arange(count))
    saved, trained, repeated = None, Counter[int](), 0
    for turn, (world, steps) in enumerate(worlds):
        rest = []
        for rank in range(world):
            sampler = Resumable(DistributedSampler(data, world, rank, seed=3))
            loader = DataLoader(data, batch_size=batch, sampler=sampler)
            begin_epoch(loader, 5, saved)
            batches = [[int(x) for x in one[0]] for one in loader]
            last = turn == len(worlds) - 1
            made = batches if last else batches[:steps]
            trained.update(x for one in made for x in one)
            rest.append(loader_position(loader, 5, len(made), 0))
            repeated += sampler.padding if rank == 0 and len(made) == len(batches) else 0
        saved = rest[0]
    assert set(trained) == set(range(count))
    assert sum(trained.values()) <= count + repeated
