"""Jobs and nodes as Slurm reports them, with what a job requests beside GPUs and what is kept in its comments.

Policies place GPUs. Slurm also gives out CPUs, and memory where it is configured to (`CR_Core_Memory` and the like),
and lets a job that is pinned to a node without them wait there for ever. So a placement counts only where these are
free (`ResourceNeed`, `FreeResources`):

    CPUs on a node with g GPUs      max(1, --mincpus, --cpus-per-task, g · --cpus-per-gpu)
    CPUs on all of them together    at least what the job requests in all
    memory on a node                --mem, or --mem-per-cpu · CPUs, or --mem-per-gpu · g; none given: all of the node's

`PinMark`: what a job requested before it was pinned, kept in Slurm itself as `AdminComment=stallwise:{"least":1,…}`. A
pin overwrites the nodes a job requested. They are in the state, and in the mark, so that a lost state is no loss: the
next controller, or the command that releases all jobs, reads them back. The mark also tells a pin from what a user
wrote into the job since. Only administrators and operators write this field; where one has, no mark is made.

`JobDescription`: what a job says about itself beyond Slurm's fields, in its comment, like
`stallwise:{"speeds":[1,0.9,0.6],…}`. Comments are the user's own text. What does not decode, or lies outside its
bounds, is ignored.
"""

import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

import msgspec

from stallwise.errors import InputError, StallwiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNeed:
    """What a job requests beside GPUs."""

    cpus: int = 1
    """On all nodes together."""
    cpus_per_node: int = 1
    cpus_per_gpu: int = 0
    memory_mb: float = 0.0
    """On each node; 0: not given."""
    memory_mb_per_cpu: float = 0.0
    memory_mb_per_gpu: float = 0.0
    whole_nodes: bool = False
    """No other job may be on its nodes."""

    def cpus_with(self, gpus: int) -> int:
        """Return the CPUs it needs on a node where it has `gpus` GPUs."""
        return max(1, self.cpus_per_node, self.cpus_per_gpu * gpus)

    def memory_mb_with(self, gpus: int, cpus: float, whole_mb: float) -> float:
        """Return the memory it needs on a node with `gpus` GPUs and `cpus` CPUs; all of it where it gives none."""
        memory_mb = max(self.memory_mb, self.memory_mb_per_cpu * cpus, self.memory_mb_per_gpu * gpus)
        return memory_mb or whole_mb


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeResources:
    """CPUs and memory that are free on a node."""

    cpus: float = math.inf
    memory_mb: float = math.inf
    """Infinite where Slurm does not give memory out."""
    whole_mb: float = 0.0
    """Memory of the node."""
    whole_cpus: float = math.inf
    empty: bool = True
    """Whether no job is on the node."""

    def holds(self, need: ResourceNeed, gpus: int) -> bool:
        """Tell whether a job can have `gpus` GPUs here."""
        cpus = need.cpus_with(gpus)
        if cpus > self.cpus or (need.whole_nodes and not self.empty):
            return False
        return math.isinf(self.memory_mb) or need.memory_mb_with(gpus, cpus, self.whole_mb) <= self.memory_mb

    def max_gpus(self, need: ResourceNeed, free: int) -> int:
        """Return how many of the free GPUs a job can have here."""
        return next((gpus for gpus in range(free, 0, -1) if self.holds(need, gpus)), 0)


def suffices(need: ResourceNeed, placed: Mapping[str, int], spares: Mapping[str, FreeResources]) -> bool:
    """Tell whether every node has what the job needs there, and all together what it needs in all."""
    if not all(spares[node].holds(need, gpus) for node, gpus in placed.items()):
        return False
    return sum(spares[node].cpus for node in placed) >= need.cpus


def after_start(
    need: ResourceNeed, placed: Mapping[str, int], spares: Mapping[str, FreeResources]
) -> dict[str, FreeResources]:
    """Return what is free on a job's nodes once it has started there."""
    return {node: _changed(spares[node], need, placed, node, -1) for node in placed if node in spares}


