"""Deflation: shrinking a training job instead of killing it. Its step with less of a resource, slack, knee, the choice.

A pipelined step lasts as long as the slowest of three things (Fuerst, Ali-Eldin, Shenoy, Sharma, *Cloud-scale VM
Deflation for Running Interactive Applications On Transient Servers*, HPDC 2020, show the shape: flat, then a knee;
for training it can be derived):

    step = max(consume, (prepare + blocked) / w, C / c)

consume is the step that never waits for data (the graph of `whatif`), w the loader's workers, C the core-seconds that
one step takes and c the cores that are left. With c0 cores that is max(T_gpu, T_load · c0/c). Up to the knee nothing
is lost, beyond it speed falls as the resource does. What the training process computes on a core itself, m of C, is
part of consume, too: with less than one core it takes m (1/c - 1) longer while the quota is used up, which is the
fraction C / (c step) of the time. Taking a batch that is ready costs a time h, which was measured and is part of
consume as well. Memory acts through the page cache: what it no longer holds is blocked time (`cache`). Bandwidth
stretches blocked time and the exchange between nodes; a share of the GPU stretches compute.

All ranks of a synchronous job wait for its slowest. If a slow rank takes a smaller part of the same global batch, by
its speed, they end together again: `shares`. Parts differ only where that makes a step shorter by 5 % or more
(`parts_for`): a larger part costs the others memory and time that the prediction may not include.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stallwise.errors import InputError
from stallwise.model.data.cache import CachePolicy, miss
from stallwise.model.exchange.fabric import Fabric
from stallwise.model.step.job import MeasuredJob
from stallwise.model.step.whatif import SetupChange, what_if

Resource = Literal["cpu", "memory", "bandwidth", "gpu"]
RESOURCES: tuple[Resource, ...] = ("cpu", "memory", "bandwidth", "gpu")
UNNOTICED = 0.05
"""Fraction by which a step may be longer at the knee."""
WORTH = 0.05
"""Fraction by which unequal parts of a batch must shorten the step to be used."""

_HALVINGS = 40


def speed_kept(slack: float, kept: float) -> float:
    """Fraction of its speed that a job keeps with `kept` of a resource of which it leaves `slack` idle, all 0 to 1.

    Flat down to the knee at 1 - slack, then in proportion: min(1, kept / (1 - slack)). It follows from the maximum
    above for whatever binds next; `DeflationResponse` has the curve of a measured job.
    """
    for name, part in (("slack", slack), ("kept", kept)):
        if not 0 <= part <= 1:
            raise InputError(f"{name} is a fraction from 0 to 1, not {part}.")
    return 1.0 if kept >= 1 - slack else kept / (1 - slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFractions:
    """Fractions of each resource that are left to a rank."""

    cpu: float = 1.0
    memory: float = 1.0
    bandwidth: float = 1.0
    gpu: float = 1.0

    def __post_init__(self) -> None:
        for name in RESOURCES:
            if not 0 < getattr(self, name) <= 1:
                raise InputError(
                    f"What is kept of {name} is a fraction above 0 and up to 1, not {getattr(self, name)}."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMemory:
    """Memory of a node: `bytes` in all, `used_bytes` by its processes; the rest caches data."""

    bytes: float
    used_bytes: float
    dataset_bytes: float
    policy: CachePolicy = "page cache"

    def __post_init__(self) -> None:
        if not (self.bytes > 0 and self.dataset_bytes > 0 and self.used_bytes >= 0):
            raise InputError(
                f"Memory and the data that is read through it are more than 0 bytes, not {self.bytes:g} and "
                f"{self.dataset_bytes:g}.",
                fields=("dataset",),
            )

    def missed(self, kept: float) -> float:
        """Fraction of an epoch's reads that goes to storage with the fraction `kept` of the memory."""
        return miss(self.policy, max(0.0, kept * self.bytes - self.used_bytes) / self.dataset_bytes)

    @property
    def least(self) -> float:
        """Smallest fraction of the memory in which the processes themselves fit."""
        return min(1.0, self.used_bytes / self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationPoint:
    """A step with given fractions of resources; `binds` is what limits it: `consume`, `cpu`, `workers` or `memory`."""

    kept: ResourceFractions
    step_s: float
    low_s: float
    high_s: float
    binds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationCurve:
    """Steps and speed of a job with less of one resource."""

    resource: Resource
    points: tuple[DeflationPoint, ...]
    knee: float
    """Smallest fraction with which the step is at most 5 % longer."""
    speed: tuple[float, ...]
    """Fraction of the job's speed that is left at each point."""

    @property
    def slack(self) -> float:
        """Fraction that can be taken without a longer step."""
        return 1.0 - self.knee


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeflationResponse:
    """One rank of a measured job with less of its resources; the other ranks are unchanged and wait for it."""

    job: MeasuredJob
    fabric: Fabric | None
    cores: float
    """Number of cores of this rank (c0)."""
    cpu_s: float = 0.0
    """Core-seconds of this rank's loader for a step."""
    process_s: float = 0.0
    """Core-seconds of its training process for a step."""
    handing_s: float = 0.0
    """Seconds that a step waits for a batch that its workers have ready (h)."""
    memory: NodeMemory | None = None
    on_gpu: bool = True
    """Whether the rank computes on a GPU, of which a share can be taken."""
    _consumed: dict[tuple[float, float, float], tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @property
    def ranks(self) -> int:
        """Number of ranks of the job."""
        return self.job.gpus or 1

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources whose effect follows from the run."""
        loads, exchanges = self.job.work is not None, self.fabric is not None and self.fabric.between is not None
        has_data = {
            "cpu": self.cpu_s + self.process_s > 0,
            "memory": loads and self.memory is not None and self.job.cold_blocked_s is not None,
            "bandwidth": loads or exchanges,
            "gpu": self.on_gpu,
        }
        return tuple(resource for resource in RESOURCES if has_data[resource])

    def at(self, kept: ResourceFractions, batch: float = 1.0, link: float | None = None) -> DeflationPoint:
        """Predict the rank's own step with the fractions `kept` and `batch` times its batch.

        `link` is the fraction of the bandwidth left for the exchange, where it differs from that of its own loader.
        """
        if self.memory is not None and kept.memory < self.memory.least:
            return DeflationPoint(kept=kept, step_s=math.inf, low_s=math.inf, high_s=math.inf, binds="memory")
        consume = self._consume_s(kept.gpu, kept.bandwidth if link is None else link, batch)
        late_s = self._late_s(kept, batch, consume[0]) + self.handing_s
        consume = consume[0] + late_s, consume[1] + late_s, consume[2] + late_s
        if self.job.work is None:
            return DeflationPoint(kept=kept, step_s=consume[0], low_s=consume[1], high_s=consume[2], binds="consume")
        workers_s, cpu_s = self._loading_s(kept, batch, consume[0])
        low, high = self.job.data_factors
        if self.job.work.workers == 0:  # loading and consuming take turns
            load_s = max(workers_s, cpu_s)
            return DeflationPoint(
                kept=kept,
                step_s=consume[0] + load_s,
                low_s=consume[1] + low * load_s,
                high_s=consume[2] + high * load_s,
                binds="cpu" if cpu_s > workers_s else "consume",
            )
        named = {"consume": consume[0], "workers": workers_s, "cpu": cpu_s}
        load_s = max(named["workers"], named["cpu"])
        return DeflationPoint(
            kept=kept,
            step_s=max(consume[0], load_s),
            low_s=max(consume[1], low * load_s),
            high_s=max(consume[2], high * load_s),
            binds=max(named, key=lambda name: named[name]),
        )

    def curve(self, resource: Resource, levels: Sequence[float]) -> DeflationCurve:
        """Predict the step at each level of one resource, the others unchanged."""
        if resource not in self.resources:
            fields = ("dataset",) if resource == "memory" else ()
            message = f"{self.job.trace.source} says nothing about {resource}. {_REMEDY[resource]}"
            raise InputError(message, fields=fields)
        points = tuple(self.at(_only(resource, level)) for level in levels)
        whole_s = self.at(ResourceFractions()).step_s
        return DeflationCurve(
            resource=resource,
            points=points,
            knee=knee(lambda level: self.at(_only(resource, level)).step_s),
            speed=tuple(whole_s / point.step_s for point in points),
        )

    def cooperative(self, kept: ResourceFractions) -> tuple[DeflationPoint, tuple[float, ...]]:
        """Predict the job's step when the rank also gives up a part of its batch; returns every rank's part, the
        deflated last.

        Its part is the one with the shortest step of all, or the whole one where that is not shorter by `WORTH`. The
        batch is taken as divisible where the run does not say how many samples it has.
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

    def _own_part(self, kept: ResourceFractions, batch: int) -> int:
        """The deflated rank's samples with which the slower of it and the others is fastest.

        Its step grows with its part and theirs falls, so that the best lies where they meet; of equals the largest.
        """
        low, high = 1, batch
        while low < high:
            middle = (low + high) // 2
            slower = self.at(kept, middle / batch).step_s >= self._others(kept, batch, middle).step_s
            low, high = (low, middle) if slower else (middle + 1, high)
        near = {max(1, low - 1), low, batch}
        return min(near, key=lambda count: (self._together(kept, batch, count).step_s, -count))

    def _together(self, kept: ResourceFractions, batch: int, count: int) -> DeflationPoint:
        points = self.at(kept, count / batch), self._others(kept, batch, count)
        return max(points, key=lambda point: point.step_s)

    def _others(self, kept: ResourceFractions, batch: int, count: int) -> DeflationPoint:
        """A rank with all its resources that takes what the deflated one leaves.

        The exchange is slow for all of them.
        """
        most = math.ceil((batch * self.ranks - count) / (self.ranks - 1))
        return self.at(ResourceFractions(), most / batch, kept.bandwidth)

    def _consume_s(self, gpu: float, bandwidth: float, batch: float) -> tuple[float, float, float]:
        times = self._consumed.get((gpu, bandwidth, batch))
        if times is None:
            job, fabric = replace(self.job, work=None, cold_blocked_s=None), self.fabric
            if fabric is not None and fabric.between is not None and bandwidth != 1.0:
                fabric = replace(fabric, between=fabric.between.slower(1 / bandwidth))
            answer = what_if(job, SetupChange(compute_speed=gpu, batch=batch), fabric, job.gpus)
            times = answer.step_s, answer.low_s, answer.high_s
            self._consumed[gpu, bandwidth, batch] = times
        return times

    def _late_s(self, kept: ResourceFractions, batch: float, consume_s: float) -> float:
        """Seconds by which the process's own work on a core takes longer with less than one core."""
        left, own_s = kept.cpu * self.cores, self._own_s(batch, consume_s)
        used_up = min(1.0, (self.cpu_s * batch + own_s) / (left * consume_s)) if consume_s else 1.0
        return own_s * max(0.0, 1 / left - 1) * used_up

    def _own_s(self, batch: float, consume_s: float) -> float:
        """Core-seconds of the process's own work with another batch.

        They grow with the batch where the process computes, and are constant where it waits for a device; in between,
        by how busy it is.
        """
        busy = min(1.0, self.process_s * batch / consume_s) if consume_s else 1.0
        return self.process_s * (1 + (batch - 1) * busy)

    def _loading_s(self, kept: ResourceFractions, batch: float, consume_s: float) -> tuple[float, float]:
        """Seconds per step that the workers allow, and that the cores do."""
        work = self.job.work
        assert work is not None  # noqa: S101 - only called then
        blocked_s = work.blocked_s
        if self.memory is not None and self.job.cold_blocked_s is not None:
            missed = self.memory.missed(kept.memory)
            blocked_s = (1 - missed) * work.blocked_s + missed * self.job.cold_blocked_s
        blocked_s /= kept.bandwidth
        left = kept.cpu * self.cores
        if work.workers == 0:
            return (work.prepare_s + blocked_s) * batch, (self.cpu_s / left + blocked_s) * batch
        cpu_s = self.cpu_s * batch + self._own_s(batch, consume_s)
        return (work.prepare_s + blocked_s) * batch / work.workers, cpu_s / left


_FINE = 1000
_REMEDY: dict[Resource, str] = {
    "cpu": "Profile the job again on Linux, with its loader.",
    "memory": "Profile it again with the data in local files and the cold phase, and give the size of the dataset.",
    "bandwidth": "Profile it again with its loader, or on several nodes.",
    "gpu": "The job computes on CPUs: take cores instead.",
}


def _only(resource: Resource, level: float) -> ResourceFractions:
    return replace(ResourceFractions(), **{resource: level})


def knee(step_s: Callable[[float], float], unnoticed: float = UNNOTICED) -> float:
    """Smallest fraction with which the step is at most `unnoticed` longer, for a step that never falls with less."""
    limit_s = (1 + unnoticed) * step_s(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if step_s(middle) <= limit_s else (middle, high)
    return high


def shares(total: int, speeds: Sequence[float], most: int | None = None) -> tuple[int, ...]:
    """Distribute the samples of one global batch to ranks by their speeds: at least one each, together exactly `total`.

    Each sample goes to the rank that then ends first, so that the longest of b_i / s_i is the shortest there is; equal
    speeds get equal parts. `most` is the largest part that fits any rank.
    """
    if not speeds or min(speeds) <= 0 or not all(map(math.isfinite, speeds)):
        raise InputError(f"Speeds of ranks are numbers above 0, not {list(speeds)}.")
    if total < len(speeds) or (most is not None and most * len(speeds) < total):
        raise InputError(
            f"{total} samples cannot be divided among {len(speeds)} ranks, at least 1 and at most {most} each."
        )
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
    """Divide one global batch among ranks: by `shares` where these end sooner by `WORTH`, else equally.

    Whole samples and measured speeds are coarse: 17 and 15 for 94 % of the speed end no sooner than 16 and 16, and the
    others would be slower for nothing.
    """
    unequal, equal = shares(total, speeds, most), shares(total, [1.0] * len(speeds), most)
    return unequal if _worth(_longest(equal, speeds), _longest(unequal, speeds)) else equal


def _longest(parts: Sequence[int], speeds: Sequence[float]) -> float:
    return max(count / speed for count, speed in zip(parts, speeds, strict=True))


def _worth(equal_s: float, unequal_s: float) -> bool:
    return unequal_s <= (1 - WORTH) * equal_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How long a provider reclaims resources, and what losing a rank instead costs, in seconds."""

    lasts_s: float
    restart_s: float
    """From the moment a machine is available again until its rank trains (T_o)."""
    again_s: float = 0.0
    """Training of the whole job that is done again after the loss."""
    pause_s: float = 0.0
    """Time in which all ranks stand still, for the loss and for the return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationChoice:
    """Both alternatives, in lost seconds of the whole job's training at full speed."""

    deflate_s: float
    lose_s: float
    break_even_s: float
    """Pressure that lasts longer than this is better met by giving a rank up; infinite: none is."""

    @property
    def deflate(self) -> bool:
        """Whether deflating loses less than giving up a rank."""
        return self.deflate_s <= self.lose_s


def deflate_or_lose(speed: float, ranks: int, pressure: Pressure) -> DeflationChoice:
    """Compare deflating, keeping the fraction `speed`, with losing one of `ranks` and getting it back T_o after the
    pressure.

    (1-g) t against t/n + T_o/n + what is done again + what all pause for. For what one rank had, 1-g = 1/n without
    slack, so that deflation gains T_o/n and the rest; with slack also (g - 1 + 1/n) t.
    """
    if ranks < 1 or not 0 <= speed <= 1:
        raise InputError(f"A job has at least one rank and keeps 0 to 1 of its speed, not {ranks} and {speed}.")
    fixed_s = pressure.restart_s / ranks + pressure.again_s + pressure.pause_s
    excess = (1 - speed) - 1 / ranks
    return DeflationChoice(
        deflate_s=(1 - speed) * pressure.lasts_s,
        lose_s=pressure.lasts_s / ranks + fixed_s,
        break_even_s=fixed_s / excess if excess > 0 else math.inf,
    )
