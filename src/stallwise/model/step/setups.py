"""Steps of one job on many set-ups at once: columns in, columns out. One set-up is a column of length one.

A set-up is what the step depends on: GPUs and how many share a node, seconds of compute, the links, batch and passes,
loader workers and cores, storage. The step is the longest path of the iteration graph, and no shorter than the loader
and the storage allow:

    step = max( graph(compute, copies, messages),  (prepare · crowding + blocked) · batch / workers,  storage )

    crowding = max(1, workers · GPUs on the node / cores), over the same of the run

The storage of a node serves one GPU's loader after the other (Shi et al., *A DAG model of synchronous SGD*, ICPADS
2018), so what blocks a loader grows with the GPUs on the node over those of the run; fewer never make it shorter.

Without loader workers the training process loads its own batches, and their time is part of the graph. Bounds come from
the same graph with every cost at its bound: a step never falls when a cost rises, so low and high hold together.

Schemes whose messages do not depend on prices have one graph for all set-ups, with a column of costs for every node
(`steps`). The others (merged by price, sliced, sparse, through servers) get a graph for each set-up.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.model.exchange._messages import CollectivePrices
from stallwise.model.exchange.fabric import Fabric, KnownLink
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.graph import Graph, NodeKind
from stallwise.model.step.iteration import LoaderSetup, rescaled
from stallwise.model.step.job import MeasuredJob
from stallwise.model.step.paths import steady_state
from stallwise.model.step.prediction import (
    Columns,
    CostFactors,
    Factors,
    StepPrediction,
    StepSplit,
    Template,
    all_reduce_columns,
    alone,
    link_columns,
    predict_step,
    step_columns,
    template,
)
from stallwise.workload.layers import LayerTrace

Numbers = npt.NDArray[np.int64]
Copy = Literal["inline", "engine"]

MET_HIGH = 1.07
"""Steps on numbers of GPUs other than the measured one took up to 1.064 times as long as predicted from one process
(`make reality`, six cases): what DDP itself costs is not in the graph."""
OWN_EXCHANGE = 0
"""As a number of GPUs: the exchange times in the trace itself, among an unknown number of GPUs."""
WORTHWHILE = 0.01
"""A stall below this fraction of a step limits nothing."""
_ONE_GRAPH = frozenset({"none", "fused", "wfbp", "ddp", "zero1", "zero2", "shard-grad-op", "zero3"})
_GPUS_DIGITS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setups:
    """Columns, one entry per set-up, and the way gradients and batches travel, which all share."""

    gpus: Numbers
    """Number in all; `OWN_EXCHANGE` where the trace holds its own exchange times."""
    on_node: Numbers
    """GPUs in use on each node."""
    fabrics: tuple[Fabric | None, ...]
    fabric: Numbers
    """Which of `fabrics` connects the GPUs of a set-up."""
    compute_s: Columns
    """Seconds of forward, backward and update of a step, at its batch and passes."""
    compute_low: Columns
    compute_high: Columns
    """Bounds of compute, as factors."""
    batch: Columns
    """Samples per GPU and step, as a factor of the measured number."""
    passes: Numbers
    """Forward and backward passes per step."""
    workers: Numbers
    """Loader workers per GPU; 0: the training process loads its own batches."""
    cores: Columns
    """Number per node; NaN where the number is not known: then each worker has one."""
    prepare: Columns
    """Time a core takes to prepare a sample, relative to one of the run's."""
    blocked_s: Columns
    """Seconds a loader is blocked by storage for the batches of a step of the measured size."""
    cold_blocked_s: Columns
    """The same while no file is in memory."""
    storage_s: Columns
    """Seconds per step that the storage of a node needs for what its memory does not keep."""
    cold_storage_s: Columns
    copy_times: Columns
    """Time that copying a batch to the GPU takes, relative to the run's."""
    overlap: Overlap
    copy: Copy = "inline"
    """Whether copying a batch waits with compute, or runs beside it."""

    def __len__(self) -> int:
        return len(self.gpus)

    def take(self, chosen: npt.NDArray[np.bool_] | Numbers) -> "Setups":
        """Return the chosen columns."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def on_one_gpu(self) -> "Setups":
        """Return the same set-ups with a single GPU each, the baseline of efficiency."""
        one = np.ones_like(self.gpus)
        return replace(self, gpus=one, on_node=one)


_COLUMNS = (
    "gpus",
    "on_node",
    "fabric",
    "compute_s",
    "compute_low",
    "compute_high",
    "batch",
    "passes",
    "workers",
    "cores",
    "prepare",
    "blocked_s",
    "cold_blocked_s",
    "storage_s",
    "cold_storage_s",
    "copy_times",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimeColumns:
    """Seconds of a step, one entry per set-up."""

    step_s: Columns
    low_s: Columns
    high_s: Columns
    cold_s: Columns
    """While no file is in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """The step on one set-up, with bounds and where it goes."""

    gpus: int | None
    step_s: float
    low_s: float
    high_s: float
    split: StepSplit
    binding: str
    """The edge at which the critical path leaves the GPU, in words."""
    work: float
    """Batches of the measured size that all GPUs together process in a step, by which speeds are compared."""
    samples_per_s: float | None
    """Throughput of all GPUs together."""
    efficiency: float
    """Fraction of the throughput that the same number of single GPUs would have."""
    bounded: bool
    """Whether anything in it has an interval; without, low and high are the step."""

    @property
    def binds(self) -> str:
        """The largest part worth removing: `exchange`, `copy` or `data`; `compute` where none is 1 % of the step."""
        stalls = {"exchange": self.split.exchange_s, "copy": self.split.copy_s, "data": self.split.read_s}
        largest = max(stalls, key=lambda name: stalls[name])
        return largest if stalls[largest] >= WORTHWHILE * self.step_s else "compute"


