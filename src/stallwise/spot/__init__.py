"""Spot machines: how long they live, and what a job takes and costs on a fleet that loses some.

| package   | contents                                                                             |
| --------- | ------------------------------------------------------------------------------------ |
| lifetimes | logs of machines, distributions fitted to them with censoring, published tables       |
| plan      | plans for a job: closed forms, Monte Carlo, replays of a log, checkpoints, prices     |
"""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.spot.lifetimes.fit import estimate_lifetime, fit_log
    from stallwise.spot.lifetimes.readers import read_log
    from stallwise.spot.plan.fleet import MachineKind
    from stallwise.spot.plan.planner import make_plan
    from stallwise.spot.plan.prices import PriceRule, SpotPrices, read_prices
    from stallwise.spot.plan.request import SpotPlan, SpotRequest

__all__ = [
    "MachineKind",
    "PriceRule",
    "SpotPlan",
    "SpotPrices",
    "SpotRequest",
    "estimate_lifetime",
    "fit_log",
    "make_plan",
    "read_log",
    "read_prices",
]

__getattr__ = loader(
    __name__,
    {
        "MachineKind": "plan.fleet",
        "PriceRule": "plan.prices",
        "SpotPlan": "plan.request",
        "SpotPrices": "plan.prices",
        "SpotRequest": "plan.request",
        "estimate_lifetime": "lifetimes.fit",
        "fit_log": "lifetimes.fit",
        "make_plan": "plan.planner",
        "read_log": "lifetimes.readers",
        "read_prices": "plan.prices",
    },
)
