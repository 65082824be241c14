"""A plan carried out in simulated time: the real manager, on simulated machines that a market takes away.

Nothing runs and nothing waits, so a day takes seconds and the result depends on the seed alone.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stallwise.fleet._backend import BackendError, MachineOrder, Market, ReportedMachine
from stallwise.fleet.jobs import StandInCosts, StandInJob
from stallwise.fleet.ledger import FleetReceipt, receipt
from stallwise.fleet.manager import FleetManager, ManagerTiming
from stallwise.fleet.market import MarketTrace
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import FleetState
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.simulate import delayed, replay
from stallwise.units import SECONDS_PER_HOUR

_GIVE_UP = 50.0


@dataclass
class SimulatedClock:
    """A clock that moves when somebody sleeps."""

    at_s: float = 0.0

    def now_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += max(0.0, seconds)


@dataclass(slots=True)
class _SimulatedMachine:
    order: MachineOrder
    ordered_s: float
    ready_s: float
    ends_s: float
    place: int
    stopped_s: float = math.inf


class SimulatedCloud:
    """A back end whose machines are only written down."""

    def __init__(self, market: MarketTrace) -> None:
        self.clock = SimulatedClock()
        self._market = market
        self._machines: dict[str, _SimulatedMachine] = {}

    def start(self, order: MachineOrder) -> None:
        if order.name in self._machines:
            if self._machines[order.name].order.token != order.token:
                raise BackendError(f"A machine of another fleet has the name {order.name}.", "name-taken")
            return
        now_s, place, ends_s = self.clock.now_s(), -1, math.inf
        if order.market == "spot":
            taken = [one.place for one in self._machines.values() if min(one.ends_s, one.stopped_s) > now_s]
            free = self._market.free_place(now_s, [place for place in taken if place >= 0])
            if free is None:
                raise BackendError("There is no spot machine to be had now.", "no-capacity")
            place, ends_s = free, self._market.end_s(free, now_s)
        ready_s = now_s + self._market.boot_of(order.name)
        self._machines[order.name] = _SimulatedMachine(order, now_s, ready_s, ends_s, place)

    def machines(self, token: str) -> list[ReportedMachine]:
        now_s = self.clock.now_s()
        return [_report(one, now_s, self._market) for one in self._machines.values() if one.order.token == token]

    def stop(self, key: str) -> None:
        one = self._machines.get(key)
        if one is not None:
            one.stopped_s = min(one.stopped_s, self.clock.now_s())

    def usd_per_h(self, market: Market) -> float:
        return self._market.usd_per_h(market, self.clock.now_s())


def _report(one: _SimulatedMachine, now_s: float, market: MarketTrace) -> ReportedMachine:
    end_s = min(one.ends_s, one.stopped_s)
    ended = end_s <= now_s
    return ReportedMachine(
        name=one.order.name,
        token=one.order.token,
        market=one.order.market,
        state="ended" if ended else "running" if one.ready_s <= now_s else "pending",
        ordered_s=one.ordered_s,
        ready_s=one.ready_s if one.ready_s <= min(now_s, end_s) else None,
        ended_s=end_s if ended else None,
        why="" if not ended else "stopped" if one.stopped_s <= one.ends_s else "preempted",
        notice=market.grace_s > 0 and now_s >= one.ends_s - market.grace_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRehearsal:
    """Receipts of a plan carried out several times."""

    plan: FleetPlan
    receipts: tuple[FleetReceipt, ...]

    @property
    def cost_error(self) -> float | None:
        """Mean cost over the planned one, less 1."""
        costs = [one.lived.usd for one in self.receipts]
        return statistics.fmean(costs) / self.plan.usd - 1 if self.plan.usd else None

    @property
    def time_error(self) -> float | None:
        """Mean time over the planned one, less 1."""
        times = [one.lived.time_s for one in self.receipts]
        return statistics.fmean(times) / self.plan.time_s - 1 if self.plan.time_s else None

    @property
    def in_time(self) -> int:
        """How many were done within the deadline."""
        return sum(one.outcome == "done" and one.in_time is not False for one in self.receipts)


def rehearse(
    plan: FleetPlan,
    markets: "list[MarketTrace]",
    costs: StandInCosts,
    timing: ManagerTiming | None = None,
    progress: Callable[[str, int, int | None], None] | None = None,
) -> FleetRehearsal:
    """Carry out the plan once in each of the markets."""
    receipts = []
    for number, market in enumerate(markets):
        if progress is not None:
            progress("rehearsals", number, len(markets))
        receipts.append(_one(plan, market, costs, timing or ManagerTiming(poll_s=15.0)))
    return FleetRehearsal(plan=plan, receipts=tuple(receipts))


def predicted(
    plan: FleetPlan, trace: AvailabilityTrace, begins_s: Sequence[float], costs: StandInCosts, *, notice: bool
) -> FleetPlan:
    """The plan with what the planner of `spot plan` predicts for these moments of the trace: mean and range."""
    if plan.work_s is None or plan.spot_usd_per_h is None:
        return plan
    boot_s = plan.provision_s + costs.start_s
    work = JobWork(
        work_s=plan.work_s,
        interval_s=plan.interval_s,
        save_s=costs.save_s,
        restart_s=costs.notice_s if notice else costs.loss_s,
        join_s=costs.join_s,
        redo=not notice,
    )
    on_demand = plan.on_demand_usd_per_h
    outcomes = replay(
        work,
        delayed(trace, boot_s),
        plan.machines,
        np.asarray(begins_s) + float(trace.at_s[0]),
        usd_per_h=on_demand or 0.0,
        spot_usd_per_h=plan.spot_usd_per_h,
        on_loss="shrink",
        policy="spot only" if plan.deadline_s is None or on_demand is None else "greedy",
        deadline_s=None if plan.deadline_s is None else plan.deadline_s - boot_s,
    )
    ended = np.isfinite(outcomes.finish_s)
    if not ended.any():
        return plan
    # The planner's machines train as soon as they cost; here they start first.
    start_usd = costs.start_s / SECONDS_PER_HOUR * plan.spot_usd_per_h
    times_s = outcomes.finish_s[ended] + boot_s
    usd = outcomes.cost_usd[ended] + (plan.machines + outcomes.losses[ended]) * start_usd
    return replace(
        plan,
        time_s=float(times_s.mean()),
        low_s=float(times_s.min()),
        high_s=float(times_s.max()),
        usd=float(usd.mean()),
        low_usd=float(usd.min()),
        high_usd=float(usd.max()),
        losses=float(outcomes.losses[ended].mean()),
        redone_s=float(outcomes.redone_s[ended].mean()),
    )


def _one(plan: FleetPlan, market: MarketTrace, costs: StandInCosts, timing: ManagerTiming) -> FleetReceipt:
    cloud, state = SimulatedCloud(market), FleetState.in_memory()
    manager = FleetManager(plan, state, cloud, StandInJob(plan, costs), timing)
    limit_s = _GIVE_UP * max(plan.time_s or 0.0, plan.work_s or 0.0, timing.boot_limit_s)
    while not manager.look():
        cloud.clock.sleep(timing.poll_s)
        if cloud.clock.now_s() > limit_s:
            manager.end("failed", "the job did not end")
    result = receipt(plan, state)
    state.close()
    return replace(result, machines=())
