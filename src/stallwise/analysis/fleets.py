"""Many set-ups of one job at once: kinds of machines × GPUs used of each × how many of them, as columns.

This is the one place where a job and its machines become a step: `Analysis.on` asks it about a fleet of its own,
`recommend` about thousands. The same defaults hold for all of them:

    batch      of each GPU as measured; the global batch follows from the number of GPUs
    passes     as measured; twice, four times … as many where memory asks for it
    workers    per GPU as measured, limited to the cores that a GPU of the node has
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.analysis.compute import compute_seconds
from stallwise.analysis.job import JobModel
from stallwise.analysis.target import Node, Target, Workers, node_of
from stallwise.errors import InputError
from stallwise.hardware.board import board_of_gpu, copy_bytes_per_s
from stallwise.hardware.instance import Instance, board_of, gpu_link_bytes_per_s
from stallwise.hardware.machine import MachineRecord
from stallwise.model.compute.memory import largest_batch
from stallwise.model.data.cache import resharded_miss
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import OwnLinks
from stallwise.model.step.prediction import Columns
from stallwise.model.step.setups import Copy, Numbers, Setups, blocked_times, check_loader, step_times
from stallwise.sentences import Sentence

MAX_NODES = 64
MEMORY_FOR_FILES = 0.7
"""Of a machine's memory, what is left to keep files in while a job runs."""
BATCH_GROWTH = 8.0
"""A global batch grown beyond this factor trains another job, so it is not assumed."""
_PASSES = (1, 2, 4, 8, 16, 32, 64)
_GPUS_DIGITS = 10_000_000

FITS, NO_MEMORY, UNEVEN, LARGE_BATCH = 0, 1, 2, 3
"""Why a fleet cannot run the job: GPUs too small, batch not shared evenly, global batch grown beyond `BATCH_GROWTH`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleets:
    """Columns: kind of machine, GPUs used of each machine, machines."""

    kinds: tuple[Node, ...]
    kind: Numbers
    used: Numbers
    nodes: Numbers
    count: Numbers | None = None
    """GPUs in all, where the last machine is not full; None: `used` of every machine."""

    @property
    def gpus(self) -> Numbers:
        """GPUs of each fleet in all."""
        return self.used * self.nodes if self.count is None else self.count

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, name: str) -> Columns:
        """A property of the machines by column; NaN where it is None."""
        values = [getattr(kind, name) for kind in self.kinds]
        return np.array([np.nan if value is None else float(value) for value in values])[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What is chosen for every fleet alike; None: the default above."""

    batch: float | None = None
    """Samples per GPU and step, as a factor of the measured number."""
    global_batch: float | None = None
    """Samples of all GPUs together, instead."""
    largest_growth: float = math.inf
    """Global batches beyond this factor of the measured one are refused."""
    workers: Workers = None
    overlap: Overlap | None = None
    copy: Copy = "inline"
    cached: float | None = None
    storage_speed: float | None = None
    dataset_bytes: float | None = None
    judge_memory: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetSteps:
    """Columns, one per fleet; times are NaN where `why_not` is not 0."""

    setups: Setups
    why_not: npt.NDArray[np.int8]
    batch: Columns
    """Samples of each GPU and step, as a factor of the measured number."""
    step_s: Columns
    low_s: Columns
    high_s: Columns
    cold_s: Columns
    """While nothing is in memory yet."""

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """Which fleets can run the job."""
        return np.equal(self.why_not, FITS)


