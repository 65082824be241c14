"""What Slurm says, as this package takes it: jobs, nodes, and the sizes in their generic-resource strings."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwise.errors import StallwiseError
from stallwise.slurm.mark import Mark
from stallwise.slurm.room import Need, Spare

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
    in_all: bool = True
    """GPUs were asked for in all (`--gpus`); else `gang` follows from the number of nodes."""
    unit: int = 1
    """GPUs of a node come in multiples of this (`--gpus-per-task`)."""
    need: Need = field(default_factory=Need)
    mark: Mark | None = None
    """What it asked for before it was pinned, as the pin left it in Slurm."""
    markable: bool = True
    """No administrator has written a comment where marks go."""
    mark_is_long: bool = False
    """It was pinned, and what it asked for did not fit into a comment: only the state has it."""

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
    cpus: int | None = None
    memory_mb: float = 0.0
    used_memory_mb: float = 0.0

    @property
    def usable(self) -> bool:
        """Whether a job may be started there."""
        return not (self.states & UNUSABLE) and self.idle_cpus != 0

    def spare(self, *, counts_memory: bool) -> Spare:
        """CPUs and memory that are free; memory only where Slurm gives it out (`CR_…_Memory`)."""
        cpus = self.cpus if self.cpus is not None else self.idle_cpus
        idle = math.inf if self.idle_cpus is None else self.idle_cpus
        memory = max(0.0, self.memory_mb - self.used_memory_mb) if counts_memory else math.inf
        return Spare(
            cpus=idle,
            memory_mb=memory,
            whole_mb=self.memory_mb,
            whole_cpus=math.inf if cpus is None else cpus,
            empty=idle == cpus or cpus is None,
        )

    def whole(self, *, counts_memory: bool) -> Spare:
        """The same when nothing runs there."""
        cpus = math.inf if self.cpus is None else self.cpus
        memory = self.memory_mb if counts_memory else math.inf
        return Spare(cpus=cpus, memory_mb=memory, whole_mb=self.memory_mb, whole_cpus=cpus, empty=True)


def gpus_in(text: str) -> int:
    """GPUs in a generic-resource string: `gpu:4`, `gpu:a100:4(S:0-1)`, `gres:gpu:8`, `gpu:a100:2(IDX:0,3),shard:1`.

    A bare `gpu` is one. Index lists in brackets hold commas and are taken away first.
    """
    plain = re.sub(r"\([^)]*\)", "", text)
    return sum(_count(piece) for piece in plain.split(",") if re.match(r"\s*(gres[:/])?gpu\b", piece))


def _count(piece: str) -> int:
    last = re.split(r"[:=]", piece.strip())[-1]
    return int(last) if last.isdecimal() else 1
