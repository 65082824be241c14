"""Virtual machines through a fleet of hosts, event by event: deflating, preempting, or refusing arrivals.

For every arrival: a host with room, else one that can make room with everybody on it at their minimum, else it is
refused: admission control, a reclamation failure. Among such hosts the highest fitness wins: the cosine between demand
and offer, both as fractions of the host (HPDC 2020, 5.2); of equally fit ones the less overcommitted. On it the
low-priority machines shrink by the rule, the newcomer among them if it is one; when a machine leaves, the others
grow back. Machines keep their times whatever they hold: a deflated one does less, not later.

Prices are relative to on-demand: a machine on demand pays 1 for what it asks for. There are three ways to charge for a
machine that may shrink (HPDC 2020, 5.3): `static`, `priority` and `allocation`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stallwise.errors import UnknownNameError
from stallwise.overcommit._shares import RULES, priority_milli, room_of, rule_number
from stallwise.overcommit.resources import FAST, RESOURCES, Counts, Floats, Hosts, VirtualMachines, check_machines

WAYS_TO_CHARGE = ("static", "priority", "allocation")
STATIC = 0.2
"""Fraction of the on-demand price that a low-priority machine pays under `static`: spot prices of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostingRevenue:
    """Revenue of one fleet over one trace."""

    on_demand: float
    """From machines that are never shrunk, at the full price of their size while they stayed."""
    static: float
    """From low-priority machines: 0.2 of the price of their size."""
    priority: float
    """From low-priority machines: their priority times the price of their size."""
    allocation: float
    """From low-priority machines: the full price of what they held over time."""


def revenue(machines: VirtualMachines, value: Floats, stayed_s: Floats, paid: Floats) -> HostingRevenue:
    """Compute the revenue of machines that stayed `stayed_s`; `value` is the on-demand price of a unit per second.

    `paid` is the worth of what each held, over time.
    """
    low = machines.low
    priced = stayed_s * (machines.size @ value)
    return HostingRevenue(
        on_demand=float(paid[~low].sum()),
        static=STATIC * float(priced[low].sum()),
        priority=float((machines.priority * priced)[low].sum()),
        allocation=float(paid[low].sum()),
    )


if TYPE_CHECKING:
    from stallwise.overcommit._kernels import EventArrays, HostArrays

WAYS: tuple[str, ...] = (*RULES, "preempt", "refuse")
"""A rule of deflation; `preempt`: machines of low priority are stopped where one on demand needs room; `refuse`:
neither."""
_EVENTS_BETWEEN_PROGRESS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostingOutcome:
    """Outcome of every machine. Arrays are in the order of `machines`."""

    machines: VirtualMachines
    hosts: Hosts
    way: str
    host: Counts
    """-1 where it was refused."""
    refused: npt.NDArray[np.bool_]
    preempted: npt.NDArray[np.bool_]
    left_s: Floats
    """When it left, was stopped or was refused."""
    used_s: Floats
    """Seconds of full use it requested while it stayed."""
    lost_s: Floats
    """Of those, above what it held."""
    paid: Floats
    """What it held over time, at the price on demand."""
    value: Floats
    """Price of a unit of each resource."""
    events: int

    @property
    def figures(self) -> "HostingFigures":
        low, machines = self.machines.low, self.machines
        failed = self.refused | self.preempted
        requested_s = float(requested_use_s(machines)[low].sum())
        served_s = float((self.used_s - self.lost_s)[low].sum())
        return HostingFigures(
            machines=len(machines),
            hosts=len(self.hosts),
            failure=_fraction(failed, len(machines)),
            refused_on_demand=_fraction(self.refused & ~low, int((~low).sum())),
            refused_low=_fraction(self.refused & low, int(low.sum())),
            preempted_low=_fraction(self.preempted & low, int(low.sum())),
            loss=float(self.lost_s[low].sum()) / max(float(self.used_s[low].sum()), 1e-12),
            unserved=1 - served_s / max(requested_s, 1e-12),
            revenue=self.revenue(),
        )

    def revenue(self) -> HostingRevenue:
        """Compute the revenue under each way to charge."""
        stayed_s = np.where(self.refused, 0.0, self.left_s - self.machines.arrival_s)
        return revenue(self.machines, self.value, stayed_s, self.paid)


def _fraction(which: npt.NDArray[np.bool_], of: int) -> float:
    return float(which.sum()) / of if of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostingFigures:
    """Figures of one simulation; fractions unless said otherwise."""

    machines: int
    hosts: int
    failure: float
    """Fraction of all machines that were refused or preempted."""
    refused_on_demand: float
    """Fraction of the machines on demand that were refused."""
    refused_low: float
    preempted_low: float
    loss: float
    """Of the use that low-priority machines requested while they stayed, the fraction above what they held."""
    unserved: float
    """The same of all the use they requested until their own end, whether they were admitted or not."""
    revenue: HostingRevenue


def requested_use_s(machines: VirtualMachines) -> Floats:
    """Return the seconds of full use that each machine requests from arrival to end."""
    part, slot_s = machines.use.part, machines.use.slot_s
    sums = np.concatenate([np.zeros((len(part), 1)), np.cumsum(part, axis=1)], axis=1)
    length = part.shape[1]

    def area(slots: Floats) -> Floats:
        turns, rest = np.divmod(slots, length)
        whole = rest.astype(np.int64)
        return np.asarray(turns * sums[row, length] + sums[row, whole] + (rest - whole) * part[row, whole])

    row = np.maximum(machines.series, 0)
    start = machines.offset.astype(np.float64)
    followed = slot_s * (area(start + machines.life_s / slot_s) - area(start))
    return np.where(machines.series < 0, machines.life_s, followed)


