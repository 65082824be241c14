"""Importance sampling: it must be asked for, it favours what is hard, and it says what it draws by."""

from collections import Counter

import numpy as np
import pytest
import torch

from stallwise.data import ImportanceSampler
from stallwise.errors import InputError


def made(count: int = 200, **options: object) -> ImportanceSampler:
    return ImportanceSampler(range(count), changes_the_distribution=True, **options)  # type: ignore[arg-type]


def test_it_must_be_asked_for_by_name() -> None:
    with pytest.raises(InputError, match="changes_the_distribution=True"):
        ImportanceSampler(range(10))


def test_before_any_loss_all_are_alike() -> None:
    assert np.allclose(made().weights(), 1 / 200)


def test_harder_samples_are_drawn_more_often() -> None:
    sampler = made(smoothing=0.0)
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
    first, second = made(seed=1), made(seed=1)
    orders = [list(first), list(first)]
    assert [len(order) for order in orders] == [200, 200]
    assert orders[0] != orders[1]
    second.set_epoch(1)
    assert list(second) == orders[1]


def test_cached_samples_are_repeated_only_while_training_improves() -> None:
    cached = set(range(40))
    sampler = made(is_cached=lambda number: number in cached, repeat=3.0)
    hits = sum(number in cached for number in sampler)
    sampler.improving(False)
    plain = sum(number in cached for number in sampler)
    assert plain == pytest.approx(40, abs=20)
    assert hits == pytest.approx(3 * 40, abs=45)


def test_losses_that_are_not_numbers_do_not_break_it() -> None:
    sampler = made(4)
    sampler.learn([0, 1, 2], [float("nan"), 1.0, 2.0])
    assert np.isfinite(sampler.weights()).all()
    with pytest.raises(InputError, match="one loss per sample"):
        sampler.learn([0, 1], [1.0])
