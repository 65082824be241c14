"""Machines through a fleet of hosts, event by event: deflating, preempting, or turning arrivals away.

For every arrival: a host with room, else one that can make room (`placement.py` says which), else it is refused:
admission control, a reclamation failure. On the chosen host the low-priority machines shrink by the rule, the newcomer
among them if it is one; when a machine leaves, the others grow back. Machines keep their times whatever they hold: a
deflated one does less, not later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stallwise.cluster.deflation.algebra import RULES, milli, rule_number
from stallwise.cluster.deflation.pricing import Revenue
from stallwise.cluster.deflation.resources import FAST, RESOURCES, Counts, Floats, Hosts, Machines, check
from stallwise.cluster.kernels.shares import room_of
from stallwise.errors import UnknownNameError

if TYPE_CHECKING:
    from stallwise.cluster.kernels.hosting import Fleet, Plans

WAYS: tuple[str, ...] = (*RULES, "preempt", "refuse")
"""A rule of deflation; `preempt`: machines of low priority are stopped where one on demand needs room; `refuse`:
neither."""
_EVENTS_BETWEEN_PROGRESS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stay:
    """What became of every machine. Arrays are in the order of `machines`."""

    machines: Machines
    hosts: Hosts
    way: str
    host: Counts
    """-1 where it was refused."""
    refused: npt.NDArray[np.bool_]
    preempted: npt.NDArray[np.bool_]
    left_s: Floats
    """When it left, was stopped or was turned away."""
    used_s: Floats
    """Seconds of full use it wanted while it stayed."""
    lost_s: Floats
    """Of those, above what it held."""
    paid: Floats
    """What it held over time, at the price on demand."""
    value: Floats
    """Price of a unit of each resource."""
    events: int

    @property
    def figures(self) -> "Figures":
        """The row of this stay."""
        low, machines = self.machines.low, self.machines
        gone = self.refused | self.preempted
        wanted_s = float(wanted(machines)[low].sum())
        served_s = float((self.used_s - self.lost_s)[low].sum())
        return Figures(
            machines=len(machines),
            hosts=len(self.hosts),
            failure=_part(gone, len(machines)),
            refused_on_demand=_part(self.refused & ~low, int((~low).sum())),
            refused_low=_part(self.refused & low, int(low.sum())),
            preempted_low=_part(self.preempted & low, int(low.sum())),
            loss=float(self.lost_s[low].sum()) / max(float(self.used_s[low].sum()), 1e-12),
            unserved=1 - served_s / max(wanted_s, 1e-12),
            revenue=self.revenue(),
        )

    def revenue(self) -> Revenue:
        """What the machines bring under each way to charge."""
        from stallwise.cluster.deflation.pricing import revenue

        stayed_s = np.where(self.refused, 0.0, self.left_s - self.machines.arrival_s)
        return revenue(self.machines, self.value, stayed_s, self.paid)


def _part(which: npt.NDArray[np.bool_], of: int) -> float:
    return float(which.sum()) / of if of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One row of a comparison."""

    machines: int
    hosts: int
    failure: float
    """Part of all machines that were refused or preempted."""
    refused_on_demand: float
    """Part of the machines on demand that were refused."""
    refused_low: float
    preempted_low: float
    loss: float
    """Of the use low-priority machines wanted while they stayed, the part above what they held (throughput loss)."""
    unserved: float
    """The same of all the use they wanted, whether they were taken in or not, until their own end."""
    revenue: Revenue


