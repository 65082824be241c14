"""The same machines on smaller and smaller fleets: rules of deflation beside preemption.

Overcommitment is N0 / N - 1 (HPDC 2020, 7.4): N0 hosts are the fewest on which nobody is refused or shrunk, N those
there are. Every simulation sees the same machines.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stallwise.cluster.deflation.resources import Counts, Floats, Hosts, Machines, check, check_sizes
from stallwise.cluster.deflation.simulator import Figures, host_machines, levels_of, unit_values
from stallwise.cluster.sweep import cores_here
from stallwise.errors import InputError

Tell = Callable[[str, int, int | None], None]
_MOST_HOSTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way at one overcommitment."""

    way: str
    overcommitment: float
    hosts: int
    figures: Figures
    on_demand_before: float
    """Revenue of machines on demand on the whole fleet, per host of it."""

    def increase(self, how: str) -> float:
        """Revenue of low-priority machines per host, over that of machines on demand per host of the whole fleet.

        This is what figure 22 of the paper shows: its static curve is exactly proportional to 1 / N.
        """
        earned: float = getattr(self.figures.revenue, how)
        return earned / self.hosts / self.on_demand_before if self.on_demand_before > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overcommitted:
    """All ways at all overcommitments of one trace."""

    source: str
    format: str
    machines: int
    low: int
    fleet: str
    whole: int
    """N0"""
    partitioned: bool
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """In the order asked for."""
        return tuple(dict.fromkeys(row.way for row in self.rows))

    def of(self, way: str) -> tuple[Row, ...]:
        """One way, by overcommitment."""
        return tuple(row for row in self.rows if row.way == way)


def fewest(machines: Machines, hosts: Hosts, tell: Callable[[int], None] | None = None) -> int:
    """N0: the fewest hosts on which every machine is taken in at its full size, by halving.

    A packing is no smooth function of the number of hosts: a smaller fleet may happen to work where a larger one
    between does not; the search finds a border, which is what the paper's definition needs.
    """

    def enough(count: int) -> bool:
        if tell is not None:
            tell(count)
        return not host_machines(machines, hosts.first(count), "refuse").refused.any()

    low, high = 0, 1
    while not enough(high):
        low, high = high, 2 * high
        if high > _MOST_HOSTS:
            raise InputError(f"Not even {low:,} hosts hold all machines of {machines.source}. Give larger hosts.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def partition(machines: Machines, hosts: Hosts) -> Counts:
    """A level of priority for every host, in parts of what its machines ask for over time, at least one for each.

    Machines on demand go anywhere; those of low priority only to hosts of their level, so that a busy level does not
    shrink another. What a level asks for is counted in the resource of which that is the largest part of the fleet.
    """
    level = levels_of(machines)
    count = int(level.max()) + 1
    if count > len(hosts):
        raise InputError(
            f"{machines.source} has {count} levels of priority, and {len(hosts)} hosts are too few for a partition "
            "each. Give more hosts, less --overcommit, or no --partitions."
        )
    if count == 0:
        return np.full(len(hosts), -1, dtype=np.int64)
    over_time = machines.size * machines.life_s[:, None]
    parts = np.array([over_time[level == one].sum(axis=0) for one in range(count)]) / hosts.total.sum(axis=0).clip(1)
    turn = np.repeat(np.arange(count), _seats(parts.max(axis=1), len(hosts)))
    # Host k of equal ones, or of a list sorted by size: levels take turns, so that each gets hosts of every size.
    return np.asarray(turn[np.argsort((np.arange(len(hosts)) * 0.6180339887498949) % 1.0, kind="stable")])


def _seats(asked: Floats, count: int) -> Counts:
    """`count` in proportion, by the largest remainders, and at least one each."""
    exact = asked / max(float(asked.sum()), 1e-12) * count
    seats = np.maximum(1, np.floor(exact)).astype(np.int64)
    while seats.sum() < count:
        seats[np.argmax(exact - seats)] += 1
    while seats.sum() > count:
        seats[np.argmin(np.where(seats > 1, exact - seats, np.inf))] -= 1
    return seats


def overcommit(
    machines: Machines,
    hosts: Hosts,
    ways: Sequence[str],
    overcommitments: Sequence[float],
    *,
    whole: int | None = None,
    partitioned: bool = False,
    cores: int | None = None,
    tell: Tell | None = None,
) -> Overcommitted:
    """Every way at every overcommitment; `whole` is N0 where it is known."""
    check(machines, hosts)
    check_sizes(machines, hosts)
    if whole is None:
        whole = fewest(
            machines, hosts, None if tell is None else lambda n: tell("hosts tried as the whole fleet", n, None)
        )
    value = unit_values(hosts.first(whole))
    before = host_machines(machines, hosts.first(whole), "refuse", value=value).revenue().on_demand / whole
    cases = [(way, over) for over in overcommitments for way in ways]
    counter = _Counter(tell, len(cases) * len(machines))

    def run(number: int) -> Row:
        way, over = cases[number]
        count = max(1, round(whole / (1 + over)))
        fleet = hosts.first(count)
        pools = partition(machines, fleet) if partitioned else None
        stay = host_machines(machines, fleet, way, pools=pools, value=value, progress=counter.of(number))
        return Row(
            way=way,
            overcommitment=whole / count - 1,
            hosts=count,
            figures=stay.figures,
            on_demand_before=before,
        )

    with ThreadPoolExecutor(min(cores or cores_here(), len(cases))) as pool:
        made = [pool.submit(run, number) for number in range(len(cases))]
        try:
            rows = tuple(one.result() for one in made)
        except BaseException:
            counter.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Overcommitted(
        source=machines.source,
        format=machines.format,
        machines=len(machines),
        low=int(machines.low.sum()),
        fleet=hosts.name,
        whole=whole,
        partitioned=partitioned,
        rows=rows,
        notes=machines.notes,
    )


_FEW_FAILURES, _LITTLE_LOSS = 0.01, 0.05


def verdict(found: Overcommitted) -> str:
    """How far a fleet can be overcommitted by the best rule, and what preemption costs there."""
    safe = [
        row
        for row in found.rows
        if row.way != "preempt"
        and row.figures.failure <= _FEW_FAILURES
        and row.figures.loss <= _LITTLE_LOSS
        and row.overcommitment > 0
    ]
    if not safe:
        return ""
    best = max(safe, key=lambda row: (row.overcommitment, -row.figures.unserved))
    told = (
        f"{best.way} works up to {best.overcommitment:.0%}: {best.figures.failure:.2%} of the machines fail, "
        f"{best.figures.unserved:.2%} of low-priority work is lost"
    )
    beside = [row for row in found.of("preempt") if row.hosts == best.hosts]
    return told + (f"; preempting loses {beside[0].figures.unserved:.2%}." if beside else ".")


class _StoppedError(Exception):
    """Another simulation failed, or the user wants no more."""


class _Counter:
    """Machines that are done in all simulations together."""

    def __init__(self, tell: Tell | None, machines: int) -> None:
        self._tell, self._machines = tell, machines
        self._done: dict[int, int] = {}
        self._lock = threading.Lock()
        self.stopped = False

    def of(self, case: int) -> Callable[[int, int], None]:
        def progress(done: int, _: int) -> None:
            if self.stopped:
                raise _StoppedError
            with self._lock:
                self._done[case] = done
                if self._tell is not None:
                    self._tell("machines simulated", sum(self._done.values()), self._machines)

        return progress
