"""When a fleet's job ends, what it costs until then, and the decisions that follow from it. Pure functions."""

import math
from dataclasses import dataclass

from stallwise.fleet._backend import Market
from stallwise.fleet.plan import FleetPlan
from stallwise.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForecast:
    """End of the job from the first order, and dollars in all, with 80 % intervals; None: work left is not known."""

    eta_s: float
    eta_low_s: float
    eta_high_s: float
    usd: float
    usd_low: float
    usd_high: float


def work_left_s(plan: FleetPlan, fraction: float | None, full_rate: float | None) -> float | None:
    """Seconds of work left at the full fleet's speed: as measured (`full_rate`, fractions per second), else planned."""
    if fraction is None:
        return None
    if full_rate:
        return (1.0 - fraction) / full_rate
    return None if plan.work_s is None else plan.work_s * (1.0 - fraction)


def forecast(
    plan: FleetPlan, *, now_s: float, left_s: float, training: int, spent_usd: float, market: Market, usd_per_h: float
) -> FleetForecast:
    """Forecast from `left_s` of work at full speed; the planned overhead of losses and its interval go on."""
    stretch = plan.stretch if market == "spot" else 1.0
    present_s = _remaining_s(plan, left_s, training)
    ahead_s = present_s + left_s * (stretch - 1.0)
    low, high = plan.spread
    # What is certain is not scaled: work on the machines that are there takes at least its time.
    low_s, high_s = max(present_s, ahead_s * low), ahead_s * high
    rate = plan.machines * usd_per_h / SECONDS_PER_HOUR
    return FleetForecast(
        eta_s=now_s + ahead_s,
        eta_low_s=now_s + min(low_s, ahead_s),
        eta_high_s=now_s + high_s,
        usd=spent_usd + rate * ahead_s,
        usd_low=spent_usd + rate * min(low_s, ahead_s),
        usd_high=spent_usd + rate * high_s,
    )


def _remaining_s(plan: FleetPlan, left_s: float, training: int) -> float:
    """Seconds until the work is done, where missing machines come after a boot if they still pay."""
    boot_s, machines = plan.provision_s + plan.restart_s, plan.machines
    if training == 0:
        return boot_s + left_s
    without_s = left_s * machines / min(training, machines)
    if training >= machines or without_s <= boot_s:
        return without_s
    return min(without_s, boot_s + left_s - boot_s * training / machines)


def replacement_pays(left_s: float, machines: int, training: int, boot_s: float, pause_s: float) -> bool:
    """Whether the job ends earlier if a machine is ordered now, which comes after `boot_s` and pauses all `pause_s`.

    CM-DARE's ETA after a revocation, with the work that is done meanwhile: speed is in proportion to machines.
    """
    if training >= machines:
        return False
    if training == 0:
        return True
    without_s = left_s * machines / training
    if without_s <= boot_s:
        return False
    with_s = boot_s + pause_s + (left_s - boot_s * training / machines) * machines / (training + 1)
    return with_s < without_s


def must_switch(plan: FleetPlan, *, now_s: float, left_s: float, margin_s: float) -> bool:
    """Whether this is the last moment to go to on-demand for the deadline, one more loss included (Wu et al., 2024)."""
    if plan.deadline_s is None or plan.on_demand_usd_per_h is None:
        return False
    once_s = plan.provision_s + plan.restart_s + min(plan.interval_s, left_s)
    return now_s + left_s + once_s + margin_s >= plan.deadline_s


def budget_reached(plan: FleetPlan, *, spent_usd: float, usd_per_h: float, ahead_s: float) -> bool:
    """Whether another `ahead_s` at `usd_per_h` for all machines would pass the budget."""
    ahead_usd = usd_per_h * ahead_s / SECONDS_PER_HOUR
    return plan.budget_usd is not None and spent_usd + ahead_usd >= plan.budget_usd and math.isfinite(ahead_usd)
