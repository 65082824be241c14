"""Shrinking a training job instead of killing it: its step with less of a resource, slack, knee, and the choice.

A pipelined step lasts as long as the slowest of three things (Fuerst, Ali-Eldin, Shenoy, Sharma, *Cloud-scale VM
Deflation for Running Interactive Applications On Transient Servers*, HPDC 2020, show the shape: flat, then a knee;
for training it can be worked out):

    step = max(consume, (prepare + blocked) / w, C / c)

consume is the step that never waits for data (the graph of `whatif`), w the loader's workers, C the core-seconds that
one step takes and c the cores that are left. With c0 cores that is max(T_gpu, T_load · c0/c). Up to the knee nothing is
lost, beyond it speed falls as the resource does. What the training process computes on a core itself, m of C, is part
of consume, too: with less than one core it takes m (1/c - 1) longer while the quota is used up, which is the part
C / (c step) of the time. Taking over a batch that is ready costs a moment, h, which was measured and is part of consume
as well. Memory acts through the page cache: what it no longer holds is blocked time (`cache`).
Bandwidth stretches blocked time and the exchange between nodes; a share of the GPU stretches compute.

All ranks of a synchronous job wait for its slowest. If a slow rank takes a smaller part of the same global batch, by
its speed, they end together again: `shares`. Parts differ only where a step gets shorter by it by 5 % or more
(`parts_for`): a larger part costs the others memory and time of their own, which no prediction is sure to see.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stallwise.errors import InputError
from stallwise.model.cache import Policy, miss
from stallwise.model.fabric import Fabric
from stallwise.model.whatif import Change, Job, what_if

Resource = Literal["cpu", "memory", "bandwidth", "gpu"]
RESOURCES: tuple[Resource, ...] = ("cpu", "memory", "bandwidth", "gpu")
UNNOTICED = 0.05
"""A step that is longer by no more than this counts as not longer: what defines the knee."""
WORTH = 0.05
"""Unequal parts of a batch are dealt where they make the step shorter by at least this."""

_HALVINGS = 40


def speed_kept(slack: float, kept: float) -> float:
    """The part of its speed that a job keeps with `kept` of a resource of which it leaves `slack` idle, all 0 to 1.

    Flat down to the knee at 1 - slack, then in proportion: min(1, kept / (1 - slack)). It follows from the maximum
    above for whatever binds next; `Response` has the curve of a measured job.
    """
    for name, part in (("slack", slack), ("kept", kept)):
        if not 0 <= part <= 1:
            raise InputError(f"{name} is a part from 0 to 1, not {part}.")
    return 1.0 if kept >= 1 - slack else kept / (1 - slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is left to a rank of each resource, as parts of what it had."""

    cpu: float = 1.0
    memory: float = 1.0
    bandwidth: float = 1.0
    gpu: float = 1.0

    def __post_init__(self) -> None:
        for name in RESOURCES:
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"What is kept of {name} is a part above 0 and up to 1, not {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a node's memory is good for beside its processes: `bytes` in all, `used_bytes` by them."""

    bytes: float
    used_bytes: float
    dataset_bytes: float
    policy: Policy = "page cache"

    def __post_init__(self) -> None:
        if not (self.bytes > 0 and self.dataset_bytes > 0 and self.used_bytes >= 0):
            raise InputError(
                f"Memory and the data that is read through it are more than 0 bytes, not {self.bytes:g} and "
                f"{self.dataset_bytes:g}. Give --dataset the size of the data."
            )

    def missed(self, kept: float) -> float:
        """The part of an epoch's reads that goes to storage with so much of the memory."""
        return miss(self.policy, max(0.0, kept * self.bytes - self.used_bytes) / self.dataset_bytes)

    @property
    def least(self) -> float:
        """Less than this part and the processes themselves do not fit."""
        return min(1.0, self.used_bytes / self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step with so much of everything; `binds` is what it waits for: `consume`, `cpu` or `workers`."""

    kept: Kept
    step_s: float
    low_s: float
    high_s: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A job's response to less of one resource."""

    resource: Resource
    points: tuple[Point, ...]
    knee: float
    """The least part with which the step is at most 5 % longer."""
    speed: tuple[float, ...]
    """What is left of the job's speed at each point."""

    @property
    def slack(self) -> float:
        """What can be taken unnoticed."""
        return 1.0 - self.knee


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """One rank of a measured job, and what it does with less; the other ranks are as they were and wait for it."""

    job: Job
    fabric: Fabric | None
    cores: float
    """Of this rank: c0."""
    cpu_s: float = 0.0
    """Core-seconds that this rank's loader takes for a step."""
    process_s: float = 0.0
    """Core-seconds that its training process takes for a step itself."""
    handing_s: float = 0.0
    """What a step waits for a batch that its workers have ready."""
    memory: Memory | None = None
    _consumed: dict[tuple[float, float, float], tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> int:
        """Of the job."""
        return self.job.gpus or 1

    @property
    def known(self) -> tuple[Resource, ...]:
        """The resources that its run says something about."""
        loads, exchanges = self.job.work is not None, self.fabric is not None and self.fabric.between is not None
        said = {
            "cpu": self.cpu_s + self.process_s > 0,
            "memory": loads and self.memory is not None and self.job.cold_blocked_s is not None,
            "bandwidth": loads or exchanges,
            "gpu": True,
        }
        return tuple(resource for resource in RESOURCES if said[resource])

    def at(self, kept: Kept, batch: float = 1.0, link: float | None = None) -> Point:
        """The rank's own step with so much left and `batch` times its batch.

        `link` is what is left of the bandwidth for the exchange, where that is not what its own loader has left.
        """
        if self.memory is not None and kept.memory < self.memory.least:
            return Point(kept=kept, step_s=math.inf, low_s=math.inf, high_s=math.inf, binds="memory")
        consume = self._consume_s(kept.gpu, kept.bandwidth if link is None else link, batch)
        late_s = self._late_s(kept, batch, consume[0]) + self.handing_s
        consume = consume[0] + late_s, consume[1] + late_s, consume[2] + late_s
        if self.job.work is None:
            return Point(kept=kept, step_s=consume[0], low_s=consume[1], high_s=consume[2], binds="consume")
        workers_s, cpu_s = self._loading_s(kept, batch, consume[0])
        low, high = self.job.data_factors
        if self.job.work.workers == 0:  # loading and consuming take turns
            load_s = max(workers_s, cpu_s)
            return Point(
                kept=kept,
                step_s=consume[0] + load_s,
                low_s=consume[1] + low * load_s,
                high_s=consume[2] + high * load_s,
                binds="cpu" if cpu_s > workers_s else "consume",
            )
        named = {"consume": consume[0], "workers": workers_s, "cpu": cpu_s}
        load_s = max(named["workers"], named["cpu"])
        return Point(
            kept=kept,
            step_s=max(consume[0], load_s),
            low_s=max(consume[1], low * load_s),
            high_s=max(consume[2], high * load_s),
            binds=max(named, key=lambda name: named[name]),
        )

    def curve(self, resource: Resource, levels: Sequence[float]) -> Curve:
        """The step at each level of one resource, the others as they were."""
        if resource not in self.known:
            raise InputError(f"{self.job.trace.source} says nothing about {resource}. {_REMEDY[resource]}")
        points = tuple(self.at(_only(resource, level)) for level in levels)
        whole_s = self.at(Kept()).step_s
        return Curve(
            resource=resource,
            points=points,
            knee=knee(lambda level: self.at(_only(resource, level)).step_s),
            speed=tuple(whole_s / point.step_s for point in points),
        )

    def cooperative(self, kept: Kept) -> tuple[Point, tuple[float, ...]]:
        """The job's step when the rank also gives up a part of its batch, and every rank's part; the deflated last.

        Its part is the one with the shortest step of all, or the whole one where that is not shorter by `WORTH`. Parts
        of a whole batch are taken as divisible where the run does not say how many samples it has.
        """
        own, equal = self.at(kept), (1.0,) * self.ranks
        if math.isinf(own.step_s) or self.ranks == 1:
            return own, equal
        batch = max(1, round(self.job.samples or _FINE))
        count = self._own_part(kept, batch)
        point = self._together(kept, batch, count)
        if not _worth(own.step_s, point.step_s):
            return own, equal
        each, more = divmod(batch * self.ranks - count, self.ranks - 1)
        counts = (*(each + (rank < more) for rank in range(self.ranks - 1)), count)
        return point, tuple(one / batch for one in counts)

    def _own_part(self, kept: Kept, batch: int) -> int:
        """The deflated rank's samples with which the slower of it and the others is quickest.

        Its step grows with its part and theirs falls, so that the best lies where they meet; of equals the largest.
        """
        low, high = 1, batch
        while low < high:
            middle = (low + high) // 2
            slower = self.at(kept, middle / batch).step_s >= self._others(kept, batch, middle).step_s
            low, high = (low, middle) if slower else (middle + 1, high)
        near = {max(1, low - 1), low, batch}
        return min(near, key=lambda count: (self._together(kept, batch, count).step_s, -count))

    def _together(self, kept: Kept, batch: int, count: int) -> Point:
        points = self.at(kept, count / batch), self._others(kept, batch, count)
        return max(points, key=lambda point: point.step_s)

    def _others(self, kept: Kept, batch: int, count: int) -> Point:
        """A rank that has everything and takes what the deflated one leaves; the exchange is slow for all of them."""
        most = math.ceil((batch * self.ranks - count) / (self.ranks - 1))
        return self.at(Kept(), most / batch, kept.bandwidth)

    def _consume_s(self, gpu: float, bandwidth: float, batch: float) -> tuple[float, float, float]:
        found = self._consumed.get((gpu, bandwidth, batch))
        if found is None:
            job, fabric = replace(self.job, work=None, cold_blocked_s=None), self.fabric
            if fabric is not None and fabric.between is not None and bandwidth != 1.0:
                fabric = replace(fabric, between=fabric.between.slower(1 / bandwidth))
            answer = what_if(job, Change(compute_speed=gpu, batch=batch), fabric, job.gpus)
            found = answer.step_s, answer.low_s, answer.high_s
            self._consumed[gpu, bandwidth, batch] = found
        return found

    def _late_s(self, kept: Kept, batch: float, consume_s: float) -> float:
        """By how much the process's own work on a core takes longer with less than one."""
        left, own_s = kept.cpu * self.cores, self._own_s(batch, consume_s)
        used_up = min(1.0, (self.cpu_s * batch + own_s) / (left * consume_s)) if consume_s else 1.0
        return own_s * max(0.0, 1 / left - 1) * used_up

    def _own_s(self, batch: float, consume_s: float) -> float:
        """The process's own work with another batch: of one that computes it grows with it, of one that waits for a
        device it is the same for every step; in between, by how busy it is."""
        busy = min(1.0, self.process_s * batch / consume_s) if consume_s else 1.0
        return self.process_s * (1 + (batch - 1) * busy)

    def _loading_s(self, kept: Kept, batch: float, consume_s: float) -> tuple[float, float]:
        """Seconds per step that the workers allow, and that the cores do."""
        work = self.job.work
        assert work is not None  # noqa: S101 - asked only then
        blocked_s = work.blocked_s
        if self.memory is not None and self.job.cold_blocked_s is not None:
            gone = self.memory.missed(kept.memory)
            blocked_s = (1 - gone) * work.blocked_s + gone * self.job.cold_blocked_s
        blocked_s /= kept.bandwidth
        left = kept.cpu * self.cores
        if work.workers == 0:
            return (work.prepare_s + blocked_s) * batch, (self.cpu_s / left + blocked_s) * batch
        cpu_s = self.cpu_s * batch + self._own_s(batch, consume_s)
        return (work.prepare_s + blocked_s) * batch / work.workers, cpu_s / left


_FINE = 1000
_REMEDY: dict[Resource, str] = {
    "cpu": "Profile the job again on Linux, with its loader.",
    "memory": "Profile it again with the data in local files and without --no-cold, and give --dataset.",
    "bandwidth": "Profile it again with its loader, or on several nodes.",
    "gpu": "",
}


def _only(resource: Resource, level: float) -> Kept:
    return replace(Kept(), **{resource: level})


def knee(step_s: Callable[[float], float], unnoticed: float = UNNOTICED) -> float:
    """The least part kept with which the step is at most `unnoticed` longer, for a step that never falls with less."""
    limit_s = (1 + unnoticed) * step_s(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if step_s(middle) <= limit_s else (middle, high)
    return high


def shares(total: int, speeds: Sequence[float], most: int | None = None) -> tuple[int, ...]:
    """Samples of one global batch for ranks of these speeds: at least one each, together exactly `total`.

    Sample by sample to the rank that then ends first, so that the longest of b_i / s_i is the shortest there is; equal
    speeds get equal parts. `most` is the largest part that fits any rank.
    """
    if not speeds or min(speeds) <= 0 or not all(map(math.isfinite, speeds)):
        raise InputError(f"Speeds of ranks are numbers above 0, not {list(speeds)}.")
    if total < len(speeds) or (most is not None and most * len(speeds) < total):
        raise InputError(f"{total} samples cannot be dealt to {len(speeds)} ranks, at least 1 and at most {most} each.")
    parts = [1] * len(speeds)
    ends = [(2 / speed, rank) for rank, speed in enumerate(speeds) if most is None or most > 1]
    heapq.heapify(ends)
    for _ in range(total - len(speeds)):
        _, rank = ends[0]
        parts[rank] += 1
        if parts[rank] == most:
            heapq.heappop(ends)
        else:
            heapq.heapreplace(ends, ((parts[rank] + 1) / speeds[rank], rank))
    return tuple(parts)


def parts_for(total: int, speeds: Sequence[float], most: int | None = None) -> tuple[int, ...]:
    """What ranks of these speeds take of one global batch: `shares` where these end sooner by `WORTH`, else equal ones.

    Whole samples and a speed that was measured are coarse: 17 and 15 for 94 % of the speed end no sooner than 16 and
    16, and the others would be the slower for nothing.
    """
    unequal, equal = shares(total, speeds, most), shares(total, [1.0] * len(speeds), most)
    return unequal if _worth(_longest(equal, speeds), _longest(unequal, speeds)) else equal


def _longest(parts: Sequence[int], speeds: Sequence[float]) -> float:
    return max(count / speed for count, speed in zip(parts, speeds, strict=True))


def _worth(equal_s: float, unequal_s: float) -> bool:
    return unequal_s <= (1 - WORTH) * equal_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What a provider wants back for how long, and what losing a rank instead costs."""

    lasts_s: float
    restart_s: float
    """From the moment a machine is to be had again until its rank trains: T_o."""
    again_s: float = 0.0
    """Training of the whole job that is done again after the loss."""
    pause_s: float = 0.0
    """Time in which all ranks stand still, for the loss and for the return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Both ways, in seconds of the whole job's training at full speed that are lost."""

    deflate_s: float
    lose_s: float
    break_even_s: float
    """Pressure that lasts longer than this is better met by giving a rank up; infinite: none is."""

    @property
    def deflate(self) -> bool:
        """Whether to deflate."""
        return self.deflate_s <= self.lose_s


def choose(speed: float, ranks: int, pressure: Pressure) -> Choice:
    """Deflate now, keeping `speed` of the job's, or lose one of `ranks` now and get it back T_o after the pressure.

    (1-g) t against t/n + T_o/n + what is done again + what all pause for. For what one rank had, 1-g = 1/n without
    slack, so that deflation gains T_o/n and the rest; with slack also (g - 1 + 1/n) t.
    """
    if ranks < 1 or not 0 <= speed <= 1:
        raise InputError(f"A job has at least one rank and keeps 0 to 1 of its speed, not {ranks} and {speed}.")
    fixed_s = pressure.restart_s / ranks + pressure.again_s + pressure.pause_s
    excess = (1 - speed) - 1 / ranks
    return Choice(
        deflate_s=(1 - speed) * pressure.lasts_s,
        lose_s=pressure.lasts_s / ranks + fixed_s,
        break_even_s=fixed_s / excess if excess > 0 else math.inf,
    )
