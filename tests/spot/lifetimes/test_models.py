"""Distributions of lifetimes."""

import numpy as np
import pytest

from stallwise.spot.lifetimes.models import (
    Bathtub,
    Exponential,
    TabulatedLifetime,
    Weibull,
    first_loss_in_fleet,
    lost_between,
)

H = 3600.0


@pytest.mark.parametrize("life", [Exponential(5 * H), Weibull(5 * H, 0.6), Bathtub(0.4137, 0.9 * H, 0.76 * H, 24 * H)])
def test_a_lifetime_is_a_distribution(life: Exponential | Weibull | Bathtub) -> None:
    at = np.linspace(0, 48 * H, 2000)
    gone = life.cdf(at)
    assert gone[0] == pytest.approx(0, abs=1e-9)
    assert np.all(np.diff(gone) >= -1e-12)
    assert gone.max() <= 1
    area = float(np.sum(1 - life.cdf(np.arange(0, 4000 * H, 120.0))) * 120)
    assert life.mean_s == pytest.approx(area, rel=0.01)


def test_chances_are_conditional_on_being_alive() -> None:
    life = Bathtub(0.4137, 0.9 * H, 0.76 * H, 24 * H)
    plain = float(life.cdf(6 * H) - life.cdf(5 * H))
    assert float(lost_between(life, 5 * H, 6 * H)) == pytest.approx(plain / (1 - float(life.cdf(5 * H))))
    assert float(lost_between(life, 23 * H, 25 * H)) == 1
    # Without memory age does not matter.
    assert float(lost_between(Exponential(H), 7 * H, 8 * H)) == pytest.approx(1 - np.exp(-1))


def test_the_first_loss_of_a_fleet_comes_sooner() -> None:
    first = first_loss_in_fleet(Exponential(64 * H), 64, 10 * H)
    assert float(first.cdf(H)) == pytest.approx(1 - np.exp(-1), abs=1e-3)


def test_a_table_ends_in_its_tail() -> None:
    table = TabulatedLifetime(np.array([0.0, H]), np.array([0.0, 0.5]), tail_per_s=1 / H)
    assert float(table.cdf(2 * H)) == pytest.approx(1 - 0.5 * np.exp(-1))
    assert table.mean_s == pytest.approx(0.75 * H + 0.5 * H)
    assert TabulatedLifetime(np.array([0.0, H]), np.array([0.0, 0.5])).mean_s == np.inf