def wanted(machines: Machines) -> Floats:
    """Seconds of full use each machine wants from arrival to end."""
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
    machines: Machines,
    hosts: Hosts,
    way: str,
    *,
    pools: Counts | None = None,
    value: Floats | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Stay:
    """Every machine from arrival to end. The same arguments give the same answer to the last bit.

    `pools` puts each host into a partition (a level of priority, -1: all), `value` prices a unit of each resource; by
    default a whole fleet of each resource is worth the same.
    """
    from stallwise.cluster.kernels.hosting import KILLED, NEITHER, PREEMPT, REFUSED, host_all
    from stallwise.cluster.kernels.state import N_DONE, N_EVENTS

    if way not in WAYS:
        raise UnknownNameError("way to make room", way, WAYS)
    check(machines, hosts)
    number = {"preempt": int(PREEMPT), "refuse": int(NEITHER)}.get(way)
    rule = rule_number(way) if number is None else number
    book = _book(machines, pools)
    fleet = _fleet(machines, hosts, rule, pools, unit_values(hosts) if value is None else value)
    plans = _plans(machines, len(hosts))
    most = 1 << 62 if progress is None else _EVENTS_BETWEEN_PROGRESS
    while host_all(book, fleet, plans, rule, float(machines.use.slot_s), most):
        if progress is not None:
            progress(int(plans.tally[N_DONE]), len(machines))
    if progress is not None:
        progress(len(machines), len(machines))
    return Stay(
        machines=machines,
        hosts=hosts,
        way=way,
        host=np.where(book["state"] == REFUSED, -1, book["host"]),
        refused=book["state"] == REFUSED,
        preempted=book["state"] == KILLED,
        left_s=book["left"].copy(),
        used_s=book["used"].copy(),
        lost_s=book["lost"].copy(),
        paid=book["paid"].copy(),
        value=fleet.value,
        events=int(plans.tally[N_EVENTS]),
    )


def unit_values(hosts: Hosts) -> Floats:
    """Price of a unit of each resource such that the whole fleet's is 1 for each."""
    total = hosts.total.sum(axis=0).astype(np.float64)
    return np.where(total > 0, 1.0 / np.maximum(total, 1.0), 0.0)


def levels_of(machines: Machines) -> Counts:
    """The level of priority of each low-priority machine, from 0; -1 for those on demand."""
    found = np.unique(machines.priority[machines.low])
    return np.where(machines.low, np.searchsorted(found, machines.priority), -1).astype(np.int64)


def _book(machines: Machines, pools: Counts | None) -> npt.NDArray[np.void]:
    from stallwise.cluster.kernels.hosting import MACHINE

    rows = np.zeros(len(machines), dtype=MACHINE)
    rows["arrival"], rows["end"] = machines.arrival_s, machines.end_s
    rows["low"] = machines.low
    rows["priority"] = [milli(one) for one in machines.priority]
    rows["series"] = machines.series
    rows["phase"] = machines.arrival_s - machines.offset * machines.use.slot_s
    rows["host"] = -1
    rows["level"] = -1 if pools is None else levels_of(machines)
    return rows


def _fleet(machines: Machines, hosts: Hosts, rule: int, pools: Counts | None, value: Floats) -> "Fleet":
    from stallwise.cluster.kernels.hosting import Fleet

    count = hosts.total.shape
    least = machines.least
    if rule >= 0:
        priority = np.array([milli(one) for one in machines.priority], dtype=np.int64)[:, None]
        loss = np.vectorize(room_of, otypes=[np.int64])(rule, machines.size, least, priority)
    else:
        loss = machines.size.copy()
    return Fleet(
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


def _plans(machines: Machines, hosts: int) -> "Plans":
    from stallwise.cluster.kernels.hosting import N_DIRTY, Plans
    from stallwise.cluster.kernels.state import N_TIMES

    count, part = len(machines), np.ascontiguousarray(machines.use.part, dtype=np.float64)
    whole = {name: np.zeros(count, dtype=np.int64) for name in ("room", "weight", "taken", "who")}
    return Plans(
        tally=np.zeros(N_DIRTY + 1, dtype=np.int64),
        clock=np.zeros(N_TIMES),
        heap_time=np.zeros(count + 1),
        heap_what=np.zeros((count + 1, 3), dtype=np.int64),
        dirty=np.zeros(hosts, dtype=np.int64),
        offered=np.zeros(len(RESOURCES)),
        asked=np.zeros(len(RESOURCES)),
        use=part,
        sums=np.concatenate([np.zeros((len(part), 1)), np.cumsum(part, axis=1)], axis=1),
        **whole,
    )
