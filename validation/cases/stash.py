"""What Stash's formulas and prices imply whatever is measured."""

from pathlib import Path

from stallwise.model.statistics.stalls import StashTimes, stash_stalls
from stallwise.model.step.epoch import cost_usd
from validation.cases.catalog import on_demand_usd_per_h
from validation.formulas import increase
from validation.harness import Case

# Any pair of times shows the identity; these are the minutes a user measured on one and on two machines.
_SINGLE_S, _SPREAD_S = 36.5 * 60, 105.8 * 60


def _price_ratio(half: str, whole: str) -> Case:
    return Case(
        id="stash-22",
        case=f"price of two {half} over one {whole}",
        source="aakash-sharma/DS-Analyzer, its prices of 2022",
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
    found = stash_stalls(StashTimes(ranks_per_machine=8, t0_s=1.0, t1_s=1.0, tn_s=1.0, t2_s=1.0, t3_s=1.0))
    return max(
        abs(stall.percent)
        for stall in (found.interconnect, found.network, found.prep, found.fetch)
        if stall is not None
    )


CASES = (
    _price_ratio("p2.8xlarge", "p2.16xlarge"),
    _price_ratio("p3.8xlarge", "p3.16xlarge"),
    Case(
        id="stash-22",
        case="extra cost less extra time of 2 × p3.8xlarge against one p3.16xlarge",
        source="an identity: same rate per GPU, same number of GPUs",
        method="Twice the shipped on-demand price of the half-size machine over that of the whole one.",
        published=0.0,
        unit="points",
        tolerance=0.1,
        compute=_cost_minus_time_points,
    ),
    Case(
        id="stash-23",
        case="largest of Stash's four stalls when all its runs take equally long",
        source="aakash-sharma/DS-Analyzer: its formulas as they are meant",
        method="Our Stash view for t0 = t1 = tN = t2 = t3, which must show no stall.",
        published=0.0,
        unit="%",
        tolerance=0.0,
        compute=_largest_stall_of_equal_times,
    ),
)
