"""Kaplan-Meier and fitted distributions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.spot.lifetimes.fit import by_hour, estimate_lifetime, fit_exponential, fit_weibull
from stallwise.spot.lifetimes.log import MachineLife
from stallwise.spot.lifetimes.models import (
    Bathtub,
    Weibull,
    kaplan_meier,
)
from tests.conftest import needs

H = 3600.0


def drawn(count: int = 400, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Weibull lives, half of them stopped by their owner at a random time."""
    random = np.random.default_rng(seed)
    life, stop = 20 * H * random.weibull(0.7, count), random.uniform(0, 40 * H, count)
    return np.minimum(life, stop), life <= stop


def test_kaplan_meier_is_that_of_lifelines() -> None:
    lifelines = needs("lifelines")
    lived_s, lost = drawn()
    ours = kaplan_meier(lived_s, lost)
    theirs = lifelines.KaplanMeierFitter().fit(lived_s, lost)
    at = np.linspace(0, lived_s.max(), 50)
    assert 1 - ours.cdf(at) == pytest.approx(theirs.predict(at).to_numpy(), abs=1e-9)
    band = theirs.confidence_interval_
    place = np.searchsorted(band.index.to_numpy(), at[1:], side="right") - 1
    low, high = ours.cdf_bounds(at[1:])
    assert 1 - high == pytest.approx(band.iloc[place, 0].to_numpy(), abs=1e-6)
    assert 1 - low == pytest.approx(band.iloc[place, 1].to_numpy(), abs=1e-6)


def test_weibull_and_exponential_are_those_of_lifelines() -> None:
    lifelines = needs("lifelines")
    lived_s, lost = drawn()
    ours = fit_weibull(lived_s, lost)
    theirs = lifelines.WeibullFitter().fit(lived_s / H, lost)
    assert ours.scale_s / H == pytest.approx(theirs.lambda_, rel=1e-3)
    assert ours.shape == pytest.approx(theirs.rho_, rel=1e-3)
    mean_h = lifelines.ExponentialFitter().fit(lived_s / H, lost).lambda_
    assert fit_exponential(lived_s, lost).mean_s / H == pytest.approx(mean_h, rel=1e-4)


def test_stops_are_not_losses() -> None:
    lives = [MachineLife(lived_s=H, lost=False)] * 50 + [MachineLife(lived_s=2 * H, lost=True)] * 50
    found = estimate_lifetime(lives, "log")
    assert float(found.survival.cdf(1.5 * H)) == 0
    assert found.mean_s == pytest.approx(150 * H / 50)


def test_the_right_shape_is_chosen_and_its_parameters_come_back() -> None:
    lived_s, lost = drawn(3000)
    found = estimate_lifetime(
        [MachineLife(lived_s=float(t), lost=bool(x)) for t, x in zip(lived_s, lost, strict=True)], "log"
    )
    assert found.best.name == "Weibull"
    life = found.best.life
    assert isinstance(life, Weibull)
    assert life.shape == pytest.approx(0.7, rel=0.05)
    assert life.scale_s == pytest.approx(20 * H, rel=0.1)


def test_a_bathtub_comes_back() -> None:
    truth = Bathtub(0.4, 1.0 * H, 0.8 * H, 24 * H)
    grid = np.linspace(0, 24 * H, 50_000)
    u = np.random.default_rng(1).random(2000)
    lives = np.interp(u, truth.cdf(grid[:-1]), grid[:-1])
    found = estimate_lifetime([MachineLife(lived_s=float(t), lost=True) for t in lives], "log")
    assert found.best.name == "bathtub"
    life = found.best.life
    assert isinstance(life, Bathtub)
    assert (life.scale, life.early_s / H) == pytest.approx((0.4, 1.0), rel=0.15)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(1, 1e6), st.booleans()), min_size=1, max_size=60))
def test_the_curve_falls_and_stays_inside_its_band(rows: list[tuple[float, bool]]) -> None:
    lived_s, lost = np.array([t for t, _ in rows]), np.array([x for _, x in rows])
    found = kaplan_meier(lived_s, lost)
    assert np.all(np.diff(found.alive) <= 1e-12)
    assert np.all((found.low <= found.alive + 1e-12) & (found.alive <= found.high + 1e-12))
    assert np.all((found.low >= 0) & (found.high <= 1))


def test_only_censored_rows_are_an_error_with_the_time_watched() -> None:
    with pytest.raises(InputError, match=r"None of the 3 machines .* all rows are censored \(6 machine-hours"):
        estimate_lifetime([MachineLife(lived_s=2 * H, lost=False)] * 3, "log.csv")


def test_losses_by_hour_of_day_count_the_hours_watched() -> None:
    import datetime as dt

    began = dt.datetime(2026, 1, 1, 22, 30)
    rows = by_hour(
        [MachineLife(lived_s=2 * H, lost=True, began=began), MachineLife(lived_s=H / 2, lost=False, began=began)]
    )
    watched = {row.hour: (row.losses, row.machine_h) for row in rows if row.machine_h}
    assert watched == {22: (0, 1.0), 23: (0, 1.0), 0: (1, 0.5)}
