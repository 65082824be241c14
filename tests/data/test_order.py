"""A follower is held against what DataLoader really asks of a worker."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from stallwise.data.prefetch.order import OrderChannel, OrderFollower


class RequestLog(Dataset[Any]):
    """Returns which worker was asked for which numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> int:
        return number

    def __getitems__(self, numbers: list[int]) -> list[tuple[int, list[int]]]:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        return [(0 if info is None else info.id, numbers)]


def asked_of_workers(samples: int, batch: int, workers: int, order: list[int]) -> Iterator[tuple[int, list[int]]]:
    loader = DataLoader(
        RequestLog(samples), batch, sampler=order, num_workers=workers, collate_fn=lambda samples: samples[0]
    )  # type: ignore[arg-type]
    yield from loader


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("samples", "batch", "workers"), [(103, 7, 3), (64, 32, 2), (10, 1, 2), (9, 4, 0), (5, 8, 2)])
def test_a_follower_knows_every_later_request_of_its_worker(samples: int, batch: int, workers: int) -> None:
    order = np.random.default_rng(1).permutation(samples)
    channel = OrderChannel(samples, samples)
    channel.begin(order.astype(np.int64), None, None, None)
    followers = [OrderFollower(channel, worker, workers) for worker in range(max(workers, 1))]
    firsts = set()
    for worker, numbers in asked_of_workers(samples, batch, workers, order.tolist()):
        follower = followers[worker]
        announced = follower.follow(numbers)
        # Only the first request of a worker is news to it.
        assert announced == (len(numbers) if worker in firsts else 0)
        firsts.add(worker)
        follower.ahead(samples)
    assert all(follower.outstanding == 0 for follower in followers)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(1, 50), st.integers(0, 100))
@settings(max_examples=200, deadline=None)
def test_what_is_handed_out_is_the_workers_own_future_in_order(
    samples: int, batch: int, workers: int, depth: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(samples).astype(np.int64)
    channel = OrderChannel(samples, samples)
    channel.begin(order, None, None, None)
    for worker in range(workers):
        batches = [order[at : at + batch].tolist() for at in range(0, samples, batch)][worker::workers]
        follower, given_out = OrderFollower(channel, worker, workers), []
        for place, numbers in enumerate(batches):
            announced = follower.follow(numbers)
            # What was not handed out in time is no longer: it is being asked for.
            given_out += numbers[announced:] if place else []
            given_out += follower.ahead(max(0, depth - follower.outstanding))
            own = [n for b in batches[1:] for n in b]
            assert given_out == own[: len(given_out)]
            assert announced == (min(depth, len(numbers)) if place else 0)
            assert len(given_out) >= min(len(own), sum(map(len, batches[1 : place + 1])) + depth)


def test_a_batch_samplers_own_batches_are_followed() -> None:
    batches = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9], [10, 11]]
    flat = np.arange(12, dtype=np.int64)
    channel = OrderChannel(12, 12)
    channel.begin(flat, np.array([0, 3, 4, 6, 10, 12]), None, None)
    follower = OrderFollower(channel, 1, 2)
    follower.follow(batches[1])
    assert follower.ahead(100) == [6, 7, 8, 9]
    assert follower.follow(batches[3])


def test_a_worker_that_lives_on_looks_into_the_next_epoch() -> None:
    first, second = np.arange(8, dtype=np.int64), np.arange(8, dtype=np.int64)[::-1].copy()
    channel = OrderChannel(8, 8)
    channel.begin(first, None, second, np.argsort(second))
    follower = OrderFollower(channel, 0, 2)
    follower.follow([0, 1])
    assert follower.ahead(100) == [4, 5], "it may die with the epoch"
    follower.follow([4, 5])
    channel.begin(second, None, first, np.arange(8))
    follower.follow([7, 6])
    assert follower.ahead(100) == [3, 2, 0, 1, 4, 5], "now it is announced to live on"


def test_of_an_epoch_that_may_never_come_only_so_much_is_handed_out() -> None:
    first, second = np.arange(8, dtype=np.int64), np.arange(8, dtype=np.int64)[::-1].copy()
    channel = OrderChannel(8, 8)
    channel.begin(first, None, second, np.argsort(second))
    follower = OrderFollower(channel, 0, 1)
    follower.crosses = True
    follower.follow([0, 1])
    assert follower.ahead(100, past=3) == [2, 3, 4, 5, 6, 7, 7, 6, 5]
    assert follower.ahead(100, past=3) == []
    for numbers in ([2, 3], [4, 5], [6, 7]):
        assert follower.follow(numbers) == 2
    assert follower.ahead(100, past=3) == [], "the epoch has not begun"
    channel.begin(second, None, first, np.arange(8))
    assert follower.follow([7, 6]) == 2
    assert follower.ahead(3, past=3) == [4, 3, 2], "it has begun: there is no such limit in it"
    assert follower.ahead(100, past=3) == [1, 0, 0, 1, 2]


def test_a_loader_that_drops_its_last_batch_is_understood() -> None:
    orders = [np.random.default_rng(seed).permutation(11).astype(np.int64) for seed in range(4)]
    channel, follower = OrderChannel(11, 11), None
    for epoch in range(3):
        channel.begin(orders[epoch], None, orders[epoch + 1], np.argsort(orders[epoch + 1]))
        follower = follower or OrderFollower(channel, 0, 1)
        follower.crosses = True
        for at in (0, 4):
            announced = follower.follow(orders[epoch][at : at + 4].tolist())
            assert announced == (4 if epoch or at else 0), "also at the start of an epoch it was there already"
            # The first time the rest of three is expected; it does not come, and is not expected again.
            assert follower.skipped() == (orders[0][8:].tolist() if (epoch, at) == (1, 0) else [])
            follower.ahead(20, past=6)


def test_single_numbers_show_the_batch_by_their_jumps() -> None:
    order = np.random.default_rng(3).permutation(40).astype(np.int64)
    channel = OrderChannel(40, 40)
    channel.begin(order, None, None, None)
    follower = OrderFollower(channel, 0, 2)
    for number in order[0:4]:
        follower.follow([int(number)], whole=False)
        assert follower.ahead(100) == [], "how long the batch is, is not announced yet"
    follower.follow([int(order[8])], whole=False)
    assert follower.ahead(6) == [*order[9:12].tolist(), *order[16:19].tolist()]


def test_numbers_that_are_not_in_the_order_stop_the_following_and_harm_nothing() -> None:
    channel = OrderChannel(10, 20)
    channel.begin(np.arange(10, dtype=np.int64), None, None, None)
    follower = OrderFollower(channel, 0, 1)
    follower.follow([15, 16])
    assert not follower.is_located
    assert follower.ahead(5) == []
    follower.follow([2, 3])
    assert follower.is_located
    assert follower.ahead(3) == [4, 5, 6]


def test_batch_samplers_of_torch_deal_as_assumed() -> None:
    dealt = list(BatchSampler(SequentialSampler(range(7)), 3, drop_last=False))
    assert dealt == [[0, 1, 2], [3, 4, 5], [6]]
