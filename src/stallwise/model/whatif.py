"""What would happen if: a measured job with other GPUs, links, buckets, overlap, batch, compute or data path.

A job is its trace (one GPU's compute), how it exchanges, and what its loader does for a step. A change edits those,
the graph is built anew, and its longest path is the answer. Low and high come from the same graph with every cost at
its bound: a step never falls when a cost rises, so they hold together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.datapath import LoaderWork, step_with_workers
from stallwise.model.fabric import Fabric
from stallwise.model.graph import Kind
from stallwise.model.iteration import Loading, rescaled
from stallwise.model.overlap import Overlap
from stallwise.model.step import Factors, Split, StepPrediction, alone, predict_step
from stallwise.workload.layers import LayerTrace

POWERS_OF_TWO = tuple(2**n for n in range(11))
"""1 to 1,024 GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What was measured of a job, as a model takes it."""

    trace: LayerTrace
    """One forward and backward pass on one GPU, without reading."""
    overlap: Overlap
    gpus: int
    gpus_per_node: int
    step_s: float
    samples: float | None
    """Per GPU and step."""
    compute_factors: Factors
    """Bounds of compute, as factors."""
    work: LoaderWork | None = None
    """What one GPU's loader does for a step; None where no loader was seen."""
    cold_blocked_s: float | None = None
    """Time blocked when every file comes from storage, where that was measured."""
    data_factors: Factors = (1.0, 1.0)
    cores_per_node: int | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is different; the defaults change nothing."""

    compute_speed: float = 1.0
    """Compute is so many times as fast."""
    batch: float = 1.0
    """Every GPU's batch is so many times as large."""
    overlap: Overlap | None = None
    workers: int | None = None
    cached: float | None = None
    """Part of the data set that is found in memory."""
    storage_speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A step under a change, with bounds."""

    gpus: int
    step_s: float
    low_s: float
    high_s: float
    split: Split
    binding: str
    samples_per_s: float | None
    """Of all GPUs together."""
    efficiency: float
    """Of what so many single GPUs would do."""


def what_if(job: Job, change: Change, fabric: Fabric, gpus: int) -> Answer:
    """The job on `gpus` of the fleet under `change`."""
    single = _predict(job, change, fabric, 1)
    return _answer(job, change, fabric, gpus, single)


def scaling(job: Job, change: Change, fabric: Fabric, counts: Iterable[int] = POWERS_OF_TWO) -> tuple[Answer, ...]:
    """The job at each number of GPUs, every GPU keeping its batch."""
    single = _predict(job, change, fabric, 1)
    return tuple(_answer(job, change, fabric, count, single) for count in counts)


def assumptions(job: Job, change: Change, gpus: int) -> tuple[str, ...]:
    """What the answer takes for granted, in sentences."""
    said = [*job.assumptions]
    if change.batch != 1.0:
        said.append("Compute, copying and loading are taken to grow with the batch; small batches grow slower.")
    if gpus > 1:
        said.append("Every GPU computes at the measured speed; none is slower than the others.")
    if job.work is not None and job.cores_per_node is None:
        said.append("The number of cores is not known; loader workers are taken to have one each.")
    return tuple(said)


def _answer(job: Job, change: Change, fabric: Fabric, gpus: int, single: StepPrediction) -> Answer:
    found = _predict(job, change, fabric, gpus) if gpus > 1 else single
    low_s, high_s = found.bounds_s(_factors(job, fabric, gpus))
    samples = None if job.samples is None else job.samples * change.batch * gpus / found.step_s
    return Answer(
        gpus=gpus,
        step_s=found.step_s,
        low_s=low_s,
        high_s=high_s,
        split=found.split,
        binding=found.binding,
        samples_per_s=samples,
        efficiency=single.step_s / found.step_s,
    )


def _predict(job: Job, change: Change, fabric: Fabric, gpus: int) -> StepPrediction:
    workers = _workers(job, change)
    trace = rescaled(job.trace, compute=change.batch / change.compute_speed, data=change.batch)
    trace = replace(trace, read_s=_read_s(job, change, workers, min(gpus, fabric.gpus_per_node)))
    loading = Loading(workers=workers) if trace.read_s or trace.copy_s else None
    prices = fabric.prices(gpus) if gpus > 1 else alone
    return predict_step(trace, prices, change.overlap or job.overlap, loading)


def _factors(job: Job, fabric: Fabric, gpus: int) -> dict[Kind, Factors]:
    compute = dict.fromkeys((Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE), job.compute_factors)
    return {**compute, Kind.EXCHANGE: fabric.factors(gpus), Kind.READ: job.data_factors}


def _workers(job: Job, change: Change) -> int:
    if job.work is None:
        if change.workers is not None or change.cached is not None:
            raise InputError("No loader was seen in this run, so nothing can be said about workers or a cache.")
        return 1
    return job.work.workers if change.workers is None else change.workers


def _read_s(job: Job, change: Change, workers: int, gpus_on_node: int) -> float:
    """Time one worker takes for the batches of a step, stretched where workers outnumber their share of the cores."""
    if job.work is None:
        return 0.0
    blocked_s = _blocked_s(job, change) / change.storage_speed
    work = replace(job.work, prepare_s=job.work.prepare_s * change.batch, blocked_s=blocked_s * change.batch)
    if workers == 0:
        return work.prepare_s + work.blocked_s
    cores = workers if job.cores_per_node is None else max(1, job.cores_per_node // gpus_on_node)
    return workers * step_with_workers(work, 0.0, workers, cores)


def _blocked_s(job: Job, change: Change) -> float:
    assert job.work is not None  # noqa: S101 - asked only then
    if change.cached is None:
        return job.work.blocked_s
    if job.cold_blocked_s is None:
        raise InputError(
            "What reading from storage costs was not measured in this run (no cold phase), so a cache cannot be "
            "judged. Profile again without --no-cold, with the data in local files."
        )
    return change.cached * job.work.blocked_s + (1 - change.cached) * job.cold_blocked_s
