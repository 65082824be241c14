"""Stash, DS-Analyzer and CoorDL. Numbers are the rows of section 6 of the reference."""

from pathlib import Path

from stallwise.model.cost import cost_usd, increase
from validation.cases.catalog import on_demand_usd_per_h
from validation.harness import Case

# Any pair of times shows the identity; these are the minutes a user measured on one and on two machines (stash.md 1.8).
_SINGLE_S, _SPREAD_S = 36.5 * 60, 105.8 * 60


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
)
