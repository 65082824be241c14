"""The same machines on smaller and smaller fleets: rules of deflation beside preemption.

Overcommitment is N0 / N - 1 (HPDC 2020, 7.4): N0 hosts are the fewest on which nobody is refused or shrunk, N those
there are. Every simulation gets the same machines.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stallwise.cluster.sweep.cases import available_cores
from stallwise.errors import InputError
from stallwise.overcommit.resources import (
    Counts,
    Floats,
    Hosts,
    VirtualMachines,
    check_machines,
    check_sizes,
)
from stallwise.overcommit.simulator import HostingFigures, host_machines, levels_of, unit_values
from stallwise.sentences import Sentence

ComparisonProgress = Callable[[str, int, int | None], None]
_MOST_HOSTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OvercommitRow:
    """Figures of one way to make room at one overcommitment."""

    way: str
    overcommitment: float
    hosts: int
    figures: HostingFigures
    on_demand_before: float
    """Revenue of machines on demand on the whole fleet, per host."""

    def increase(self, charge: str) -> float:
        """Revenue of low-priority machines per host, over that of machines on demand per host of the whole fleet.

        This is what figure 22 of the paper shows: its static curve is exactly proportional to 1 / N.
        """
        earned: float = getattr(self.figures.revenue, charge)
        return earned / self.hosts / self.on_demand_before if self.on_demand_before > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OvercommitComparison:
    """All ways to make room at all overcommitments of one trace."""

    source: str
    format: str
    machines: int
    low: int
    fleet: str
    whole: int
    """N0: hosts of the fleet that is not overcommitted."""
    partitioned: bool
    rows: tuple[OvercommitRow, ...]
    notes: tuple[Sentence, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        """Ways to make room, in the order of the request."""
        return tuple(dict.fromkeys(row.way for row in self.rows))

    def of(self, way: str) -> tuple[OvercommitRow, ...]:
        """Rows of one way, by overcommitment."""
        return tuple(row for row in self.rows if row.way == way)


def fewest_hosts(machines: VirtualMachines, hosts: Hosts, progress: Callable[[int], None] | None = None) -> int:
    """Find N0, the fewest hosts on which every machine is admitted at its full size, by bisection.

    A packing is no smooth function of the number of hosts: a smaller fleet may happen to work where a larger one
    between does not; the search finds a boundary, which is what the paper's definition needs.
    """

    def enough(count: int) -> bool:
        if progress is not None:
            progress(count)
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


def partition(machines: VirtualMachines, hosts: Hosts) -> Counts:
    """Assign a priority level to every host, in proportion to what its machines request over time, at least one each.

    Machines on demand go anywhere; those of low priority only to hosts of their level, so that a busy level does not
    shrink another. The request of a level is that of the resource of which it takes the largest fraction of the fleet.
    """
    level = levels_of(machines)
    count = int(level.max()) + 1
    if count > len(hosts):
        raise InputError(
            f"{machines.source} has {count} levels of priority, and {len(hosts)} hosts are too few for a partition "
            "each. Give more hosts, less overcommitment, or no partitions.",
            fields=("overcommit", "partitions"),
        )
    if count == 0:
        return np.full(len(hosts), -1, dtype=np.int64)
    over_time = machines.size * machines.life_s[:, None]
    parts = np.array([over_time[level == one].sum(axis=0) for one in range(count)]) / hosts.total.sum(axis=0).clip(1)
    turn = np.repeat(np.arange(count), _apportion(parts.max(axis=1), len(hosts)))
    # Host k of equal ones, or of a list sorted by size: levels take turns, so that each gets hosts of every size.
    return np.asarray(turn[np.argsort((np.arange(len(hosts)) * 0.6180339887498949) % 1.0, kind="stable")])


def _apportion(weights: Floats, count: int) -> Counts:
    """Divide `count` in proportion, by the largest remainders, and at least one each."""
    exact = weights / max(float(weights.sum()), 1e-12) * count
    seats = np.maximum(1, np.floor(exact)).astype(np.int64)
    while seats.sum() < count:
        seats[np.argmax(exact - seats)] += 1
    while seats.sum() > count:
        seats[np.argmin(np.where(seats > 1, exact - seats, np.inf))] -= 1
    return seats


def overcommit(
    machines: VirtualMachines,
    hosts: Hosts,
    ways: Sequence[str],
    overcommitments: Sequence[float],
    *,
    whole: int | None = None,
    partitioned: bool = False,
    cores: int | None = None,
    progress: ComparisonProgress | None = None,
) -> OvercommitComparison:
    """Simulate every way to make room at every overcommitment; `whole` is N0 where it is known."""
    check_machines(machines, hosts)
    check_sizes(machines, hosts)
    if whole is None:
        whole = fewest_hosts(
            machines, hosts, None if progress is None else lambda n: progress("hosts tried as the whole fleet", n, None)
        )
    value = unit_values(hosts.first(whole))
    before = host_machines(machines, hosts.first(whole), "refuse", value=value).revenue().on_demand / whole
    cases = [(way, over) for over in overcommitments for way in ways]
    counter = _Counter(progress, len(cases) * len(machines))

    def simulate(number: int) -> OvercommitRow:
        way, over = cases[number]
        count = max(1, round(whole / (1 + over)))
        fleet = hosts.first(count)
        pools = partition(machines, fleet) if partitioned else None
        outcome = host_machines(machines, fleet, way, pools=pools, value=value, progress=counter.of(number))
        return OvercommitRow(
            way=way,
            overcommitment=whole / count - 1,
            hosts=count,
            figures=outcome.figures,
            on_demand_before=before,
        )

    with ThreadPoolExecutor(min(cores or available_cores(), len(cases))) as pool:
        futures = [pool.submit(simulate, number) for number in range(len(cases))]
        try:
            rows = tuple(one.result() for one in futures)
        except BaseException:
            counter.stopped = True
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return OvercommitComparison(
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


def verdict(comparison: OvercommitComparison) -> Sentence | None:
    """Say how far a fleet can be overcommitted by the best rule, and what preemption costs there."""
    safe = [
        row
        for row in comparison.rows
        if row.way != "preempt"
        and row.figures.failure <= _FEW_FAILURES
        and row.figures.loss <= _LITTLE_LOSS
        and row.overcommitment > 0
    ]
    if not safe:
        return None
    best = max(safe, key=lambda row: (row.overcommitment, -row.figures.unserved))
    sentence = (
        f"{best.way} works up to {best.overcommitment:.0%}: {best.figures.failure:.2%} of the machines fail, "
        f"{best.figures.unserved:.2%} of low-priority work is lost"
    )
    beside = [row for row in comparison.of("preempt") if row.hosts == best.hosts]
    preempting = f"; preempting loses {beside[0].figures.unserved:.2%}" if beside else ""
    facts = {"overcommitment": best.overcommitment, "failure": best.figures.failure, "unserved": best.figures.unserved}
    return Sentence("overcommit.works", f"{sentence}{preempting}.", **facts)


class _StoppedError(Exception):
    """Another simulation failed, or the caller stopped."""


class _Counter:
    """Counts the machines that are done in all simulations together."""

    def __init__(self, progress: ComparisonProgress | None, machines: int) -> None:
        self._progress, self._machines = progress, machines
        self._done: dict[int, int] = {}
        self._lock = threading.Lock()
        self.stopped = False

    def of(self, case: int) -> Callable[[int, int], None]:
        def progress(done: int, _: int) -> None:
            if self.stopped:
                raise _StoppedError
            with self._lock:
                self._done[case] = done
                if self._progress is not None:
                    self._progress("machines simulated", sum(self._done.values()), self._machines)

        return progress
