"""Whole plans."""

import math
from dataclasses import replace

import pytest

from stallwise.errors import InputError
from stallwise.spot.lifetimes.models import Lifetime
from stallwise.spot.lifetimes.published import published_lifetimes_in
from stallwise.spot.plan.fleet import MachineKind
from stallwise.spot.plan.planner import make_plan
from stallwise.spot.plan.request import SpotRequest

H = 3600.0


AGREE = 0.02
"""How far Monte Carlo and closed form may lie apart where the closed form's assumptions hold."""


def kind(life: Lifetime, **changes: float) -> MachineKind:
    return replace(MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=life), **changes)


def question(**changes: object) -> SpotRequest:
    made = SpotRequest(
        name="job", work_s=20 * H, save_s=20, provision_s=90, restart_s=80, machines=4, replays=500,
        kind=kind(published_lifetimes_in("V100", "us-central1").life()), deadline_s=24 * H, budget_usd=120.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_plan_has_every_part() -> None:
    found = make_plan(question())
    assert found.result.finish_s.low <= found.result.finish_s.median <= found.result.finish_s.high
    assert found.closed.total_s + 170 == pytest.approx(found.result.finish_s.mean, rel=AGREE)
    assert {"on-demand", "switch in time", "mix", "replace", "on loss", "saving", "start-up"} <= {
        lever.name for lever in found.levers
    }
    assert found.on_demand.cost_usd.mean == pytest.approx(4 * 3.0 * (found.on_demand.finish_s.mean - 90) / H)
    worth = {(lever.name, lever.description): lever for lever in found.levers}
    assert worth["saving", "checkpoints saved twice as fast"].saved_s > 0
    assert worth["start-up", "machines and training back twice as fast"].saved_s > 0
    levels = [value for _, value in found.finish_quantiles]
    assert levels == sorted(levels)
    assert found.verdict.startswith("Cheapest of what meets the limits")


def test_the_chosen_interval_beats_those_around_it() -> None:
    found = make_plan(question())
    assert found.interval.tried
    assert min(mean for _, mean in found.interval.tried) == dict(found.interval.tried)[found.interval.used_s]
    assert found.interval.schedule_s


def test_a_plan_without_checkpoints_is_refused_with_what_would_be_lost() -> None:
    with pytest.raises(
        InputError, match=r"Without checkpoints a loss of any of 4 spot machines .* 20 h of work, .* of them lost"
    ):
        make_plan(question(interval_s=math.inf))
    assert make_plan(question(interval_s=math.inf, on_demand=4)).result.losses == 0


def test_nothing_meets_what_cannot_be_met() -> None:
    assert make_plan(question(deadline_s=H)).verdict.startswith("Nothing looked at meets the limits")