def after_stop(
    need: ResourceNeed, placed: Mapping[str, int], spares: Mapping[str, FreeResources], others: Collection[str] = ()
) -> dict[str, FreeResources]:
    """Return what is free on a job's nodes once it has left; on `others` more jobs are known to stay.

    Slurm may have given it more than it requested: then this is too little. A node is empty again where all its CPUs
    are free, or where the job was alone.
    """
    return {node: _after_leaving(spares[node], need, placed, node, node in others) for node in placed if node in spares}


def _after_leaving(
    spare: FreeResources, need: ResourceNeed, placed: Mapping[str, int], node: str, shared: bool
) -> FreeResources:
    after = _changed(spare, need, placed, node, +1)
    if need.whole_nodes and not shared:
        memory = spare.memory_mb if math.isinf(spare.memory_mb) else spare.whole_mb
        return replace(after, cpus=max(after.cpus, spare.whole_cpus), memory_mb=memory, empty=True)
    return replace(after, empty=not shared and (spare.empty or after.cpus >= spare.whole_cpus))


def _changed(
    spare: FreeResources, need: ResourceNeed, placed: Mapping[str, int], node: str, sign: int
) -> FreeResources:
    cpus = max(need.cpus_with(placed[node]), math.ceil(need.cpus / len(placed)))
    memory = need.memory_mb_with(placed[node], cpus, spare.whole_mb)
    if need.whole_nodes and sign < 0:
        return replace(spare, cpus=0, memory_mb=min(0.0, spare.memory_mb), empty=False)
    return replace(
        spare,
        cpus=max(0, spare.cpus + sign * cpus),
        memory_mb=min(max(0.0, spare.memory_mb + sign * memory), max(spare.whole_mb, spare.memory_mb)),
        empty=spare.empty and sign > 0,
    )


MARK_PREFIX = "stallwise:"
LONG_MARK = MARK_PREFIX + "long"
_LONGEST_MARK = 1000
"""Characters; Slurm takes 1024 in a comment."""


class PinMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The nodes a job requested itself, and the pin that overwrote them."""

    least: int = 1
    most: int = 0
    required: tuple[str, ...] = ()
    nodes: int = 0
    """Number of nodes it was pinned to."""
    pin: int = 0
    """Checksum of their names."""

    @classmethod
    def of(cls, least: int, most: int, required: tuple[str, ...], pinned: Iterable[str]) -> Self:
        """Make the mark of a job about to be pinned."""
        names = tuple(pinned)
        return cls(least=least, most=most, required=required, nodes=len(names), pin=_checksum(names))

    def pinned_to(self, nodes: Iterable[str]) -> bool:
        """Tell whether a job's required nodes are still those of the pin."""
        return _checksum(nodes) == self.pin


def _checksum(nodes: Iterable[str]) -> int:
    return zlib.crc32(",".join(sorted(nodes)).encode())


def mark_text(mark: PinMark) -> str:
    """Return the comment's text; where the mark is too long, a text that is no mark: only the state has it then."""
    text = MARK_PREFIX + msgspec.json.encode(mark).decode()
    return text if len(text) <= _LONGEST_MARK else LONG_MARK