def step_times(job: MeasuredJob, setups: Setups) -> StepTimeColumns:
    """Predict the step of the job on every set-up."""
    step, low, high, cold = (np.full(len(setups), np.nan) for _ in range(4))
    for group in _groups(setups):
        part = setups.take(group)
        way = _by_template if _has_one_graph(setups, int(part.gpus[0])) else _by_graph
        step[group], low[group], high[group], cold[group] = way(job, part)
    met = np.where((setups.gpus <= 1) | (setups.gpus == (job.gpus or -1)), 1.0, MET_HIGH)
    return StepTimeColumns(
        step_s=np.maximum(step, setups.storage_s),
        low_s=np.maximum(low, setups.storage_s),
        high_s=np.maximum(high, setups.storage_s) * met,
        cold_s=np.maximum(np.maximum(step, cold), setups.cold_storage_s),
    )


def step_estimates(job: MeasuredJob, setups: Setups) -> tuple[StepEstimate, ...]:
    """Predict the step on every set-up, with its split and what limits it."""
    times, single = step_times(job, setups), step_times(job, setups.on_one_gpu())
    return tuple(_answer(job, setups, times, float(single.step_s[i]), i) for i in range(len(setups)))


def setup_prediction(job: MeasuredJob, setups: Setups, column: int = 0) -> StepPrediction:
    """Predict one set-up's step as a graph, from which a split, a critical path and a timetable follow."""
    trace, loading = trace_of(job, setups, column), _loading(job, setups, column)
    overlap = replace(setups.overlap, accumulate=int(setups.passes[column]))
    gpus = int(setups.gpus[column])
    if gpus == OWN_EXCHANGE:
        return predict_step(trace, None, overlap, loading)
    if gpus == 1:
        return predict_step(_without_exchange(trace), alone, overlap, loading)
    return predict_step(trace, _prices(setups, column), overlap, loading)


def blocked_times(job: MeasuredJob, *, cached: float | None, storage_speed: float) -> tuple[float, float]:
    """Seconds of a step that a loader is blocked by storage: with a fraction `cached` in memory, and with nothing.

    None for `cached` is as measured. An `InputError` where the run says nothing about it.
    """
    if cached is not None or storage_speed != 1.0:
        check_loader(job)
    if job.work is None:
        return 0.0, 0.0
    cold_s = (job.work.blocked_s if job.cold_blocked_s is None else job.cold_blocked_s) / storage_speed
    if cached is None:
        return job.work.blocked_s / storage_speed, cold_s
    if job.cold_blocked_s is None:
        raise InputError(
            f"What reading from storage costs was not measured in {job.trace.source} (no cold phase), so a cache "
            "cannot be judged. Profile again with the data in local files and with the cold phase."
        )
    return cached * job.work.blocked_s + (1 - cached) * cold_s, cold_s


