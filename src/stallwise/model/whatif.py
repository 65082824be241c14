"""What would happen if: a measured job with other GPUs, links, buckets, overlap, batch, compute or data path.

A job is its trace (one GPU's compute), how it exchanges, and what its loader does for a step. A change edits those,
the graph is built anew, and its longest path is the answer. Low and high come from the same graph with every cost at
its bound: a step never falls when a cost rises, so they hold together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from stallwise.errors import InputError
from stallwise.model.datapath import LoaderWork
from stallwise.model.fabric import Fabric
from stallwise.model.graph import Graph, Kind
from stallwise.model.iteration import Loading, rescaled
from stallwise.model.messages import Prices
from stallwise.model.overlap import Overlap
from stallwise.model.paths import steady_state
from stallwise.model.stalls import Share
from stallwise.model.step import Factors, Split, StepPrediction, alone, predict_step
from stallwise.workload.layers import LayerTrace

MET_HIGH = 1.07
"""Steps on numbers of GPUs other than the measured one took up to 1.064 times as long as predicted from one process
(`make reality`, six cases): what DDP itself costs is not in the graph."""

POWERS_OF_TWO = tuple(2**n for n in range(11))
"""1 to 1,024 GPUs."""
WORTHWHILE = 0.01
"""A stall below this part of a step binds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was measured of a job, as a model takes it."""

    name: str
    trace: LayerTrace
    """One forward and backward pass on one GPU, without reading."""
    overlap: Overlap
    gpus: int | None
    """None: the trace holds its own exchange times, and not among how many GPUs they were measured."""
    gpus_per_node: int = 1
    step: Share | None = None
    """As measured; None where only layers are known."""
    samples: float | None = None
    """Per GPU and step."""
    compute_factors: Factors | None = None
    """Bounds of compute, as factors; None: not known."""
    inside: Share | None = None
    """Exchange among the GPUs of a node that compute did not hide."""
    between: Share | None = None
    """The same between nodes."""
    backend: str | None = None
    element_bytes: float | None = None
    """Of a gradient as it is exchanged; 4 is fp32."""
    work: LoaderWork | None = None
    """What one GPU's loader does for a step; None where no loader was seen."""
    cold_blocked_s: float | None = None
    """Time blocked when every file comes from storage, where that was measured."""
    data_factors: Factors = (1.0, 1.0)
    cores_per_node: int | None = None
    assumptions: tuple[str, ...] = ()

    @property
    def exchange(self) -> Share | None:
        """All exchange that compute did not hide."""
        found = [share for share in (self.inside, self.between) if share is not None]
        if not found:
            return None
        return Share(sum(s.s for s in found), sum(s.low_s for s in found), sum(s.high_s for s in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different; the defaults change nothing."""

    compute_speed: float = 1.0
    """Compute is so many times as fast."""
    batch: float = 1.0
    """Every GPU's batch is so many times as large."""
    overlap: Overlap | None = None
    copy: Literal["inline", "engine"] = "inline"
    """Whether copying a batch waits with compute, or runs beside it."""
    workers: int | None = None
    cached: float | None = None
    """Part of the data set that is found in memory."""
    storage_speed: float = 1.0
    cores_per_node: int | None = None
    prepare_speed: float = 1.0
    """One core prepares samples so many times as fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A step under a change, with bounds."""

    gpus: int | None
    step_s: float
    low_s: float
    high_s: float
    split: Split
    binding: str
    """The edge at which the critical path leaves the GPU, in words."""
    work: float
    """Batches of the measured size that all GPUs together do in a step: what speeds are compared by."""
    samples_per_s: float | None
    """Of all GPUs together."""
    efficiency: float
    """Of what so many single GPUs would do."""
    bounded: bool
    """Whether anything in it has an interval; without, low and high are the step."""

    @property
    def binds(self) -> str:
        """The largest part worth removing: `exchange`, `copy` or `data`; `compute` where none is 1 % of the step."""
        stalls = {"exchange": self.split.exchange_s, "copy": self.split.copy_s, "data": self.split.read_s}
        largest = max(stalls, key=lambda name: stalls[name])
        return largest if stalls[largest] >= WORTHWHILE * self.step_s else "compute"


def speedup(after: Answer, before: Answer) -> float:
    """How many times as many samples per second."""
    return after.work / after.step_s * before.step_s / before.work


def what_if(job: Job, change: Change, fabric: Fabric | None, gpus: int | None) -> Answer:
    """The job on `gpus` of the fleet under `change`; None keeps the trace's own exchange."""
    return _answer(job, change, fabric, gpus, _predict(job, change, fabric, 1))


def prediction(job: Job, change: Change, fabric: Fabric | None, gpus: int | None) -> StepPrediction:
    """The step behind `what_if`'s answer, with its graph: what a time table is made from."""
    return _predict(job, change, fabric, gpus)


def scaling(job: Job, change: Change, fabric: Fabric, counts: Iterable[int] = POWERS_OF_TWO) -> tuple[Answer, ...]:
    """The job at each number of GPUs, every GPU keeping its batch."""
    single = _predict(job, change, fabric, 1)
    return tuple(_answer(job, change, fabric, count, single) for count in counts)


def assumptions(job: Job, change: Change, gpus: int | None) -> tuple[str, ...]:
    """What the answer takes for granted, in sentences."""
    said = [*job.assumptions]
    if change.batch != 1.0:
        said.append("Forward, backward, copying and loading are taken to grow with the batch; the update is not.")
    if change.compute_speed != 1.0:
        said.append("All layers and the update become faster alike.")
    if gpus not in (None, 1, job.gpus):
        said.append(
            "The upper end is raised by 7 %, as far as real steps on other numbers of GPUs have exceeded predictions."
        )
    if gpus != 1:
        said.append("Every GPU computes at the measured speed; none is slower than the others.")
    if change.cached is not None:
        said.append("The steps as measured are taken to have found all files in memory, the cold ones none.")
    elif change.storage_speed != 1.0:
        said.append("All time the loader was blocked for is taken to be storage.")
    if job.work is not None and (change.workers or gpus != job.gpus) and _cores(job, change) is None:
        said.append("The number of cores is not known; loader workers are taken to have one each.")
    if change.overlap is not None and change.overlap.compression < 1.0:
        said.append("Converting gradients to 16 bits and back is taken to cost nothing.")
    if change.overlap is not None:
        said += _said_of(change.overlap)
    return tuple(said)


_SAID = {
    "p3-ideal": "p3-ideal is a limit that no scheduler reaches; compare with it, do not plan by it.",
    "horovod": "Agreeing on which tensors are ready is taken to cost nothing; the cycle begins with backward.",
    "p3": "The scheduler itself is taken to cost nothing, and each slice pays its start-up time in full.",
    "bytescheduler": "The scheduler itself is taken to cost nothing, and each slice pays its start-up time in full.",
    "local-sgd": "What updates from parameters that drift apart do to convergence is not modelled.",
}


def _said_of(overlap: Overlap) -> list[str]:
    said = [_SAID[overlap.scheme]] if overlap.scheme in _SAID else []
    if overlap.sparse is not None:
        said.append("Selecting the largest values takes as long as published for a V100; convergence is not modelled.")
    if overlap.through == "servers":
        said.append("A parameter server is taken to run on every worker's machine.")
    return said


def _answer(job: Job, change: Change, fabric: Fabric | None, gpus: int | None, single: StepPrediction) -> Answer:
    found = single if gpus == 1 else _predict(job, change, fabric, gpus)
    low_s, high_s = _bounds_s(job, fabric, gpus, found)
    if gpus not in (None, 1, job.gpus):
        high_s *= MET_HIGH
    passes = (change.overlap or job.overlap).accumulate / job.overlap.accumulate
    work = change.batch * passes * (gpus or 1)
    return Answer(
        gpus=gpus,
        step_s=found.step_s,
        low_s=low_s,
        high_s=high_s,
        split=found.split,
        binding=found.binding,
        work=work,
        samples_per_s=None if job.samples is None or gpus is None else job.samples * work / found.step_s,
        efficiency=single.step_s / found.step_s,
        bounded=job.compute_factors is not None or low_s < high_s,
    )


def _predict(job: Job, change: Change, fabric: Fabric | None, gpus: int | None) -> StepPrediction:
    workers = _workers(job, change)
    trace = rescaled(job.trace, compute=change.batch / change.compute_speed, data=change.batch)
    on_node = min(gpus or 1, fabric.gpus_per_node if fabric else 1)
    # The update works on parameters, however many samples there were.
    update_s = job.trace.update_s / change.compute_speed
    trace = replace(trace, update_s=update_s, read_s=_read_s(job, change, workers, on_node))
    loading = Loading(workers=workers, copy=change.copy) if trace.read_s or trace.copy_s else None
    overlap = change.overlap or job.overlap
    if gpus is None:
        return predict_step(trace, None, overlap, loading)
    if gpus == 1:
        return predict_step(_without_exchange(trace), alone, overlap, loading)
    if fabric is None:
        raise InputError(
            f"{gpus} GPUs exchange gradients, and no link between them is known. Give --network or --link."
        )
    return predict_step(trace, fabric.prices(gpus), overlap, loading)


def _without_exchange(trace: LayerTrace) -> LayerTrace:
    return replace(trace, layers=tuple(replace(layer, exchange_s=None) for layer in trace.layers))


def _bounds_s(job: Job, fabric: Fabric | None, gpus: int | None, found: StepPrediction) -> Factors:
    """The step with every cost at its bound: compute and reading by factors, each message by its own price."""
    compute = dict.fromkeys((Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE), job.compute_factors or (1.0, 1.0))
    factors = {**compute, Kind.READ: job.data_factors}
    if fabric is None or gpus is None or gpus == 1:
        return found.bounds_s(factors)
    prices = fabric.prices(gpus)
    low, high = (
        steady_state(_repriced(found, prices, bound).scaled({kind: pair[side] for kind, pair in factors.items()}))
        for side, bound in enumerate(fabric.bounds(gpus))
    )
    return low.period_s, high.period_s


def _repriced(found: StepPrediction, prices: Prices, bound: Prices) -> Graph:
    """The graph with each message at `bound`; messages are its exchange nodes, in order."""
    costs = found.graph.cost_s.copy()
    nodes = (found.graph.kind == Kind.EXCHANGE).nonzero()[0]
    for node, message in zip(nodes.tolist(), found.messages, strict=True):
        price = prices.all_reduce(message.bytes)
        costs[node] *= bound.all_reduce(message.bytes) / price if price else 1.0
    return found.graph.with_costs(costs)


def _workers(job: Job, change: Change) -> int:
    if job.work is None:
        if change.workers is not None or change.cached is not None or change.storage_speed != 1.0:
            raise InputError(
                f"No loader was seen in {job.trace.source}, so nothing can be said about workers, a cache or storage."
            )
        return 1
    return job.work.workers if change.workers is None else change.workers


def _read_s(job: Job, change: Change, workers: int, gpus_on_node: int) -> float:
    """Time one worker takes for one batch.

    Measured times hold the waiting for cores of the run itself. They are stretched only by how much more often the
    workers of a node outnumber its cores than they did there: w·g / cores, at least 1, over the same of the run.
    """
    if job.work is None:
        return 0.0
    then = _crowding(job.work.workers * min(job.gpus or 1, job.gpus_per_node), job.cores_per_node)
    now = _crowding(workers * gpus_on_node, _cores(job, change))
    prepare_s = job.work.prepare_s / change.prepare_speed * max(1.0, now / then)
    return (prepare_s + _blocked_s(job, change)) * change.batch / job.overlap.accumulate


def _crowding(workers: int, cores: int | None) -> float:
    return max(1.0, workers / cores) if cores else 1.0


def _cores(job: Job, change: Change) -> int | None:
    return change.cores_per_node or job.cores_per_node


def _blocked_s(job: Job, change: Change) -> float:
    assert job.work is not None  # noqa: S101 - asked only then
    if change.cached is None:
        return job.work.blocked_s / change.storage_speed
    if job.cold_blocked_s is None:
        raise InputError(
            f"What reading from storage costs was not measured in {job.trace.source} (no cold phase), so a cache "
            "cannot be judged. Profile again with the data in local files and without --no-cold."
        )
    return change.cached * job.work.blocked_s + (1 - change.cached) * job.cold_blocked_s / change.storage_speed