def mark_in(comment: str) -> PinMark | None:
    """Return the mark in an administrator's comment; None where there is none."""
    if not comment.startswith(MARK_PREFIX):
        return None
    try:
        return msgspec.json.decode(comment[len(MARK_PREFIX) :], type=PinMark)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


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
    """Slurm did not answer, or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, or one task of an array, as Slurm reports it. Times are seconds since the epoch; 0 is none."""

    key: str
    """Its name in Slurm's commands: `17`, or `17_3` of an array."""
    name: str
    user: str
    partition: str
    state: str
    """PENDING, RUNNING, COMPLETING, COMPLETED …"""
    held: bool
    reason: str
    gang: int
    """GPUs it requests; 0: none."""
    per_node: int
    """GPUs it requests on every node; 0: Slurm may spread them as it likes."""
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
    """GPUs it has, by node."""
    in_all: bool = True
    """GPUs were requested in all; else `gang` follows from the number of nodes."""
    unit: int = 1
    """GPUs of a node come in multiples of this (GPUs per task)."""
    need: ResourceNeed = field(default_factory=ResourceNeed)
    mark: PinMark | None = None
    """What it requested before it was pinned, as the pin left it in Slurm."""
    markable: bool = True
    """No administrator has written a comment where marks go."""
    mark_is_long: bool = False
    """It was pinned, and what it requested did not fit into a comment: only the state has it."""

    @property
    def pending(self) -> bool:
        """Whether it waits, held or not."""
        return self.state == "PENDING"

    @property
    def running(self) -> bool:
        """Whether it has its nodes and is not ending."""
        return self.state in RUNNING

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
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

    def free(self, *, counts_memory: bool) -> FreeResources:
        """Return CPUs and memory that are free; memory only where Slurm gives it out (`CR_…_Memory`)."""
        cpus = self.cpus if self.cpus is not None else self.idle_cpus
        idle = math.inf if self.idle_cpus is None else self.idle_cpus
        memory = max(0.0, self.memory_mb - self.used_memory_mb) if counts_memory else math.inf
        return FreeResources(
            cpus=idle,
            memory_mb=memory,
            whole_mb=self.memory_mb,
            whole_cpus=math.inf if cpus is None else cpus,
            empty=idle == cpus or cpus is None,
        )

    def whole(self, *, counts_memory: bool) -> FreeResources:
        """Return CPUs and memory of the empty node."""
        cpus = math.inf if self.cpus is None else self.cpus
        memory = self.memory_mb if counts_memory else math.inf
        return FreeResources(cpus=cpus, memory_mb=memory, whole_mb=self.memory_mb, whole_cpus=cpus, empty=True)


_DIGITS, _MOST_GPUS = 18, 10**9


def gpus_in(text: str) -> int:
    """Count the GPUs in a generic-resource string.

    Like `gpu:4`, `gpu:a100:4(S:0-1)`, `gres:gpu:8`, `gpu:a100:2(IDX:0,3),shard:1`. A bare `gpu`
    is one. Index lists in brackets hold commas and are removed first.
    """
    plain = re.sub(r"\([^)]*\)", "", text)
    return sum(_count(piece) for piece in plain.split(",") if re.match(r"\s*(gres[:/])?gpu\b", piece))


def _count(piece: str) -> int:
    last = re.split(r"[:=]", piece.strip())[-1]
    return min(int(last[:_DIGITS]), _MOST_GPUS) if last.isdecimal() else 1


COMMENT_PREFIX = "stallwise:"
_LONGEST = 1024
"""Characters that Slurm takes in a comment."""

SpeedFraction = Annotated[float, msgspec.Meta(ge=1e-6, le=1)]


class JobDescription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's own description: how its speed depends on placement, and where it records its steps."""

    speeds: Annotated[tuple[SpeedFraction, ...], msgspec.Meta(max_length=8)] = ()
    """Speed inside a machine, inside a rack, beyond: 1 is full. Empty: placement does not matter."""
    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """Observed speeds are shared between jobs of one model."""
    step_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds of one step at full speed; with it a single observation gives a speed."""
    work_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Seconds it will run at full speed, where that is known."""
    record: Annotated[str, msgspec.Meta(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    """Folder of the run record it writes; a path without control characters."""


def comment_of(description: JobDescription) -> str:
    """Return the text of the job's comment."""
    text = COMMENT_PREFIX + msgspec.json.encode(description).decode()
    if len(text) > _LONGEST:
        raise InputError(f"The job's description is {len(text)} characters long; Slurm takes {_LONGEST}.")
    return text


def description_in(comment: str) -> JobDescription | None:
    """Return the description in a comment; None where there is none that can be used."""
    at = comment.find(COMMENT_PREFIX)
    if at < 0 or len(comment) > 2 * _LONGEST:
        return None
    try:
        description = msgspec.json.decode(comment[at + len(COMMENT_PREFIX) :], type=JobDescription)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    numbers = (*description.speeds, description.step_s or 1.0, description.work_s or 1.0)
    return description if all(math.isfinite(value) for value in numbers) else None