def check_loader(job: MeasuredJob) -> None:
    """Raise an `InputError` where no loader was recorded."""
    if job.work is None:
        raise InputError(
            f"No loader was seen in {job.trace.source}, so nothing can be said about workers, a cache or storage."
        )


def _answer(job: MeasuredJob, setups: Setups, times: StepTimeColumns, single_s: float, column: int) -> StepEstimate:
    graph = setup_prediction(job, setups, column)
    step_s, low_s, high_s = (float(values[column]) for values in (times.step_s, times.low_s, times.high_s))
    gpus = int(setups.gpus[column])
    work = float(setups.batch[column]) * max(1, gpus)
    # What storage adds is waiting for data, too.
    storage_s = max(0.0, float(setups.storage_s[column]) - graph.step_s)
    split = replace(graph.split, read_s=graph.split.read_s + storage_s)
    return StepEstimate(
        gpus=gpus or None,
        step_s=step_s,
        low_s=low_s,
        high_s=high_s,
        split=split,
        binding=graph.binding,
        work=work,
        samples_per_s=None if job.samples is None or not gpus else job.samples * work / step_s,
        efficiency=single_s / step_s,
        bounded=job.compute_factors is not None or low_s < high_s,
    )


def _groups(setups: Setups) -> list[Numbers]:
    """Columns that share a graph: as many passes, one GPU or several, loading inside the training process or not."""
    kind = np.minimum(setups.gpus, 2)
    keys = np.column_stack([setups.passes, kind, setups.workers == 0])
    _, where = np.unique(keys, axis=0, return_inverse=True)
    return [np.flatnonzero(where.ravel() == number) for number in range(int(where.max(initial=-1)) + 1)]


def _has_one_graph(setups: Setups, gpus: int) -> bool:
    overlap = setups.overlap
    plain = overlap.through == "all-reduce" and overlap.sparse is None and setups.copy == "inline"
    return plain and overlap.scheme in _ONE_GRAPH and gpus != OWN_EXCHANGE


_template = lru_cache(maxsize=64)(template)
"""The same few graphs are needed again and again: for the fleets of a recommendation, for a slider that moves."""


# ---- one graph for all columns of a group ---------------------------------------------------------------------------


def _by_template(job: MeasuredJob, part: Setups) -> tuple[Columns, Columns, Columns, Columns]:
    several, inline = bool(part.gpus[0] > 1), bool(part.workers[0] == 0)
    passes = int(part.passes[0])
    trace = job.trace if several else _without_exchange(job.trace)
    shape = _template(trace, replace(part.overlap, accumulate=passes), several=several, inline_reading=inline)
    reading, cold_reading = _reading_s(job, part)
    factors = _factors(job, part)
    low, high = job.data_factors
    prices = _PriceColumns(part, shape) if several else None

    def graph_s(compute: Columns, read_s: Columns, bound: str) -> Columns:
        scaled = replace(factors, compute=factors.compute * compute, update=factors.update * compute)
        if inline:
            scaled = replace(scaled, read=read_s / passes)
        return step_columns(shape, scaled, prices.at(bound) if prices else None)

    def beside(step_s: Columns, read_s: Columns) -> Columns:
        return step_s if inline else np.maximum(step_s, read_s / np.maximum(1, part.workers))

    one = np.ones(len(part))
    step_s = graph_s(one, reading, "")
    cold_s = graph_s(one, cold_reading, "") if inline else step_s
    return (
        beside(step_s, reading),
        beside(graph_s(part.compute_low, reading * low, "low"), reading * low),
        beside(graph_s(part.compute_high, reading * high, "high"), reading * high),
        beside(cold_s, cold_reading),
    )


