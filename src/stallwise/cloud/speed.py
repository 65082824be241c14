"""Step and job on every fleet, in columns: mid, lowest and highest.

Per column the same as `what_if` on that fleet (the tests hold it to that), with what a rented machine adds: as many
loader workers as it has cores for, and storage that has to deliver what its memory does not keep.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stallwise.cloud.fleets import Fleets
from stallwise.cloud.subject import Subject
from stallwise.model.cache import resharded_miss
from stallwise.model.fabric import NCCL, KnownLink
from stallwise.model.memory import largest_batch
from stallwise.model.steps import (
    Columns,
    Factors,
    Template,
    all_reduce_columns,
    link_columns,
    read_bound,
    step_columns,
    template,
)
from stallwise.model.whatif import MET_HIGH, Job

# Of a machine's memory, what is left to keep files in while a job runs.
KEPT = 0.7
_PASSES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speeds:
    """Columns, one per fleet; `fits` is False where memory, batch or links forbid it (its times are not numbers)."""

    fits: npt.NDArray[np.bool_]
    batch: Columns
    """Of each GPU and step, as a factor of the measured one."""
    passes: Columns
    """Passes per step, as a factor of the measured number: gradient accumulation where memory asks for it."""
    workers: Columns
    step_s: Columns
    low_s: Columns
    high_s: Columns
    cold_s: Columns
    """While nothing is in memory yet."""
    why_not: npt.NDArray[np.int8]
    """0: fits. 1: memory. 2: the batch cannot be shared evenly among so many GPUs."""


def speeds(
    subject: Subject, fleets: Fleets, *, scale_batch: bool, workers: int | None = None, data_bytes: float | None = None
) -> Speeds:
    """The step on every fleet."""
    gpus = fleets.gpus.astype(np.float64)
    batch = np.ones(len(fleets)) if scale_batch else subject.gpus / gpus
    passes, why_not = _passes(subject, fleets, batch, whole=not scale_batch)
    fits = why_not == 0
    wanted = _workers(subject, fleets, workers)
    step, low, high = (np.full(len(fleets), np.nan) for _ in range(3))
    for count in np.unique(passes[fits]).tolist():
        for several in (False, True):
            chosen = fits & (passes == count) & ((gpus > 1) == several)
            if chosen.any():
                found = _graph_s(subject, fleets, chosen, batch, int(count), several=several)
                step[chosen], low[chosen], high[chosen] = found
    reading, slow_reading = _reading_s(subject, fleets, batch, wanted)
    kept, cold = _storage_s(subject, fleets, batch, data_bytes)
    warm = np.maximum(reading, kept)
    data_low, data_high = subject.job.data_factors
    return Speeds(
        fits=fits,
        batch=batch,
        passes=passes,
        workers=wanted,
        step_s=np.maximum(step, warm),
        low_s=np.maximum(low, np.maximum(reading * data_low, kept)),
        high_s=np.maximum(high, np.maximum(reading * data_high, kept)) * _met(subject.job, gpus),
        cold_s=np.maximum(np.maximum(step, slow_reading), cold),
        why_not=why_not,
    )


def _passes(subject: Subject, fleets: Fleets, batch: Columns, *, whole: bool) -> tuple[Columns, npt.NDArray[np.int8]]:
    """Passes per step so that a pass fits into memory, and why a fleet cannot run the job at all."""
    most = _largest_batch(subject, fleets)
    passes = np.ones(len(fleets))
    for count in _PASSES[:-1]:
        passes = np.where((batch / passes > most) & (passes == count), 2.0 * count, passes)
    too_large = batch / passes > most * (1 + 1e-9)
    # A pass has at least one sample on each GPU, and a batch that is kept is shared in whole samples.
    before = max(1, subject.job.overlap.accumulate)
    uneven = subject.samples * batch / (passes * before) < 1 - 1e-9
    if whole:
        # A mean over steps lies below the batch where the last one of an epoch was smaller.
        whole_batch = math.ceil(subject.samples - 1e-6) * subject.gpus
        uneven |= whole_batch % (fleets.gpus * passes * before) != 0
    why_not = np.where(too_large, 1, np.where(uneven, 2, 0)).astype(np.int8)
    return passes, why_not


def _largest_batch(subject: Subject, fleets: Fleets) -> Columns:
    """As a factor of the measured batch of one pass; 0 where not even the weights fit."""
    if subject.footprint is None:
        return np.full(len(fleets), np.inf)
    shards = fleets.gpus if subject.sharded else np.ones(len(fleets), dtype=np.int64)
    memory = np.array([shape.instance.gpu.memory_bytes for shape in fleets.shapes], dtype=np.float64)[fleets.shape]
    pairs, where = np.unique(np.column_stack([memory, shards]), axis=0, return_inverse=True)
    most = [largest_batch(subject.footprint, room, shards=int(count)) or 0.0 for room, count in pairs.tolist()]
    fits = np.array(most)[where.ravel()]
    if subject.least_gpu_bytes:
        return np.where(memory < subject.least_gpu_bytes, 0.0, np.minimum(fits, 1.0))
    return fits


def _workers(subject: Subject, fleets: Fleets, workers: int | None) -> Columns:
    """Loader workers of each GPU: as given, else one for every core its GPU has, and no fewer than the run had."""
    if workers is not None:
        return np.full(len(fleets), float(workers))
    had = subject.job.work.workers if subject.job.work else 1
    cores = np.array([shape.cores for shape in fleets.shapes])[fleets.shape]
    return np.maximum(max(1, had), cores // fleets.used).astype(np.float64)


def compute_factors(job: Job, compute_s: Columns, batch: Columns, passes: int) -> Factors:
    """What the trace is multiplied by so that a step computes for `compute_s`; update apart, as in `what_if`."""
    trace, before = job.trace, max(1, job.overlap.accumulate)
    in_passes = before * (trace.forward_s + trace.backward_s)
    speed = (in_passes * batch + trace.update_s) / compute_s
    return Factors(compute=batch / passes / speed, update=1 / speed, copy=batch / passes)


def _graph_s(
    subject: Subject,
    fleets: Fleets,
    chosen: npt.NDArray[np.bool_],
    batch: Columns,
    passes: int,
    *,
    several: bool,
) -> tuple[Columns, Columns, Columns]:
    """Mid, low and high of the chosen fleets, of the graph without reading."""
    job, part = subject.job, fleets.take(chosen)
    shape = _template(job, passes, several=several)
    compute, low, high = _compute_s(part, batch[chosen], passes)
    gpus = part.gpus.astype(np.float64)
    links = _used_links(part)
    steps = []
    for seconds, bound in ((compute, ""), (compute * low, "low"), (compute * high, "high")):
        # Factors of compute leave the split between passes and update as it is.
        factors = compute_factors(job, compute, batch[chosen], passes)
        if bound:
            ratio = seconds / compute
            factors = Factors(compute=factors.compute * ratio, update=factors.update * ratio, copy=factors.copy)
        prices = _prices(part, links, gpus, bound, shape) if several else None
        steps.append(step_columns(shape, factors, prices))
    return steps[0], steps[1], steps[2]


def _met(job: Job, gpus: Columns) -> Columns:
    """How far real steps on other numbers of GPUs have exceeded predictions."""
    return np.where((gpus == 1) | (gpus == float(job.gpus or 0)), 1.0, MET_HIGH)


def _template(job: Job, passes: int, *, several: bool) -> Template:
    overlap = replace(job.overlap, accumulate=max(1, job.overlap.accumulate) * passes)
    trace = job.trace if several else replace(
        job.trace, layers=tuple(replace(layer, exchange_s=None) for layer in job.trace.layers)
    )  # fmt: skip
    return template(trace, overlap, several=several)


def _compute_s(part: Fleets, batch: Columns, passes: int) -> tuple[Columns, Columns, Columns]:
    seconds, low, high = (np.empty(len(part)) for _ in range(3))
    for number in np.unique(part.shape).tolist():
        of = part.shape == number
        time = part.shapes[number].time
        seconds[of] = time.seconds(batch[of], np.full(int(of.sum()), float(passes)))
        low[of], high[of] = time.low, time.high
    return seconds, low, high


def _used_links(part: Fleets) -> tuple[list[tuple[KnownLink, ...]], npt.NDArray[np.int64]]:
    """The links each fleet's exchange crosses: few distinct sets, and which of them a fleet has."""
    crosses = 2 * (part.used > 1) + (part.nodes > 1)
    keys, where = np.unique(part.shape * 4 + crosses, return_inverse=True)
    sets = []
    for key in keys.tolist():
        fabric, kind = part.shapes[key // 4].fabric, key % 4
        used = (fabric.inside if kind >= 2 else None, fabric.between if kind % 2 else None)
        sets.append(tuple(link for link in used if link is not None))
    return sets, where.ravel()


def _prices(
    part: Fleets,
    links: tuple[list[tuple[KnownLink, ...]], npt.NDArray[np.int64]],
    gpus: Columns,
    bound: str,
    shape: Template,
) -> Columns:
    """All-reduces; fleets that pair links and numbers of GPUs alike are priced once."""
    sets, where = links
    pairs, back = np.unique(where * 1_000_000 + gpus.astype(np.int64), return_inverse=True)
    columns = link_columns(sets, bound).take(pairs // 1_000_000)
    count = (pairs % 1_000_000).astype(np.float64)
    return all_reduce_columns(columns, count, NCCL, shape.message_bytes)[:, back.ravel()]


def _reading_s(subject: Subject, fleets: Fleets, batch: Columns, workers: Columns) -> tuple[Columns, Columns]:
    """Seconds per step that the loader's own work bounds it to: warm, and with every file from storage."""
    job = subject.job
    if job.work is None:
        return np.zeros(len(fleets)), np.zeros(len(fleets))
    cores = np.array([shape.cores for shape in fleets.shapes], dtype=np.float64)[fleets.shape]
    on_node = min(job.gpus or 1, job.gpus_per_node)
    then = max(1.0, job.work.workers * on_node / job.cores_per_node) if job.cores_per_node else 1.0
    now = np.maximum(1.0, workers * fleets.used / cores)
    slower = np.array([shape.prepare for shape in fleets.shapes])[fleets.shape]
    prepare = job.work.prepare_s * slower * np.maximum(1.0, now / then) * batch
    warm = read_bound(prepare + job.work.blocked_s * batch, 1, workers)
    blocked = job.work.blocked_s if job.cold_blocked_s is None else job.cold_blocked_s
    return warm, read_bound(prepare + blocked * batch, 1, workers)


def _storage_s(subject: Subject, fleets: Fleets, batch: Columns, data_bytes: float | None) -> tuple[Columns, Columns]:
    """Seconds per step that a machine's storage needs: for what its memory does not keep, and for everything.

    Each of s machines reads a new 1/s of the data every epoch and keeps some in its page cache (`resharded_miss`).
    """
    each = subject.bytes_per_sample
    rates = np.array([shape.storage_bytes_per_s or math.inf for shape in fleets.shapes])[fleets.shape]
    if not each or not data_bytes:
        return np.zeros(len(fleets)), np.zeros(len(fleets))
    per_step = each * subject.samples * batch * fleets.used
    cold = per_step / rates
    room = np.array([KEPT * shape.memory_bytes for shape in fleets.shapes])[fleets.shape]
    parts = np.minimum(1.0, room / max(data_bytes, 1.0))
    missed = np.zeros(len(fleets))
    short = parts < 1.0
    keys, where = np.unique(np.column_stack([parts[short], fleets.nodes[short]]), axis=0, return_inverse=True)
    found = np.array([resharded_miss(float(part), int(nodes)) for part, nodes in keys.tolist()])
    if short.any():
        missed[short] = found[where.ravel()]
    return missed * cold, cold