def host_machines(
    machines: VirtualMachines,
    hosts: Hosts,
    way: str,
    *,
    pools: Counts | None = None,
    value: Floats | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HostingOutcome:
    """Simulate every machine from arrival to end. The same arguments give the same answer to the last bit.

    `pools` puts each host into a partition (a level of priority, -1: all), `value` prices a unit of each resource; by
    default a whole fleet of each resource is worth the same.
    """
    from stallwise.cluster.engine.state import N_DONE, N_EVENTS
    from stallwise.overcommit._kernels import KILLED, NEITHER, PREEMPT, REFUSED, host_all

    if way not in WAYS:
        raise UnknownNameError("way to make room", way, WAYS)
    check_machines(machines, hosts)
    number = {"preempt": int(PREEMPT), "refuse": int(NEITHER)}.get(way)
    rule = rule_number(way) if number is None else number
    rows = _machine_rows(machines, pools)
    host_arrays = _host_arrays(machines, hosts, rule, pools, unit_values(hosts) if value is None else value)
    events = _event_arrays(machines, len(hosts))
    most = 1 << 62 if progress is None else _EVENTS_BETWEEN_PROGRESS
    while host_all(rows, host_arrays, events, rule, float(machines.use.slot_s), most):
        if progress is not None:
            progress(int(events.tally[N_DONE]), len(machines))
    if progress is not None:
        progress(len(machines), len(machines))
    return HostingOutcome(
        machines=machines,
        hosts=hosts,
        way=way,
        host=np.where(rows["state"] == REFUSED, -1, rows["host"]),
        refused=rows["state"] == REFUSED,
        preempted=rows["state"] == KILLED,
        left_s=rows["left"].copy(),
        used_s=rows["used"].copy(),
        lost_s=rows["lost"].copy(),
        paid=rows["paid"].copy(),
        value=host_arrays.value,
        events=int(events.tally[N_EVENTS]),
    )


def unit_values(hosts: Hosts) -> Floats:
    """Return prices of a unit of each resource such that the whole fleet costs 1 for each."""
    total = hosts.total.sum(axis=0).astype(np.float64)
    return np.where(total > 0, 1.0 / np.maximum(total, 1.0), 0.0)


def levels_of(machines: VirtualMachines) -> Counts:
    """Return the priority level of each low-priority machine, from 0; -1 for those on demand."""
    priorities = np.unique(machines.priority[machines.low])
    return np.where(machines.low, np.searchsorted(priorities, machines.priority), -1).astype(np.int64)


def _machine_rows(machines: VirtualMachines, pools: Counts | None) -> npt.NDArray[np.void]:
    from stallwise.overcommit._kernels import MACHINE

    rows = np.zeros(len(machines), dtype=MACHINE)
    rows["arrival"], rows["end"] = machines.arrival_s, machines.end_s
    rows["low"] = machines.low
    rows["priority"] = [priority_milli(one) for one in machines.priority]
    rows["series"] = machines.series
    rows["phase"] = machines.arrival_s - machines.offset * machines.use.slot_s
    rows["host"] = -1
    rows["level"] = -1 if pools is None else levels_of(machines)
    return rows


def _host_arrays(
    machines: VirtualMachines, hosts: Hosts, rule: int, pools: Counts | None, value: Floats
) -> "HostArrays":
    from stallwise.overcommit._kernels import HostArrays

    count = hosts.total.shape
    least = machines.least
    if rule >= 0:
        priority = np.array([priority_milli(one) for one in machines.priority], dtype=np.int64)[:, None]
        loss = np.vectorize(room_of, otypes=[np.int64])(rule, machines.size, least, priority)
    else:
        loss = machines.size.copy()
    return HostArrays(
        total=np.ascontiguousarray(hosts.total, dtype=np.int64),
        firm=np.zeros(count, dtype=np.int64),
        soft=np.zeros(count, dtype=np.int64),
        room=np.zeros(count, dtype=np.int64),
        first=np.full(len(hosts), -1, dtype=np.int64),
        pool=np.full(len(hosts), -1, dtype=np.int64) if pools is None else pools.astype(np.int64),
        changed=np.zeros(len(hosts), dtype=np.int64),
        size=np.ascontiguousarray(machines.size, dtype=np.int64),
        loss=np.ascontiguousarray(np.where(machines.low[:, None], loss, 0), dtype=np.int64),
        held=np.zeros_like(machines.size, dtype=np.int64),
        value=np.ascontiguousarray(value, dtype=np.float64),
        fast=np.array([name in FAST for name in RESOURCES], dtype=np.int64),
    )


def _event_arrays(machines: VirtualMachines, hosts: int) -> "EventArrays":
    from stallwise.cluster.engine.state import N_TIMES
    from stallwise.overcommit._kernels import N_DIRTY, EventArrays

    count, part = len(machines), np.ascontiguousarray(machines.use.part, dtype=np.float64)
    whole = {name: np.zeros(count, dtype=np.int64) for name in ("room", "weight", "taken", "who")}
    return EventArrays(
        tally=np.zeros(N_DIRTY + 1, dtype=np.int64),
        clock=np.zeros(N_TIMES),
        heap_time=np.zeros(count + 1),
        heap_what=np.zeros((count + 1, 3), dtype=np.int64),
        dirty=np.zeros(hosts, dtype=np.int64),
        offered=np.zeros(len(RESOURCES)),
        demand=np.zeros(len(RESOURCES)),
        use=part,
        sums=np.concatenate([np.zeros((len(part), 1)), np.cumsum(part, axis=1)], axis=1),
        **whole,
    )