def _factors(job: MeasuredJob, part: Setups) -> CostFactors:
    """Factors on the trace with which a step computes for `compute_s`; passes and update scale alike."""
    measured_s = job.passes_s * part.batch + job.trace.update_s
    with np.errstate(divide="ignore", invalid="ignore"):
        faster = np.where(measured_s > 0, part.compute_s / measured_s, 1.0)
    in_pass = part.batch * job.overlap.accumulate / part.passes
    return CostFactors(compute=in_pass * faster, update=faster, copy=in_pass * part.copy_times)


def _reading_s(job: MeasuredJob, part: Setups) -> tuple[Columns, Columns]:
    """Seconds of work and waiting that one GPU's loader has in a step: warm, and with every file from storage.

    Measured times hold the waiting for cores of the run itself. They are stretched only by how much more often the
    workers of a node outnumber its cores than they did there.
    """
    if job.work is None:
        return np.zeros(len(part)), np.zeros(len(part))
    had = min(job.gpus or 1, job.gpus_per_node)
    on_node = np.minimum(part.on_node, np.maximum(1, part.gpus))
    measured = _crowding(np.array([job.work.workers * had]), job.cores_per_node)
    crowding = _crowding(part.workers * on_node, part.cores)
    prepare_s = job.work.prepare_s * part.prepare * np.maximum(1.0, crowding / measured)
    sharers = storage_sharers(on_node, had)
    return (prepare_s + part.blocked_s * sharers) * part.batch, (prepare_s + part.cold_blocked_s * sharers) * part.batch


def storage_sharers(on_node: Numbers, measured: int) -> Columns:
    """How many times as long a node's storage keeps each loader waiting as it did with `measured` GPUs on a node."""
    return np.maximum(1.0, on_node / measured)


def _crowding(workers: Numbers, cores: Columns | float | None) -> Columns:
    """Loader workers per core, at least 1; 1 where the number of cores is not known."""
    known_cores = np.asarray(np.nan if cores is None else cores, dtype=np.float64)
    return np.where(
        np.isnan(known_cores), 1.0, np.maximum(1.0, workers / np.where(known_cores > 0, known_cores, np.nan))
    )


