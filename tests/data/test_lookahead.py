"""`Lookahead` yields what its sampler yields, and goes on where it stopped. No server: the bucket is a folder."""

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)
from torch.utils.data.distributed import DistributedSampler

from stallwise.data import BucketDataset, DeliMode, Lookahead, StickySampler
from stallwise.errors import InputError, ObjectError


def number_of(data: bytes, name: str) -> int:
    assert name == f"{int(data):04d}.txt"
    return int(data)


def bucket(folder: Path, samples: int, **options: Any) -> BucketDataset[int]:
    (folder / "objects").mkdir(exist_ok=True)
    for number in range(samples):
        (folder / "objects" / f"{number:04d}.txt").write_text(str(number))
    return BucketDataset(
        f"file://{folder}/objects", number_of, index_folder=folder / "indexes", **{"hedge": False, **options}
    )


def epoch(loader: Any) -> list[int]:
    return [int(number) for batch in loader for number in batch]


def test_it_yields_exactly_what_the_sampler_yields(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 40)
    for make in (
        lambda: SequentialSampler(dataset),
        lambda: RandomSampler(dataset),
        lambda: RandomSampler(dataset, generator=torch.Generator().manual_seed(3)),
        lambda: RandomSampler(dataset, replacement=True, num_samples=100),
        lambda: DistributedSampler(dataset, 3, 1, seed=5),
    ):
        torch.manual_seed(11)
        plain = [list(sampler) for sampler in [make()] for _ in range(3)]
        torch.manual_seed(11)
        ahead = [list(sampler) for sampler in [Lookahead(make())] for _ in range(3)]
        assert ahead == plain


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_right_in_any_loader(tmp_path: Path, workers: int) -> None:
    dataset = bucket(tmp_path, 50)
    loader = DataLoader(dataset, 8, sampler=Lookahead(RandomSampler(dataset)), num_workers=workers)
    for _ in range(2):
        assert sorted(epoch(loader)) == list(range(50))
    total = dataset.account()
    assert total.samples == 100
    assert total.requests == 100, "each object once an epoch: nothing is fetched in vain"


def test_batch_samplers_weighted_samplers_and_subsets(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 30)
    batches = BatchSampler(RandomSampler(dataset), 7, drop_last=False)
    assert sorted(epoch(DataLoader(dataset, batch_sampler=Lookahead(batches)))) == list(range(30))
    weighted = WeightedRandomSampler([1.0] * 30, 45)
    assert len(epoch(DataLoader(dataset, 4, sampler=Lookahead(weighted, dataset)))) == 45
    train, rest = random_split(dataset, [20, 10], torch.Generator().manual_seed(1))
    for part in (train, rest, Subset(train, range(5, 15))):
        samples = epoch(DataLoader(part, 4, sampler=Lookahead(RandomSampler(part))))
        assert sorted(samples) == sorted(_objects(part))
    assert dataset.account().requests == dataset.account().samples


def _objects(part: Any) -> list[int]:
    """What a subset of a subset means in the bucket."""
    if not isinstance(part, Subset):
        return list(range(len(part)))
    below = _objects(part.dataset)
    return [below[place] for place in part.indices]


def test_the_next_epoch_is_guessed_where_it_can_be_and_only_while_right(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 20)
    sampler = DistributedSampler(dataset, 2, 0)
    ahead = Lookahead(sampler)
    for number in range(3):
        ahead.set_epoch(number)
        order = list(ahead)
        assert sampler.epoch == number
        assert order == list(sampler)
        following = ahead._channel.order(ahead._channel.generation + 1)
        sampler.set_epoch(number + 1)
        assert following is not None
        assert following.tolist() == list(sampler)
        sampler.set_epoch(number)
    # Whoever forgets set_epoch sees the same epoch again: the guess was wrong and is not made again.
    list(ahead)
    assert ahead._channel.order(ahead._channel.generation + 1) is None


