"""Amounts of five resources, virtual machines that come and go, and hosts.

All amounts are whole units that an actuator can set.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.sentences import Sentence

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

RESOURCES = ("cpu", "memory", "disk", "network", "gpu")
FAST = ("cpu", "gpu")
"""Resources whose lack slows a machine at once. Memory, disk and network are flat over the range the paper measured."""
_LARGEST = 2**23
"""Units of one resource on one host (8 TiB, 8,388 cores): sizes times their sum a hundred hosts deep fit 64 bits."""


class ResourceAmounts(NamedTuple):
    """Amounts of the five resources, in the order of `RESOURCES`."""

    cpu_milli: int = 0
    """Thousandths of a core."""
    memory_mib: int = 0
    disk_mib_s: int = 0
    """Bandwidth to disks: space is never taken back."""
    network_mbit_s: int = 0
    gpu_milli: int = 0
    """Thousandths of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UseSeries:
    """Fractions of their size that machines use over time: [series, slot]; a series starts over at its end."""

    part: Floats
    slot_s: float = 300.0
    source: str = ""

    def p95(self) -> Floats:
        """95th percentile of each series."""
        return np.asarray(np.percentile(self.part, 95, axis=1))


FULL_USE = UseSeries(part=np.ones((1, 1)), source="all of it, always")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VirtualMachines:
    """Virtual machines or pods in order of arrival. Arrays have one row each."""

    source: str
    format: str
    arrival_s: Floats
    end_s: Floats
    size: Counts
    """[machine, resource]"""
    least: Counts
    """Smallest size with which a machine works; 0 where it is unknown."""
    low: npt.NDArray[np.bool_]
    """Whether it may be shrunk (or preempted); others are on demand."""
    priority: Floats
    """Above 0, at most 1; of low-priority machines."""
    use: UseSeries = FULL_USE
    series: Counts
    """Which series of `use` it follows, -1: it always uses all it has."""
    offset: Counts
    """Slot of the series at which it starts."""
    notes: tuple[Sentence, ...] = ()

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def life_s(self) -> Floats:
        """From arrival to end."""
        return self.end_s - self.arrival_s

    def take(self, rows: Counts) -> "VirtualMachines":
        """Select machines by index, in order of arrival."""
        kept = np.sort(rows)
        arrays = ("arrival_s", "end_s", "size", "least", "low", "priority", "series", "offset")
        return replace(self, **{name: getattr(self, name)[kept] for name in arrays})

    def with_least(self, fraction: float) -> "VirtualMachines":
        """Return the same machines, none of which works with less than a fraction of its size."""
        return replace(self, least=np.ceil(self.size * fraction).astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hosts:
    """Servers by what they have: [host, resource]."""

    total: Counts
    name: str = ""

    def __len__(self) -> int:
        return len(self.total)

    def first(self, count: int) -> "Hosts":
        """Select `count` hosts: evenly spread where they differ, repeated where there are fewer."""
        if count <= len(self):
            rows = np.floor(np.arange(count) * len(self) / count).astype(np.int64)
            return replace(self, total=self.total[rows])
        return replace(self, total=self.total[np.arange(count) % len(self)])


def equal_hosts(size: ResourceAmounts, count: int = 1, name: str = "") -> Hosts:
    """Make `count` equal hosts."""
    return Hosts(total=np.tile(np.array(size, dtype=np.int64), (count, 1)), name=name)


def check_machines(machines: VirtualMachines, hosts: Hosts) -> None:
    """Reject what cannot be simulated: no machines, ends before arrivals, amounts in too small units."""
    if len(machines) == 0:
        raise InputError(f"{machines.source} has no machine that can be simulated.")
    if not np.isfinite(machines.arrival_s).all() or (machines.life_s < 0).any():
        raise InputError(f"{machines.source} has machines that end before they come.")
    if hosts.total.max() > _LARGEST:
        raise InputError("A host has over 8 million units of a resource; are amounts in bytes instead of MiB?")


def check_sizes(machines: VirtualMachines, hosts: Hosts) -> None:
    """Reject machines that no host of a fleet could ever hold."""
    fits = np.zeros(len(machines), dtype=bool)
    for total in np.unique(hosts.total, axis=0):
        fits |= (machines.size <= total).all(axis=1)
    if not fits.all():
        row = int(np.argmin(fits))
        amounts = ", ".join(f"{amount:,} {name}" for name, amount in _named(machines.size[row]) if amount)
        raise InputError(
            f"{int((~fits).sum()):,} machines of {machines.source} are larger than every host (the first asks for "
            f"{amounts}). Give larger hosts."
        )


def _named(row: Counts) -> list[tuple[str, int]]:
    return [(name, int(amount)) for name, amount in zip(ResourceAmounts._fields, row, strict=True)]


def parse_host(text: str) -> ResourceAmounts:
    """Parse `cpu=48,memory=128GiB,gpu=8`: cores, bytes, GPUs, `disk=` and `network=` as rates per second."""
    from stallwise.units import parse_bytes, parse_rate

    amounts: dict[str, int] = {}
    for piece in text.split(","):
        name, _, value = (part.strip() for part in piece.partition("="))
        if name not in RESOURCES or not value:
            raise InputError(f"A host is cpu=48,memory=128GiB (also disk, network, gpu), not {text!r}.")
        if name in ("cpu", "gpu"):
            amounts[f"{name}_milli"] = round(1000 * _positive(value, text))
        elif name == "memory":
            amounts["memory_mib"] = int(parse_bytes(value) // 2**20)
        elif name == "disk":
            amounts["disk_mib_s"] = int(parse_rate(value) // 2**20)
        else:
            amounts["network_mbit_s"] = int(parse_rate(value) * 8 // 10**6)
    return ResourceAmounts(**amounts)


def _positive(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < 1e6:
        raise InputError(f"{value!r} in {text!r} is no number above 0.")
    return number
