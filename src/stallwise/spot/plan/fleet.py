"""A fleet of places, each filled by a machine of some kind, on-demand or spot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from stallwise.errors import InputError
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.log import AvailabilityTrace, Floats
from stallwise.spot.lifetimes.models import Lifetime

OnLoss = Literal["wait", "shrink", "carry-on"]
ON_LOSS: tuple[OnLoss, ...] = get_args(OnLoss)
Replacement = Literal["none", "spot", "on-demand"]
REPLACEMENTS: tuple[Replacement, ...] = get_args(Replacement)


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """Machines of one type in one zone: price, lifetime, speed, and the wait for another of them."""

    name: str
    usd_per_h: float
    spot_usd_per_h: float
    life: Lifetime
    speed: float = 1.0
    """Work per second of one machine, in any unit that all kinds of a fleet share."""
    wait: Lifetime | None = None
    """Time until another can be had, beyond provisioning; None where it always can."""
    age_s: float = 0.0
    """Age of the machines the job starts on."""


@dataclass(frozen=True, kw_only=True)
class SpotFleet:
    """Spot and on-demand machines of each kind, and what is rented on-demand besides them (parameter servers)."""

    groups: tuple[tuple[MachineKind, int, int], ...]
    """(kind, spot machines, on-demand machines)."""
    other_usd_per_h: float = 0.0
    lock_step: bool = False
    """All do equal shares and wait for the slowest; else their speeds add up."""
    notes: tuple[Sentence, ...] = field(default=())

    def __post_init__(self) -> None:
        for kind, spot, on_demand in self.groups:
            if spot < 0 or on_demand < 0 or kind.speed <= 0 or kind.usd_per_h < 0 or kind.spot_usd_per_h < 0:
                raise InputError(
                    f"Counts and prices of a fleet must be non-negative (got {spot} and {on_demand} of {kind.name})."
                )
        if self.machines < 1:
            raise InputError("A fleet needs at least one machine.")

    @property
    def machines(self) -> int:
        return sum(spot + on_demand for _, spot, on_demand in self.groups)

    @property
    def spot_machines(self) -> int:
        """Number of machines that can be lost."""
        return sum(spot for _, spot, _ in self.groups)

    @property
    def speed(self) -> float:
        """Work per second with all machines there."""
        return float(sum(self.speeds))

    @property
    def speeds(self) -> list[float]:
        """What each machine adds, spot machines of each kind first."""
        each = [kind.speed for kind, spot, on_demand in self.groups for _ in range(spot + on_demand)]
        return [min(each)] * len(each) if self.lock_step else each

    @property
    def lives(self) -> list[tuple[Lifetime, int]]:
        """Lifetimes with the number of spot machines that have them."""
        return [(kind.life, spot) for kind, spot, _ in self.groups if spot]

    @property
    def usd_per_h(self) -> float:
        """With all machines there."""
        machines = sum(spot * kind.spot_usd_per_h + od * kind.usd_per_h for kind, spot, od in self.groups)
        return machines + self.other_usd_per_h

    def on_demand(self) -> "SpotFleet":
        """The same machines, none of them spot."""
        groups = tuple((kind, 0, spot + on_demand) for kind, spot, on_demand in self.groups)
        return SpotFleet(groups=groups, other_usd_per_h=self.other_usd_per_h, lock_step=self.lock_step)


def uniform_fleet(kind: MachineKind, machines: int, *, on_demand: int = 0, other_usd_per_h: float = 0.0) -> SpotFleet:
    """`machines` in all, `on_demand` of them not spot."""
    if not 0 <= on_demand <= machines:
        raise InputError(f"{on_demand} on-demand machines do not fit into a fleet of {machines}.")
    return SpotFleet(groups=((kind, machines - on_demand, on_demand),), other_usd_per_h=other_usd_per_h)


def lookup(life: Lifetime, horizon_s: float, points: int = 1025) -> tuple[Floats, Floats]:
    """Tabulate F on a grid that is dense at short and at long times, for drawing lifetimes by inverse lookup."""
    end_s = min(horizon_s, life.cap_s)
    own = getattr(life, "at_s", np.empty(0))
    inner = own[(own > 0) & (own < end_s)] if len(own) <= 4 * points else np.empty(0)
    at_s = np.unique(
        np.concatenate([np.linspace(0.0, end_s, points), np.geomspace(end_s * 1e-7, end_s, points - 1), inner])
    )
    if life.cap_s <= horizon_s:
        at_s = np.append(at_s[at_s < life.cap_s], [life.cap_s * (1 - 1e-12), life.cap_s])
    lost = np.maximum.accumulate(np.clip(np.asarray(life.cdf(at_s), dtype=np.float64), 0.0, 1.0))
    return at_s, lost


def lookups(lives: Sequence[Lifetime | None], horizon_s: float) -> tuple[Floats, Floats]:
    """Tabulate several lifetimes, padded to one length; None means at once."""
    tables = [(np.zeros(2), np.array([0.0, 1.0])) if life is None else lookup(life, horizon_s) for life in lives]
    length = max(len(at_s) for at_s, _ in tables)
    pad = [
        (np.pad(at_s, (0, length - len(at_s)), "edge"), np.pad(lost, (0, length - len(lost)), "edge"))
        for at_s, lost in tables
    ]
    return np.array([at_s for at_s, _ in pad]), np.array([lost for _, lost in pad])


# A move is a loss even where another zone has machines at once: the count drops for this long.
_MOVE_S = 1.0


def follow_zones(traces: Sequence[AvailabilityTrace], machines: int) -> AvailabilityTrace:
    """Trace of a fleet that stays in its zone while it is whole there and else moves to one that has it whole.

    Each move costs what a loss costs. Where no zone has all machines, the zone with most is taken.
    """
    start_s = max(float(trace.at_s[0]) for trace in traces)
    end_s = min(trace.end_s for trace in traces)
    if start_s >= end_s:
        raise InputError("The logs of the zones do not overlap in time, so no fleet can move between them.")
    moments = np.unique(np.concatenate([[start_s], *(trace.at_s for trace in traces)]))
    moments = moments[(moments >= start_s) & (moments < end_s)]
    counts = np.array([_counts_at(trace, moments) for trace in traces])
    at_s: list[float] = []
    held: list[int] = []
    zone = int(counts[:, 0].argmax())
    for at, moment in enumerate(moments.tolist()):
        now = np.minimum(counts[:, at], machines)
        best = int(now.argmax())
        if now[zone] < machines and now[best] > now[zone]:
            if held and held[-1] > 0:
                at_s.append(moment)
                held.append(0)
                moment += _MOVE_S
            zone = best
        if at_s and moment <= at_s[-1]:
            moment = at_s[-1] + 1e-3
        at_s.append(moment)
        held.append(int(now[zone]))
    keep = [i for i in range(len(at_s)) if i == 0 or held[i] != held[i - 1]]
    times = np.array([at_s[i] for i in keep])
    return AvailabilityTrace(times, np.array([held[i] for i in keep], dtype=np.int64), max(end_s, float(times[-1])))


def _counts_at(trace: AvailabilityTrace, moments: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[int]:
    place = np.searchsorted(trace.at_s, moments, side="right") - 1
    return [int(count) for count in trace.counts[np.maximum(place, 0)]]
