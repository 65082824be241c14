"""What Slurm says, as this package takes it: jobs, nodes, and the sizes in their generic-resource strings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwise.errors import StallwiseError

RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING"})
OVER = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
    }
)
UNUSABLE = frozenset(
    {
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "ERROR",
        "UNKNOWN",
        "FUTURE",
        "MAINTENANCE",
        "MAINT",
        "RESERVED",
        "NOT_RESPONDING",
        "INVALID_REG",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "POWER_DOWN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "BLOCKED",
        "PLANNED_DOWN",
    }
)
"""States and flags of a node on which nothing new is started."""


class SlurmError(StallwiseError):
    """Slurm did not answer, or said no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, or one task of an array, as Slurm sees it. Times are seconds since the epoch; 0 is none."""

    key: str
    """What Slurm's commands call it: `17`, or `17_3` of an array."""
    name: str
    user: str
    partition: str
    state: str
    """PENDING, RUNNING, COMPLETING, COMPLETED …"""
    held: bool
    reason: str
    gang: int
    """GPUs it asks for; 0: none."""
    per_node: int
    """GPUs it asks for on every node; 0: Slurm may spread them as it likes."""
    least_nodes: int
    most_nodes: int
    """0: no limit."""
    submit_s: float
    eligible_s: float
    start_s: float
    end_s: float
    restarts: int
    exit_code: int
    limit_s: float | None
    depends: bool
    required: tuple[str, ...]
    excluded: tuple[str, ...]
    features: str
    special: bool
    """Slurm alone can start it: part of a heterogeneous job, a reservation, not a batch job."""
    comment: str
    requeues: bool = True
    """It may be put back into the queue."""
    held_gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs it holds, by node."""

    @property
    def pending(self) -> bool:
        """Waits, held or not."""
        return self.state == "PENDING"

    @property
    def running(self) -> bool:
        """Has its nodes and is not ending."""
        return self.state in RUNNING

    @property
    def over(self) -> bool:
        """Ended, well or not."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node with its GPUs."""

    name: str
    gpus: int
    used: int
    states: frozenset[str]
    partitions: tuple[str, ...]
    idle_cpus: int | None = None
    features: frozenset[str] = frozenset()

    @property
    def usable(self) -> bool:
        """Whether a job may be started there."""
        return not (self.states & UNUSABLE) and self.idle_cpus != 0


def gpus_in(text: str) -> int:
    """GPUs in a generic-resource string: `gpu:4`, `gpu:a100:4(S:0-1)`, `gres:gpu:8`, `gpu:a100:2(IDX:0,3),shard:1`.

    A bare `gpu` is one. Index lists in brackets hold commas and are taken away first.
    """
    plain = re.sub(r"\([^)]*\)", "", text)
    return sum(_count(piece) for piece in plain.split(",") if re.match(r"\s*(gres[:/])?gpu\b", piece))


def _count(piece: str) -> int:
    last = re.split(r"[:=]", piece.strip())[-1]
    return int(last) if last.isdecimal() else 1
