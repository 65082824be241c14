"""Fleets that follow their price beside fleets that do not, on every long AWS price series of the catalog's history.

A week of work on four machines of which one is lost every 200 h. *Static* holds four, whatever they cost; *cap* holds
none while one costs more than in three quarters of the year before; *dynamic* holds as many as the mean price of that
year times four buys, up to eight. A rule knows only the year before the jobs it is judged on, which start in the days
that follow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from benchmarks.harness import Result
from stallwise.spot.lifetimes.models import Exponential
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import MachineKind, uniform_fleet
from stallwise.spot.plan.prices import STATIC, PriceRule, SpotPrices, steady_spend
from stallwise.spot.plan.simulate import Outcomes, simulate
from validation.harness import data_folder

_DAY_S = 86400.0
_HISTORY = "catalog/aws_spot_history.parquet"
_LEARNED_DAYS, _JUDGED_DAYS = 365, 365
_MACHINES, _REPLAYS = 4, 200
_WORK = JobWork(work_s=7 * _DAY_S, interval_s=3600, save_s=30, provision_s=90, restart_s=60)


@dataclass(frozen=True)
class Compared:
    """Cost and time of a rule over those of the static fleet, in one series; nan for a cap that is never met."""

    cap: tuple[float, float]
    dynamic: tuple[float, float]


def all_series() -> Iterator[tuple[SpotPrices, SpotPrices]]:
    """A year to learn from and the year after it, of every type and zone that has both without longer holes."""
    path = data_folder() / _HISTORY
    if not path.is_file():
        return
    table = pl.read_parquet(path).drop_nulls("spot_usd_h").sort("date")
    for _, rows in table.group_by("instance_type", "az", maintain_order=True):
        at_s = rows["date"].cast(pl.Int32).to_numpy() * _DAY_S
        usd = rows["spot_usd_h"].cast(pl.Float64).to_numpy()
        at_s = at_s - at_s[0]
        middle, end = _LEARNED_DAYS * _DAY_S, (_LEARNED_DAYS + _JUDGED_DAYS) * _DAY_S
        if at_s[-1] < end or np.diff(at_s[at_s < end]).max() > 7 * _DAY_S:
            continue
        before, after = at_s < middle, (at_s >= middle) & (at_s < end)
        yield SpotPrices(at_s[before], usd[before], middle), SpotPrices(at_s[after], usd[after], end)


def compare(learned: SpotPrices, judged: SpotPrices) -> Compared:
    """The three rules on one series."""
    kind = MachineKind(
        name="spot", usd_per_h=0.0, spot_usd_per_h=learned.mean_usd_per_h, life=Exponential(200 * 3600.0)
    )

    def run(rule: PriceRule) -> Outcomes:
        fleet = uniform_fleet(kind, _MACHINES)
        return simulate(_WORK, fleet, replays=_REPLAYS, on_loss="shrink", prices=judged, rule=rule, threads=1)

    static = run(STATIC)

    def beside(rule: PriceRule) -> tuple[float, float]:
        found = run(rule)
        return found.cost().mean / static.cost().mean - 1, found.time().mean / static.time().mean - 1

    cap = learned.quantile(0.75)
    reachable = float(judged.usd_per_h.min()) <= cap and float(judged.usd_per_h[-30:].min()) <= cap
    return Compared(
        cap=beside(PriceRule(cap_usd_per_h=cap)) if reachable else (np.nan, np.nan),
        dynamic=beside(steady_spend(learned, _MACHINES)),
    )


def measure() -> list[Result]:
    """Medians over series; the bar: following the price costs no more than not following it."""
    found = [compare(learned, judged) for learned, judged in all_series()]
    if not found:
        return [
            Result(claim="fleets that follow their price", measured="no price series; set STALLWISE_DATA", held=False)
        ]
    cost, time = np.median([one.dynamic for one in found], axis=0) * 100
    best, worst = np.quantile([one.dynamic[0] for one in found], [0.1, 0.9]) * 100
    never = sum(not np.isfinite(one.cap[0]) for one in found)
    cap_cost, cap_time = np.nanmedian([one.cap for one in found], axis=0) * 100
    return [
        Result(
            claim=f"fleets that follow their price cost no more than static ones, {len(found)} AWS price series",
            measured=f"dynamic {cost:+.1f} % cost ({best:+.1f} to {worst:+.1f}), {time:+.1f} % time; cap "
            f"{cap_cost:+.1f} % cost, {cap_time:+.1f} % time, out of reach at the end of {never} series",
            held=bool(cost <= 0),
        )
    ]