def nodes_of(
    model: JobModel,
    instances: Iterable[Instance],
    machines: Mapping[str, MachineRecord] | None = None,
    own_machine: MachineRecord | None = None,
) -> tuple[tuple[Node, ...], dict[tuple[str, str], int], dict[str, Sentence]]:
    """Kinds of machines; which of them each (cloud, instance type) is; what could not be judged, with why, by GPU.

    Speed depends on an instance type, not on where it stands or what it costs there; so types that are alike in all
    that matters are one kind. `machines` are machine records by instance type, `own_machine` that of the run's
    own machine.
    """
    machines = machines or {}
    kinds: dict[tuple[object, ...], Node] = {}
    number: dict[tuple[object, ...], int] = {}
    of_type: dict[tuple[str, str], int] = {}
    unjudged: dict[str, Sentence] = {}
    for instance in instances:
        if instance.gpu.name in unjudged:
            continue
        record = machines.get(instance.name)
        key = (*_alike(instance), instance.name if record is not None else "")
        if key not in kinds:
            target = Target(
                instance=instance,
                machine=record,
                machine_name=f"{instance.name}'s machine record" if record is not None else "",
                own_machine=own_machine if record is not None else None,
            )
            try:
                kinds[key] = node_of(model, target, OwnLinks(), instance.gpu_count)
            except InputError as error:
                unjudged[instance.gpu.name] = Sentence("gpu.unanswered", str(error))
                continue
            number[key] = len(number)
        of_type[instance.cloud, instance.name] = number[key]
    return tuple(kinds.values()), of_type, unjudged


def _alike(instance: Instance) -> tuple[object, ...]:
    storage = instance.storage
    return (
        instance.gpu.name,
        instance.gpu_count,
        gpu_link_bytes_per_s(instance),
        board_of(instance),
        instance.host_link.bytes_per_s if instance.host_link else None,
        instance.network.bytes_per_s if instance.network else None,
        instance.vcpus,
        instance.memory_bytes,
        storage.local_read_bytes_per_s,
        storage.block_bytes_per_s,
    )


def all_fleets(kinds: Sequence[Node], model: JobModel, *, max_nodes: int) -> Fleets:
    """Powers of two of a machine's GPUs and all of them, on 1 to `max_nodes` machines."""
    rows: list[tuple[int, int, int]] = []
    for number, kind in enumerate(kinds):
        whole = kind.gpus if kind.linked and model.exchanges else 1
        nodes = max_nodes if kind.networked and model.exchanges else 1
        powers = {2**i for i in range(whole.bit_length()) if 2**i <= whole} | {whole}
        rows += [(number, used, nodes) for used in sorted(powers)]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    counts = table[:, 2]
    node = np.concatenate([np.arange(1, n + 1) for n in counts]) if len(counts) else np.zeros(0, dtype=np.int64)
    return Fleets(
        kinds=tuple(kinds),
        kind=np.repeat(table[:, 0], counts),
        used=np.repeat(table[:, 1], counts),
        nodes=node.astype(np.int64),
    )


def one_fleet(kind: Node, *, used: int, nodes: int, gpus: int | None = None) -> Fleets:
    """One fleet as columns of length one."""
    one = np.ones(1, dtype=np.int64)
    count = None if gpus is None else gpus * one
    return Fleets(kinds=(kind,), kind=0 * one, used=used * one, nodes=nodes * one, count=count)


def steps_of(model: JobModel, fleets: Fleets, settings: FleetSettings) -> FleetSteps:
    """The step on every fleet."""
    job = model.job
    setups, why_not = _setups(model, fleets, settings)
    fits = why_not == FITS
    columns = {name: np.full(len(fleets), np.nan) for name in ("step_s", "low_s", "high_s", "cold_s")}
    if fits.any():
        times = step_times(job, setups.take(fits))
        for name, column in columns.items():
            column[fits] = getattr(times, name)
    return FleetSteps(setups=setups, why_not=why_not, batch=setups.batch, **columns)