def test_what_cannot_be_looked_ahead_in_is_refused(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 3)

    class Endless(Sampler[int]):
        data_source = dataset

        def __iter__(self) -> Any:
            while True:
                yield 0

    with pytest.raises(InputError, match="how long an epoch is"):
        Lookahead(Endless())
    with pytest.raises(InputError, match=r"Lookahead\(sampler, dataset\)"):
        Lookahead(SequentialSampler(range(3)))
    with pytest.raises(InputError, match="need a cache of 2560 samples, not 2048"):
        DeliMode(fetch_items=1024, cache_items=2048, threshold_items=1536)


@pytest.mark.parametrize("kind", ["random", "seeded", "order"])
def test_one_rank_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, kind: str) -> None:
    dataset = bucket(tmp_path, 30)

    def sampler() -> Any:
        if kind == "order":
            return BatchSampler(RandomSampler(dataset), 4, drop_last=False)
        return RandomSampler(dataset, generator=torch.Generator().manual_seed(4) if kind == "seeded" else None)

    first = Lookahead(sampler(), dataset)
    consumed = []
    for number, item in enumerate(first):
        consumed += item if isinstance(item, list) else [item]
        if number == 3:
            break
    state = first.state_dict(len(consumed))
    torch.manual_seed(99)
    second = Lookahead(sampler(), dataset)
    second.load_state_dict(state)
    rest = [number for item in second for number in (item if isinstance(item, list) else [item])]
    assert sorted(consumed + rest) == list(range(30))
    # And the epoch after is a whole one again.
    assert len(list(second)) == len(first)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (4, 1), (3, 3), (1, 4)])
def test_another_number_of_ranks_shares_what_is_left_exactly(tmp_path: Path, before: int, after: int) -> None:
    dataset = bucket(tmp_path, 61)
    ranks = [Lookahead(DistributedSampler(dataset, before, rank, seed=2)) for rank in range(before)]
    steps, batch = 3, 4
    consumed: list[int] = []
    states = []
    for ahead in ranks:
        ahead.set_epoch(5)
        mine = list(ahead)
        consumed += mine[: steps * batch]
        states.append(ahead.state_dict(steps * batch))
    assert all(state == states[0] for state in states)
    rest: list[int] = []
    padding = set()
    for rank in range(after):
        ahead = Lookahead(DistributedSampler(dataset, after, rank, seed=2))
        ahead.load_state_dict(states[0])
        rest += list(ahead)
        padding.add(ahead.padding)
    counts = Counter(consumed + rest)
    assert set(counts) == set(range(61))
    assert padding == {sum(counts.values()) - 61}, "what is consumed twice is what the sampler reports as padding"
    again = Lookahead(DistributedSampler(dataset, after, 0, seed=2))
    again.load_state_dict(states[0])
    taken = list(again)[:2]
    assert again.state_dict(2)["done"] == states[0]["done"] + 2 * after
    assert not set(taken) & set(consumed)


def test_a_position_in_another_bucket_or_order_is_refused(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 10)
    state = Lookahead(DistributedSampler(dataset, 2, 0, seed=1)).state_dict(2)
    with pytest.raises(InputError, match="seed=1"):
        Lookahead(DistributedSampler(dataset, 2, 0, seed=2)).load_state_dict(state)
    with pytest.raises(InputError, match="kind 'distributed'"):
        Lookahead(RandomSampler(dataset)).load_state_dict(state)
    more = bucket(tmp_path, 11, refresh=True)
    with pytest.raises(InputError, match="bucket has changed"):
        Lookahead(DistributedSampler(more, 2, 0, seed=1)).load_state_dict(state)


def test_a_position_between_two_epochs_loses_and_repeats_nothing(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 12)
    for make in (
        lambda: DistributedSampler(dataset, 1, 0),
        lambda: StickySampler(dataset, 1, 0),
        lambda: BatchSampler(DistributedSampler(dataset, 1, 0), 1, drop_last=False),
    ):
        first, second = Lookahead(make()), Lookahead(make())
        first.set_epoch(3)
        order = list(first)
        second.load_state_dict(first.state_dict())
        assert list(second) == [], "of the saved epoch nothing is left"
        second.load_state_dict(first.state_dict())
        second.set_epoch(4)
        assert len(list(second)) == 12
        # Saved again before the first batch: still the same rest.
        second.load_state_dict(first.state_dict(5))
        third = Lookahead(make())
        third.load_state_dict(second.state_dict())
        assert list(third) == order[5:]
        # Saved when the next epoch is set and not begun: all of it is to come.
        first.set_epoch(4)
        third.load_state_dict(first.state_dict())
        assert len(list(third)) == 12
    random = Lookahead(RandomSampler(dataset))
    for state in (random.state_dict(), [list(random), random.state_dict()][1]):
        second = Lookahead(RandomSampler(dataset))
        second.load_state_dict(state)
        assert sorted(second) == list(range(12))


