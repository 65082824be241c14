"""Prices that move: laws of the rules, both loops against each other and against sums by hand, files."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.lifetimes.models import Exponential
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import MachineKind, OnLoss, uniform_fleet
from stallwise.spot.plan.planner import make_plan
from stallwise.spot.plan.prices import STATIC, PriceRule, SpotPrices, read_prices, steady_spend
from stallwise.spot.plan.request import SpotRequest
from stallwise.spot.plan.simulate import replay, simulate

H = 3600.0
ALWAYS = AvailabilityTrace(np.array([0.0]), np.array([64]), 1e9)
KIND = MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=Exponential(math.inf))
WORK = JobWork(work_s=100 * H, interval_s=1800, save_s=20, provision_s=90, restart_s=60)
BOTH = 0.005
"""How far the two loops may lie apart on a fleet that is never lost: they count one start-up differently."""


def steps(*usd: float, hours: float = 6.0, times: int = 100) -> SpotPrices:
    return SpotPrices(np.arange(times * len(usd)) * hours * H, np.tile(usd, times), times * len(usd) * hours * H)


MOVING = steps(1.0, 2.0, 1.0, 0.5)
CAP = PriceRule(cap_usd_per_h=1.5)


def test_a_constant_price_is_a_price() -> None:
    fleet = uniform_fleet(replace(KIND, life=Exponential(50 * H)), 4)
    flat, plain = simulate(WORK, fleet, replays=300, prices=steps(1.0)), simulate(WORK, fleet, replays=300)
    assert flat.finish_s.tolist() == plain.finish_s.tolist()
    assert flat.cost_usd == pytest.approx(plain.cost_usd)
    twice = simulate(WORK, fleet, replays=300, prices=steps(2.0))
    assert twice.cost_usd == pytest.approx(2 * plain.cost_usd)


def test_bills_by_hand() -> None:
    """Ten hours from the start of the series: six at $1, four at $2; with a cap the four wait for the third step."""
    work = JobWork(work_s=10 * H, interval_s=10 * H, save_s=0)
    prices = steps(1.0, 2.0, 1.0, 2.0, hours=6, times=1)
    static = replay(work, ALWAYS, 2, np.zeros(1), prices=prices, price_starts_s=np.zeros(1), spot_usd_per_h=1)
    assert (static.finish_s[0], static.cost_usd[0]) == pytest.approx((10 * H, 2 * (6 * 1 + 4 * 2)))
    capped = replay(work, ALWAYS, 2, np.zeros(1), prices=prices, rule=CAP, price_starts_s=np.zeros(1), spot_usd_per_h=1)
    assert (capped.finish_s[0], capped.cost_usd[0]) == pytest.approx((16 * H, 2 * 10 * 1))
    assert capped.losses[0] == 0
    # A spend of $4/h holds 4 machines at $1 and 2 at $2: 6 h at twice the speed are more than all of it.
    rule = PriceRule(spend_usd_per_h=4.0)
    grown = replay(
        work, ALWAYS, 2, np.zeros(1), prices=prices, rule=rule, on_loss="shrink", price_starts_s=np.zeros(1),
        spot_usd_per_h=1,
    )  # fmt: skip
    assert (grown.finish_s[0], grown.cost_usd[0]) == pytest.approx((5 * H, 4 * 5))


@pytest.mark.parametrize("on_loss", ["wait", "shrink", "carry-on"])
@pytest.mark.parametrize("rule", [STATIC, CAP, steady_spend(MOVING, 4)], ids=["static", "cap", "spend"])
def test_both_loops_agree_where_nothing_is_lost(rule: PriceRule, on_loss: OnLoss) -> None:
    drawn = simulate(WORK, uniform_fleet(KIND, 4), replays=100, prices=MOVING, rule=rule, on_loss=on_loss)
    traced = replay(
        WORK, ALWAYS, 4, np.zeros(100), prices=MOVING, rule=rule, on_loss=on_loss, spot_usd_per_h=KIND.spot_usd_per_h
    )
    assert drawn.time().mean == pytest.approx(traced.time().mean, rel=BOTH)
    assert drawn.cost().mean == pytest.approx(traced.cost().mean, rel=BOTH)
    assert drawn.losses.max() == traced.losses.max() == 0


@settings(max_examples=20, deadline=None)
@given(
    usd=st.lists(st.floats(0.3, 3.0), min_size=2, max_size=6),
    cap=st.floats(0.5, 3.0),
    mean_h=st.floats(20, 500),
)
def test_laws_of_any_series(usd: list[float], cap: float, mean_h: float) -> None:
    prices = steps(*usd, hours=5)
    fleet = uniform_fleet(replace(KIND, life=Exponential(mean_h * H)), 3)
    work = replace(WORK, work_s=20 * H)
    static = simulate(work, fleet, replays=60, prices=prices)
    rented_h = static.finish_s * 3 / H
    assert np.all(static.cost_usd <= rented_h * max(usd) + 1e-9)
    if cap < min(usd):
        with pytest.raises(InputError, match="never at or below"):
            simulate(work, fleet, replays=60, prices=prices, rule=PriceRule(cap_usd_per_h=cap))
        return
    capped = simulate(work, fleet, replays=60, prices=prices, rule=PriceRule(cap_usd_per_h=cap))
    assert capped.finish_s.mean() >= static.finish_s.mean() * (1 - 1e-3)
    # A machine-hour under a cap costs at most the cap, but for saving before it is let go.
    changes = capped.finish_s / (5 * H) + 1
    assert np.all(capped.cost_usd <= 3 * cap * (capped.finish_s + changes * work.save_s) / H + 1e-9)


def test_a_deadline_is_met_under_a_cap_too() -> None:
    fleet, deadline_s = uniform_fleet(replace(KIND, life=Exponential(200 * H)), 4), 110 * H
    free = simulate(WORK, fleet, replays=200, prices=MOVING, rule=CAP)
    bound = simulate(WORK, fleet, replays=200, prices=MOVING, rule=CAP, deadline_s=deadline_s)
    assert free.within(deadline_s) == 0
    assert bound.within(deadline_s) == 1
    assert free.cost().mean < bound.cost().mean


def question(**changes: object) -> SpotRequest:
    made = SpotRequest(
        name="job", work_s=60 * H, save_s=20, provision_s=90, restart_s=80, machines=4, replays=300,
        kind=replace(KIND, life=Exponential(100 * H)), prices=MOVING,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_plan_holds_dynamic_against_static() -> None:
    found = make_plan(question())
    said = {lever.description.partition(" ")[0]: lever for lever in found.levers if lever.name == "price"}
    assert set(said) == {"no", "as"}
    assert said["no"].saved_usd > 0 > said["no"].saved_s, "a cap waits for cheap hours"
    assert said["as"].saved_usd > 0, "a steady spend buys more of the cheap hours"
    capped = make_plan(question(rule=CAP))
    assert any("whatever they cost" in lever.description for lever in capped.levers)
    assert found.on_demand.cost_usd.mean == pytest.approx(4 * 3.0 * (found.on_demand.finish_s.mean - 90) / H)


def test_what_does_not_go_together_is_said() -> None:
    with pytest.raises(InputError, match="one kind of machine"):
        question(others=((KIND, 1, 0),))
    with pytest.raises(InputError, match="needs prices that move"):
        question(prices=None, rule=CAP)
    with pytest.raises(InputError, match="above 0"):
        PriceRule(cap_usd_per_h=0)
    with pytest.raises(InputError, match="above 0"):
        steps(1.0, 0.0)


def test_files(tmp_path: Path) -> None:
    rows = {
        "date": ["2026-01-01", "2026-01-02", "2026-01-01", "2026-01-02"],
        "instance_type": ["g", "g", "g", "g"],
        "az": ["a", "a", "b", "b"],
        "spot_usd_h": [1.0, 1.5, 2.0, 2.5],
    }
    pl.DataFrame(rows).with_columns(pl.col("date").str.to_date()).write_parquet(tmp_path / "p.parquet")
    pl.DataFrame(rows).write_csv(tmp_path / "p.csv")
    entries = [
        {"Timestamp": f"{day}T00:00:00+00:00", "InstanceType": "g", "AvailabilityZone": zone, "SpotPrice": str(usd)}
        for day, zone, usd in zip(rows["date"], rows["az"], rows["spot_usd_h"], strict=True)
    ]
    (tmp_path / "p.json").write_text(json.dumps({"SpotPriceHistory": entries[::-1]}))
    for name in ("p.parquet", "p.csv", "p.json"):
        found = read_prices(tmp_path / name, zone="b")
        assert found.at_s.tolist() == [0.0, 24 * H], name
        assert found.usd_per_h.tolist() == [2.0, 2.5], name
        assert found.end_s == 48 * H, name
    with pytest.raises(InputError, match=r"2 zones \(a, b\)\. Choose one"):
        read_prices(tmp_path / "p.csv")
    with pytest.raises(InputError, match="No zone with prices"):
        read_prices(tmp_path / "p.csv", zone="c")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no prices"),
        ("{}", "holds no prices"),
        ("date,cost\n2026-01-01,1\n", "no column spot_usd_h"),
        ("date,spot_usd_h\n2026-01-01,1\n", "1 prices; two"),
        ("date,spot_usd_h\n2026-01-01,1\nyesterday,2\n", "a time not like"),
        ("date,spot_usd_h\n2026-01-01,1\n2026-01-02,much\n", "no number"),
        ("date,spot_usd_h\n2026-01-01,1\n2026-01-02,-2\n", "above 0"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_prices(tmp_path / "p.csv")