def _setups(model: JobModel, fleets: Fleets, settings: FleetSettings) -> tuple[Setups, npt.NDArray[np.int8]]:
    job = model.job
    overlap = settings.overlap or job.overlap
    accumulation = overlap.accumulate / job.overlap.accumulate
    batch = _batch(model, fleets, settings) * (accumulation if settings.global_batch is None else 1.0)
    more, why_not = _passes(model, fleets, settings, batch / accumulation)
    if isinstance(settings.workers, int):
        check_loader(job)
    blocked = np.array(
        [
            blocked_times(job, cached=settings.cached, storage_speed=settings.storage_speed or 1 / kind.storage)
            for kind in fleets.kinds
        ]
    ).reshape(-1, 2)[fleets.kind]
    storage_s, cold_storage_s = _storage_s(model, fleets, batch, settings)
    passes = overlap.accumulate * more
    compute = [kind.compute for kind in fleets.kinds]
    setups = Setups(
        gpus=fleets.gpus,
        on_node=np.minimum(fleets.used, np.maximum(1, fleets.gpus)),
        fabrics=tuple(kind.fabric for kind in fleets.kinds),
        fabric=fleets.kind,
        compute_s=compute_seconds(compute, fleets.kind, batch, passes / job.overlap.accumulate),
        compute_low=np.array([time.low for time in compute])[fleets.kind],
        compute_high=np.array([time.high for time in compute])[fleets.kind],
        batch=batch,
        passes=passes.astype(np.int64),
        workers=_workers(model, fleets, settings.workers),
        cores=fleets.of_kind("cores"),
        prepare=fleets.of_kind("prepare"),
        blocked_s=blocked[:, 0],
        cold_blocked_s=blocked[:, 1],
        storage_s=storage_s,
        cold_storage_s=cold_storage_s,
        copy_times=_copy_times(model, fleets),
        overlap=overlap,
        copy=settings.copy,
    )
    return setups, why_not


def _batch(model: JobModel, fleets: Fleets, settings: FleetSettings) -> Columns:
    if settings.global_batch is not None:
        return settings.global_batch / (model.samples * fleets.gpus.astype(np.float64))
    return np.full(len(fleets), settings.batch or 1.0)


def _passes(
    model: JobModel, fleets: Fleets, settings: FleetSettings, batch: Columns
) -> tuple[Columns, npt.NDArray[np.int8]]:
    """How many times the passes so that one fits into memory, and why a fleet cannot run the job at all."""
    most = _largest_batch(model, fleets) if settings.judge_memory else np.full(len(fleets), np.inf)
    passes = np.ones(len(fleets))
    for count in _PASSES[:-1]:
        passes = np.where((batch / passes > most) & (passes == count), 2.0 * count, passes)
    why_not = np.where(batch / passes > most * (1 + 1e-9), NO_MEMORY, FITS)
    if model.job.samples:
        # A pass has at least one sample on each GPU, and a global batch is shared in whole samples.
        before = max(1, model.job.overlap.accumulate)
        uneven = model.samples * batch / (passes * before) < 1 - 1e-9
        if settings.global_batch is not None:
            uneven |= round(settings.global_batch) % (fleets.gpus * passes * before) != 0
        why_not = np.where((why_not == FITS) & uneven, UNEVEN, why_not)
    growth = batch * fleets.gpus / model.gpus
    large = growth > settings.largest_growth * (1 + 1e-9)
    return passes, np.where((why_not == FITS) & large, LARGE_BATCH, why_not).astype(np.int8)


