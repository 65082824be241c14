"""Importance sampling: it must be asked for, it favours what is hard, and it says what it draws by."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stallwise.data import BucketDataset, ImportanceSampler, NodeCache
from stallwise.data.cache._index import CachePolicy
from stallwise.errors import InputError
from tests.data.testbed.proxy import Proxy
from tests.data.testbed.seaweed import Seaweed, objects


def sampler_of(count: int = 200, **options: object) -> ImportanceSampler:
    return ImportanceSampler(range(count), changes_the_distribution=True, **options)  # type: ignore[arg-type]


def test_it_must_be_asked_for_by_name() -> None:
    with pytest.raises(InputError, match="changes_the_distribution=True"):
        ImportanceSampler(range(10))


def test_before_any_loss_all_are_alike() -> None:
    assert np.allclose(sampler_of().weights(), 1 / 200)


def test_harder_samples_are_drawn_more_often() -> None:
    sampler = sampler_of(smoothing=0.0)
    for first in range(0, 200, 20):
        numbers = torch.arange(first, first + 20)
        sampler.learn(numbers, torch.linspace(0, 1, 20))
    weights = sampler.weights()
    assert weights[19] / weights[0] == pytest.approx(np.log(29) / np.log(10)), "log(rank + 10)"
    counts = Counter(number for _ in range(200) for number in sampler)
    hard = sum(counts[first + 19] for first in range(0, 200, 20))
    easy = sum(counts[first] for first in range(0, 200, 20))
    assert hard / easy == pytest.approx(np.log(29) / np.log(10), rel=0.1)


def test_an_epoch_is_as_long_as_the_data_and_follows_from_seed_and_epoch() -> None:
    first, second = sampler_of(seed=1), sampler_of(seed=1)
    orders = [list(first), list(first)]
    assert [len(order) for order in orders] == [200, 200]
    assert orders[0] != orders[1]
    second.set_epoch(1)
    assert list(second) == orders[1]


def test_cached_samples_are_repeated_only_while_training_improves() -> None:
    cached = set(range(40))
    sampler = sampler_of(is_cached=lambda number: number in cached, repeat=3.0)
    hits = sum(number in cached for number in sampler)
    sampler.improving(False)
    plain = sum(number in cached for number in sampler)
    assert plain == pytest.approx(40, abs=20)
    assert hits == pytest.approx(3 * 40, abs=45)


def test_losses_that_are_not_numbers_do_not_break_it() -> None:
    sampler = sampler_of(4)
    sampler.learn([0, 1, 2], [float("nan"), 1.0, 2.0])
    assert np.isfinite(sampler.weights()).all()
    with pytest.raises(InputError, match="one loss per sample"):
        sampler.learn([0, 1], [1.0])


def _tell(data: bytes, name: str) -> int:
    return len(data)


def test_a_cache_keeps_what_is_important(
    seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path
) -> None:
    """SHADE's admission: the same draws, the same room. Its weights are all within a factor of two: it wins little."""
    count, room, epochs = 200, 40, 6
    bucket = new_bucket(objects(count, 4000))
    hits: dict[str, list[int]] = {}
    policies: tuple[CachePolicy, ...] = ("no-evict", "lru", "importance")
    for policy in policies:
        cache = NodeCache(tmp_path / policy, room * 4096, policy)
        dataset = BucketDataset(
            f"s3://{bucket}/", _tell, endpoint=proxy.endpoint, options=seaweed.options, cache=cache,
            index_folder=tmp_path / "index",
        )  # fmt: skip
        sampler = ImportanceSampler(dataset, changes_the_distribution=True, smoothing=0.0, seed=3)
        if policy == "importance":
            dataset.keep_important(sampler.importance)
        hits[policy] = []
        for _ in range(epochs):
            before = dataset.account().hits
            drawn = list(sampler)
            loader = DataLoader(dataset, 50, sampler=drawn, num_workers=0)
            for first, _ in enumerate(loader):
                numbers = drawn[50 * first : 50 * first + 50]
                sampler.learn(numbers, [float(number) for number in numbers])  # later samples are harder
            hits[policy].append(int(dataset.account().hits - before))
    print("hits per epoch of 200:", hits)
    later = {policy: sum(counts[2:]) for policy, counts in hits.items()}
    assert later["importance"] > later["lru"]
    kept = [number for number in range(count) if dataset.is_cached(number)]
    assert len(kept) == room
    assert np.mean(kept) > 0.65 * count, "what is hard"


def test_workers_rank_by_what_the_rank_has_learnt(
    seaweed: Seaweed, proxy: Proxy, new_bucket: Callable[..., str], tmp_path: Path
) -> None:
    bucket = new_bucket(objects(60, 4000))
    cache = NodeCache(tmp_path / "cache", 10 * 4096, "importance")
    dataset = BucketDataset(
        f"s3://{bucket}/", _tell, endpoint=proxy.endpoint, options=seaweed.options, cache=cache,
        index_folder=tmp_path / "index",
    )  # fmt: skip
    sampler = ImportanceSampler(dataset, changes_the_distribution=True)
    dataset.keep_important(sampler.importance)
    # One worker: of two that read at once, one may find the least important entry in use, and evict the next.
    loader = DataLoader(dataset, 10, sampler=range(60), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 6
    sampler.learn(range(60), [float(number) for number in range(60)])
    assert len(list(loader)) == 6
    assert [number for number in range(60) if dataset.is_cached(number)] == list(range(50, 60))
    with pytest.raises(InputError, match="policy='importance'"):
        BucketDataset(
            f"s3://{bucket}/", endpoint=proxy.endpoint, options=seaweed.options, index_folder=tmp_path / "index"
        ).keep_important(sampler.importance)