def test_a_position_of_another_rank_or_subset_is_refused(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 12)
    state = Lookahead(StickySampler(dataset, 2, 0, ranks_per_node=1)).state_dict()
    with pytest.raises(InputError, match="rank 0 of 2, this is rank 1 of 2"):
        Lookahead(StickySampler(dataset, 2, 1, ranks_per_node=1)).load_state_dict(state)
    parts = [Subset(dataset, range(6)), Subset(dataset, range(6, 12))]
    with pytest.raises(InputError, match="the subset of it"):
        Lookahead(RandomSampler(parts[1])).load_state_dict(Lookahead(RandomSampler(parts[0])).state_dict())


def test_a_sampler_that_is_gone_leaves_no_order_behind(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 4)
    for _ in range(3):
        assert len(epoch(DataLoader(dataset, 2, sampler=Lookahead(RandomSampler(dataset))))) == 4
    gc.collect()
    assert len(dataset._channels) == 0


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_goes_on_exactly(tmp_path: Path, workers: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader

    dataset = bucket(tmp_path, 50)

    def loader() -> Any:
        return StatefulDataLoader(dataset, 4, sampler=Lookahead(RandomSampler(dataset)), num_workers=workers)

    first, consumed = loader(), []
    for number, batch in enumerate(first):
        consumed += batch.tolist()
        if number == 4:
            state = first.state_dict()
            break
    second = loader()
    second.load_state_dict(state)
    rest = epoch(second)
    assert sorted(consumed + rest) == list(range(50))
    assert sorted(epoch(second)) == list(range(50)), "the epoch after is whole"
    third = loader()
    third.load_state_dict(second.state_dict())
    assert sorted(epoch(third)) == list(range(50)), "so is the one after a position at the end"


def test_sticky_parts_stay_on_their_node(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 40)
    samplers = [StickySampler(dataset, 4, rank, ranks_per_node=2, seed=1) for rank in range(4)]
    nodes: list[set[int]] = [set(), set()]
    orders = []
    for number in range(3):
        everything: list[int] = []
        for rank, sampler in enumerate(samplers):
            sampler.set_epoch(number)
            mine = list(Lookahead(sampler))
            assert len(mine) == len(sampler) == 10
            nodes[rank // 2] |= set(mine)
            everything += mine
        assert sorted(everything) == list(range(40))
        orders.append(everything)
    assert not nodes[0] & nodes[1]
    assert orders[0] != orders[1]
    with pytest.raises(InputError, match="same number of ranks"):
        StickySampler(dataset, 4, 0, ranks_per_node=3)


def test_a_sample_that_cannot_be_decoded_is_named_or_left_out(tmp_path: Path) -> None:
    dataset = bucket(tmp_path, 10)
    broken = tmp_path / "objects" / "0004.txt"
    broken.write_text("nonsense")
    with pytest.raises(ObjectError, match=r"0004\.txt has changed since it was listed"):
        epoch(DataLoader(dataset, 5))
    with pytest.raises(ValueError, match="invalid literal") as caught:
        epoch(DataLoader(bucket_of(tmp_path, refresh=True), 5))
    assert "0004.txt" in caught.value.__notes__[0]
    left_out = bucket_of(tmp_path, on_error="skip")
    with pytest.warns(UserWarning, match="sample 4 is left out"):
        assert epoch(DataLoader(left_out, 5)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert left_out.account().skipped == 1


def bucket_of(folder: Path, **options: Any) -> BucketDataset[int]:
    return BucketDataset(f"file://{folder}/objects", number_of, index_folder=folder / "indexes", **options)