def _largest_batch(model: JobModel, fleets: Fleets) -> Columns:
    """Of one pass, as a factor of the measured one; 0 where not even the weights fit.

    On the run's own GPU the measured batch fits, whatever is worked out.
    """
    footprint = model.footprint
    if footprint is None:
        return np.full(len(fleets), np.inf)
    shards = fleets.gpus if model.sharded else np.ones(len(fleets), dtype=np.int64)
    pairs, where = np.unique(fleets.kind * _GPUS_DIGITS + shards, return_inverse=True)

    def most(kind: Node, count: int) -> float:
        gpu = kind.gpu or model.source
        if gpu is None:
            return math.inf
        room = largest_batch(footprint, gpu.memory_bytes, shards=count) or 0.0
        if model.least_gpu_bytes:
            room = 0.0 if gpu.memory_bytes < model.least_gpu_bytes else min(room, 1.0)
        ran = gpu == model.source and (not model.sharded or count >= model.gpus)
        return max(room, 1.0) if ran else room

    factors_of_pairs = [most(fleets.kinds[pair // _GPUS_DIGITS], pair % _GPUS_DIGITS) for pair in pairs.tolist()]
    factors: Columns = np.array(factors_of_pairs)[where.ravel()]
    return factors


def _workers(model: JobModel, fleets: Fleets, workers: Workers) -> Numbers:
    """Loader workers of each GPU: as given, else as measured, no more than there are cores for its GPU."""
    if isinstance(workers, int):
        return np.full(len(fleets), workers, dtype=np.int64)
    had = model.job.work.workers if model.job.work else 1
    cores = fleets.of_kind("cores")
    room = np.where(np.isnan(cores), np.inf, np.maximum(1, cores // np.maximum(1, fleets.used)))
    if workers == "auto":
        return np.where(np.isinf(room), had, room).astype(np.int64)
    # On the run's own machine the measured number is the one in force.
    own = np.array([kind.instance is None and kind.gpu is None for kind in fleets.kinds])[fleets.kind]
    return np.where(own, had, np.minimum(had, room)).astype(np.int64)


def _copy_times(model: JobModel, fleets: Fleets) -> Columns:
    """Time of a copy to the GPU relative to the run's: by the link to the host, and by the GPUs that share an up-link.

    The run's own link is that of its GPU; on the same GPU only sharing counts, since a machine may give it fewer lanes.
    """
    pairs, where = np.unique(np.column_stack([fleets.kind, fleets.used]), axis=0, return_inverse=True)
    times = [_copy_time(model, fleets.kinds[kind], used) for kind, used in pairs.tolist()]
    columns: Columns = np.array(times, dtype=np.float64)[where.ravel()]
    return columns


def _copy_time(model: JobModel, kind: Node, used: int) -> float:
    instance = kind.instance
    if model.source is None or kind.gpu is None:
        return 1.0
    host_link = (instance.host_link if instance is not None else None) or kind.gpu.host_link
    board = (board_of(instance) if instance is not None else None) or board_of_gpu(kind.gpu, kind.gpus)
    alone, together = (copy_bytes_per_s(board, host_link, count) for count in (1, used))
    own = model.source.host_link.bytes_per_s if model.source.host_link else None
    if alone is None or together is None or own is None:
        return 1.0
    return (alone if kind.gpu == model.source else own) / together


def _storage_s(model: JobModel, fleets: Fleets, batch: Columns, settings: FleetSettings) -> tuple[Columns, Columns]:
    """Seconds per step that a machine's storage needs: for what its memory does not keep, and for everything.

    Each of s machines reads a new 1/s of the data every epoch and keeps some in its page cache (`resharded_miss`).
    """
    nothing = np.zeros(len(fleets))
    if not model.bytes_per_sample or not settings.dataset_bytes or not model.job.samples:
        return nothing, nothing
    rates = fleets.of_kind("storage_bytes_per_s")
    per_step = model.bytes_per_sample * model.samples * batch * fleets.used
    cold_s = np.where(np.isnan(rates), 0.0, per_step / np.where(np.isnan(rates), 1.0, rates))
    room = np.nan_to_num(MEMORY_FOR_FILES * fleets.of_kind("memory_bytes"), nan=np.inf)
    kept = np.minimum(1.0, room / settings.dataset_bytes)
    missed = nothing.copy()
    short = kept < 1.0
    if short.any():
        pairs, where = np.unique(np.column_stack([kept[short], fleets.nodes[short]]), axis=0, return_inverse=True)
        misses = np.array([resharded_miss(float(part), int(nodes)) for part, nodes in pairs.tolist()])
        missed[short] = misses[where.ravel()]
    return missed * cold_s, cold_s