class _PriceColumns:
    """All-reduces of every message on every set-up; those that pair links and numbers of GPUs alike are priced once."""

    def __init__(self, part: Setups, shape: Template) -> None:
        self.shape, self.size = shape, len(part)
        crosses = 2 * (np.minimum(part.on_node, part.gpus) > 1) + (part.gpus > part.on_node)
        used = np.unique(part.fabric)
        kinds = list(dict.fromkeys(_fabric(part, number).algorithms for number in used.tolist()))
        kind = np.zeros(len(part.fabrics), dtype=np.int64)
        kind[used] = [kinds.index(_fabric(part, number).algorithms) for number in used.tolist()]
        copies = np.array([0.0 if fabric is None else fabric.copy_s_per_byte for fabric in part.fabrics])
        self.copies_s: Columns = shape.message_bytes[:, None] * copies[part.fabric] * (part.gpus > 1)
        self.groups = []
        for number, algorithms in enumerate(kinds):
            mine = np.flatnonzero(kind[part.fabric] == number)
            tiers = (part.fabric[mine] * 4 + crosses[mine]) * _GPUS_DIGITS + part.on_node[mine]
            _, first, where = np.unique(tiers, return_index=True, return_inverse=True)
            links = [_links(part, column) for column in mine[first].tolist()]
            pairs, back = np.unique(where.ravel() * _GPUS_DIGITS + part.gpus[mine], return_inverse=True)
            self.groups.append((algorithms, mine, links, pairs, back.ravel()))

    def at(self, bound: str) -> Columns:
        """Seconds by message and set-up, with links as they are, or at their `low` or `high` bound."""
        seconds = np.empty((len(self.shape.message_bytes), self.size))
        for algorithms, mine, links, pairs, back in self.groups:
            columns = link_columns(links, bound).take(pairs // _GPUS_DIGITS)
            counts = (pairs % _GPUS_DIGITS).astype(np.float64)
            seconds[:, mine] = all_reduce_columns(columns, counts, algorithms, self.shape.message_bytes)[:, back]
        return seconds + self.copies_s


def _links(part: Setups, column: int) -> tuple[KnownLink, ...]:
    fabric = _fabric(part, int(part.fabric[column]))
    return replace(fabric, gpus_per_node=int(part.on_node[column])).used(int(part.gpus[column]))


def _fabric(part: Setups, number: int) -> Fabric:
    fabric = part.fabrics[number]
    if fabric is None:
        raise InputError("GPUs exchange gradients, and no link between them is known.", fields=("network", "link"))
    return fabric


# ---- a graph for each column ----------------------------------------------------------------------------------------


def _by_graph(job: MeasuredJob, part: Setups) -> tuple[Columns, Columns, Columns, Columns]:
    rows = []
    cold = replace(part, blocked_s=part.cold_blocked_s)
    for column in range(len(part)):
        prediction = setup_prediction(job, part, column)
        slow = prediction.step_s
        if job.work is not None and part.cold_blocked_s[column] != part.blocked_s[column]:
            slow = setup_prediction(job, cold, column).step_s
        rows.append((prediction.step_s, *_bounds_s(job, part, column, prediction), slow))
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _bounds_s(job: MeasuredJob, part: Setups, column: int, prediction: StepPrediction) -> Factors:
    """The step with every cost at its bound: compute and reading by factors, each message by its own price."""
    compute = (float(part.compute_low[column]), float(part.compute_high[column]))
    factors = {
        **dict.fromkeys((NodeKind.FORWARD, NodeKind.BACKWARD, NodeKind.UPDATE), compute),
        NodeKind.READ: job.data_factors,
    }
    gpus = int(part.gpus[column])
    if gpus <= 1:
        return prediction.bounds_s(factors)
    fabric = replace(_fabric(part, int(part.fabric[column])), gpus_per_node=int(part.on_node[column]))
    prices = fabric.prices(gpus)
    low, high = (
        steady_state(_repriced(prediction, prices, bound).scaled({kind: pair[side] for kind, pair in factors.items()}))
        for side, bound in enumerate(fabric.bounds(gpus))
    )
    return low.period_s, high.period_s


def _repriced(prediction: StepPrediction, prices: CollectivePrices, bound: CollectivePrices) -> Graph:
    """The graph with each message at `bound`; messages are its exchange nodes, in order."""
    costs = prediction.graph.cost_s.copy()
    nodes = (prediction.graph.kind == NodeKind.EXCHANGE).nonzero()[0]
    for node, message in zip(nodes.tolist(), prediction.messages, strict=True):
        price = prices.all_reduce(message.bytes)
        costs[node] *= bound.all_reduce(message.bytes) / price if price else 1.0
    return prediction.graph.with_costs(costs)


def _prices(setups: Setups, column: int) -> CollectivePrices:
    gpus, fabric = int(setups.gpus[column]), _fabric(setups, int(setups.fabric[column]))
    return replace(fabric, gpus_per_node=int(setups.on_node[column])).prices(gpus)


def trace_of(job: MeasuredJob, setups: Setups, column: int = 0) -> LayerTrace:
    """One pass of one GPU of the set-up, with the time its loader takes for the batch of a pass."""
    part = setups.take(np.array([column]))
    factors, passes = _factors(job, part), int(part.passes[0])
    trace = rescaled(job.trace, compute=float(factors.compute[0]), data=float(factors.copy[0]))
    return replace(
        trace,
        update_s=job.trace.update_s * float(factors.update[0]),
        read_s=float(_reading_s(job, part)[0][0]) / passes,
    )


def _loading(job: MeasuredJob, setups: Setups, column: int) -> LoaderSetup | None:
    if job.work is None and not job.trace.copy_s:
        return None
    return LoaderSetup(workers=int(setups.workers[column]) if job.work else 1, copy=setups.copy)


def _without_exchange(trace: LayerTrace) -> LayerTrace:
    return replace(trace, layers=tuple(replace(layer, exchange_s=None) for layer in trace.layers))
