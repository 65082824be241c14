"""Stash, DS-Analyzer and CoorDL. Numbers are the rows of section 6 of the reference."""

from pathlib import Path

from stallwise.model.cost import cost_usd, increase
from stallwise.model.stash import Times, stalls
from validation.cases.catalog import on_demand_usd_per_h
from validation.harness import Case

# Any pair of times shows the identity; these are the minutes a user measured on one and on two machines (stash.md 1.8).
_SINGLE_S, _SPREAD_S = 36.5 * 60, 105.8 * 60

_FORMULAS = "stash.md 1.3 and 1.4, the intended and the coded formulas"
_EQUAL_TIMES = (
    "Our Stash view for t0 = t1 = tN = t2 = t3, which must show no stall; and the released code's formula for the disk "
    "stall, given a synthetic run of half the samples: its bias of 100/d %, which our view does not have."
)


def _price_ratio(half: str, whole: str) -> Case:
    return Case(
        id="stash-22",
        case=f"price of two {half} over one {whole}",
        source="stash.md 1.6",
        method="Twice the shipped on-demand price of the half-size machine over that of the whole one.",
        published=1.0,
        unit="",
        tolerance=0.001,
        compute=lambda _: 2 * on_demand_usd_per_h(half) / on_demand_usd_per_h(whole),
    )


def _cost_minus_time_points(_: Path) -> float:
    spread = cost_usd(_SPREAD_S, on_demand_usd_per_h("p3.8xlarge"), machines=2)
    single = cost_usd(_SINGLE_S, on_demand_usd_per_h("p3.16xlarge"))
    return 100 * (increase(spread, single) - increase(_SPREAD_S, _SINGLE_S))


def _largest_stall_of_equal_times(_: Path) -> float:
    found = stalls(Times(ranks_per_machine=8, t0_s=1.0, t1_s=1.0, tn_s=1.0, t2_s=1.0, t3_s=1.0))
    return max(
        abs(stall.percent)
        for stall in (found.interconnect, found.network, found.prep, found.fetch)
        if stall is not None
    )


def _coded_disk_percent(t1_s: float, t2_s: float, t3_s: float, divisor: float) -> float:
    """Stash's disk stall as released: the synthetic run has 1/divisor of the samples and is not scaled up again."""
    return 100 * (t1_s + (t2_s - t3_s) / divisor) / t2_s


CASES = (
    _price_ratio("p2.8xlarge", "p2.16xlarge"),
    _price_ratio("p3.8xlarge", "p3.16xlarge"),
    Case(
        id="stash-22",
        case="extra cost less extra time of 2 × p3.8xlarge against one p3.16xlarge",
        source="stash.md 1.6, identity",
        method="Twice the shipped on-demand price of the half-size machine over that of the whole one.",
        published=0.0,
        unit="points",
        tolerance=0.1,
        compute=_cost_minus_time_points,
    ),
    Case(
        id="stash-23",
        case="largest of Stash's four stalls when all its runs take equally long",
        source=_FORMULAS,
        method=_EQUAL_TIMES,
        published=0.0,
        unit="%",
        tolerance=0.0,
        compute=_largest_stall_of_equal_times,
    ),
    Case(
        id="stash-23",
        case="disk stall of the released code when all runs take equally long, division factor 2",
        source=_FORMULAS,
        method=_EQUAL_TIMES,
        published=50.0,
        unit="%",
        tolerance=0.001,
        compute=lambda _: _coded_disk_percent(0.5, 1.0, 1.0, 2.0),
    ),
)
