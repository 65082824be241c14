"""One set-up of a measured job, predicted: step, split, memory, what was assumed, and the curve over GPUs.

`predict` is the only way from a job and a target to these figures; see `Analysis.on`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stallwise.analysis.compute import host_ratio, precision_on
from stallwise.analysis.fleets import (
    FITS,
    MEMORY_FOR_FILES,
    NO_MEMORY,
    Fleets,
    FleetSettings,
    FleetSteps,
    one_fleet,
    steps_of,
)
from stallwise.analysis.job import JobModel
from stallwise.analysis.target import Node, Target, check_links, layout_of, link_notes, node_of
from stallwise.errors import InputError
from stallwise.model.compute.memory import MemoryNeed, fewest_shards, largest_batch, memory_need, usable_bytes
from stallwise.model.data.cache import lru_miss
from stallwise.model.exchange.fabric import Fabric, KnownLink
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.epoch import BoundedStep, JobDuration, TrainingPlan, job_duration
from stallwise.model.step.iteration import StepTimetable, step_timetable
from stallwise.model.step.job import MeasuredJob, OwnLinks
from stallwise.model.step.setups import OWN_EXCHANGE, Setups, StepEstimate, setup_prediction, step_estimates
from stallwise.model.step.whatif import POWERS_OF_TWO, scheme_notes, speedup
from stallwise.sentences import Sentence
from stallwise.units import show_count, show_factor, show_memory, show_percent, show_rate, show_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that differs from the run; `before` is None where it was not known."""

    name: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedLink:
    """A link that the predicted exchange crosses."""

    tier: str
    link: KnownLink


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The set-up that was predicted, every assumption in force: what stands in the header of an answer."""

    device: str | None
    """GPU model, or `CPU`; None: a layer file does not say."""
    instance: str | None
    gpus: int | None
    """None: a layer file with exchange times of its own."""
    gpus_per_node: int | None
    nodes: int | None
    samples_per_gpu: float | None
    global_batch: float | None
    measured_global_batch: float | None
    passes: int
    workers: int | None
    """Loader workers per GPU; None: no loader was seen."""
    measured_workers: int | None
    cores: int | None
    """Of a node."""
    precision: str
    links: tuple[UsedLink, ...]
    dataset_bytes: float | None
    storage_bytes_per_s: float | None

    @property
    def unit(self) -> str:
        """What a rank computes on, in words: a GPU, or where there is none the process itself."""
        return "process" if self.device == "CPU" else "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFit:
    """Whether the job fits on its GPU."""

    need: MemoryNeed
    usable_bytes: float
    sharded_over: int
    largest_batch: float | None
    """As a factor of the measured batch; None: not even the weights fit."""
    measured_samples: float | None
    """Samples per GPU of the measured batch."""
    fits_sharded_over: int | None
    """Ranks that FSDP must shard over to fit; None: no number of them helps."""

    @property
    def fits(self) -> bool:
        """Whether it fits as predicted."""
        return self.need.whole <= self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A step on the target with its interval, and what it rests on.

    Examples:
        >>> import stallwise
        >>> prediction = stallwise.open_run("examples/runs/slow-data-fixed").on(gpu="A100-80GB-SXM", gpus=1)
        >>> prediction.fits, prediction.answer.binds, len(prediction.assumptions) > 0
        (True, 'data', True)
    """

    name: str
    source: str
    source_gpu: str | None
    target: Target
    setup: Setup
    measured: Share | None
    """The step as measured."""
    measured_samples_per_s: float | None
    measured_compute_s: float
    baseline: StepEstimate | None
    """The model's own answer for the job as it is; None where its links are not known."""
    changed: tuple[Difference, ...]
    answer: StepEstimate
    compute: Share
    """Seconds of compute in the predicted step, with bounds."""
    cold_s: float
    """A step whose samples all come from storage."""
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    """Also None where the lower bound of the step is 0: a run of a few blocks has intervals that wide."""
    curve: tuple[StepEstimate, ...]
    curve_ends: Sentence | None
    """Why the curve does not go up to 1,024 GPUs."""
    memory: MemoryFit | None
    assumptions: tuple[Sentence, ...]
    schedule: StepTimetable
    """When each part of the predicted step runs."""

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.answer.step_s

    @property
    def low_s(self) -> float:
        """Lower bound of the step."""
        return self.answer.low_s

    @property
    def high_s(self) -> float:
        """Upper bound of the step."""
        return self.answer.high_s

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of all GPUs together."""
        return self.answer.samples_per_s

    @property
    def fits(self) -> bool | None:
        """Whether it fits into memory; None: not known."""
        return None if self.memory is None else self.memory.fits

    @property
    def links(self) -> tuple[UsedLink, ...]:
        """The links that the exchange crosses."""
        return self.setup.links

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs in use on each node."""
        return self.setup.gpus_per_node

    @property
    def model_error(self) -> float | None:
        """How far the model is off for the job as it is: predicted over measured, less 1."""
        if self.baseline is None or self.measured is None:
            return None
        return self.baseline.step_s / self.measured.s - 1

    def whole(self, plan: TrainingPlan) -> JobDuration:
        """Durations of an epoch and of the whole job."""
        answer = self.answer
        low_s, high_s = (answer.low_s, answer.high_s) if answer.bounded else (answer.step_s, answer.step_s)
        step = BoundedStep(
            s=answer.step_s,
            low_s=min(low_s, answer.step_s),
            high_s=max(high_s, answer.step_s),
            cold_s=self.cold_s,
        )
        return job_duration(step, plan)


def predict(model: JobModel, target: Target, own: OwnLinks, *, curve: bool | None = False) -> Prediction:
    """The job on the target; an `InputError` says what the run or the target lacks.

    `curve` True insists on all numbers of GPUs up to 1,024, None draws it as far as links are known.
    """
    job = model.job
    kind, fleets = fleet_of(model, target, own)
    target = _with_page_cache(target, kind, int(fleets.nodes[0]))
    gpus = int(fleets.gpus[0]) or None
    steps = _judged_steps(model, fleets, target)
    bounded = replace(job, compute_factors=_bounds(model, kind))
    (answer,) = step_estimates(bounded, steps.setups)
    baseline = _baseline(model, own)
    points, ends = ((), None) if curve is False else _curve(model, kind, target, own, gpus)
    if points and target.memory_bytes is not None and target.cached is not None:
        points, ends = (), Sentence("curve.one-memory", "The memory of one node is asked about.")
    if curve and ends:
        raise InputError(f"The curve cannot be drawn up to {POWERS_OF_TWO[-1]:,} GPUs. {ends}")
    gain = None if baseline is None else speedup(answer, baseline)
    setup = _setup(model, kind, fleets, steps, target)
    return Prediction(
        name=job.name,
        source=job.trace.source,
        source_gpu=None if model.source is None else model.source.name,
        target=target,
        setup=setup,
        measured=job.step,
        measured_samples_per_s=_samples_per_s(job),
        measured_compute_s=model.measured_compute_s,
        baseline=baseline,
        changed=_differences(model, target, setup, kind, own),
        answer=answer,
        compute=_compute(steps.setups),
        cold_s=float(steps.cold_s[0]),
        speedup=gain,
        speedup_low=None if gain is None else gain * answer.step_s / answer.high_s,
        speedup_high=None if gain is None or answer.low_s == 0 else gain * answer.step_s / answer.low_s,
        curve=points,
        curve_ends=ends,
        memory=_memory(model, kind, steps),
        assumptions=_assumptions(model, kind, target, setup, own),
        schedule=step_timetable(setup_prediction(job, steps.setups).graph),
    )


def fleet_of(model: JobModel, target: Target, own: OwnLinks) -> tuple[Node, Fleets]:
    """The machines of a target, checked: a fleet of one column."""
    job = model.job
    plain = (
        target.fabric is None
        and target.device is None
        and target.machine is None
        and target.gpus is None
        and target.nodes is None
    )
    links = target.network_bytes_per_s is None and target.link_bytes_per_s is None and target.gpus_per_node is None
    if job.gpus is None and plain and links:
        kind = node_of(model, target, OwnLinks(), 1)
        return kind, one_fleet(kind, used=1, nodes=1, gpus=OWN_EXCHANGE)
    gpus, per_node = layout_of(job, target)
    if gpus > 1 and not model.exchanges:
        raise InputError("The size of the job's gradients is not known, so only single GPUs can be judged.")
    kind = node_of(model, target, own, per_node)
    check_links(job, kind.fabric, target, own, gpus)
    return kind, one_fleet(kind, used=min(gpus, per_node), nodes=-(-gpus // per_node), gpus=gpus)


def step_s(model: JobModel, target: Target, own: OwnLinks | None = None) -> float:
    """The step of a prediction alone: faster where thousands of set-ups are asked for."""
    kind, fleets = fleet_of(model, target, own or OwnLinks())
    target = _with_page_cache(target, kind, int(fleets.nodes[0]))
    return float(_judged_steps(model, fleets, target).step_s[0])


def _with_page_cache(target: Target, kind: Node, nodes: int) -> Target:
    """The target with the fraction of its reads that the page cache of a node of its memory finds.

    The least recently used pages go first (`lru_miss`: within 10 % of measured speeds, evidence/gpu.md). Where the rate
    of a node's storage is known, `steps_of` takes what the cache misses at that rate instead, on any number of nodes.
    """
    if target.memory_bytes is None:
        return target
    if target.cached is not None:
        raise InputError(
            "Give the memory of a node or the fraction of the data found in it, not both.", fields=("memory", "cached")
        )
    if kind.storage_bytes_per_s is not None:
        return target
    if nodes > 1:
        raise InputError(
            "What the memory of several nodes keeps is predicted where the rate of their storage is known. Name an "
            "instance type, or give the fraction of the data found in memory.",
            fields=("instance", "cached"),
        )
    if target.dataset_bytes is None:
        raise InputError(
            "What a memory of that size keeps depends on the size of the dataset, which the run did not record.",
            fields=("dataset_size",),
        )
    kept = min(1.0, MEMORY_FOR_FILES * target.memory_bytes / target.dataset_bytes)
    return replace(target, cached=1.0 - lru_miss(kept))


def settings_of(target: Target) -> FleetSettings:
    """The batch, loader and exchange settings of a target."""
    return FleetSettings(
        batch=target.batch,
        global_batch=target.global_batch,
        workers=target.workers,
        overlap=target.overlap,
        copy=target.copy,
        cached=target.cached,
        storage_speed=target.storage_speed,
        dataset_bytes=target.dataset_bytes,
    )


def _with_counts(kind: Node, counts: Sequence[int]) -> Fleets:
    gpus = np.array(counts, dtype=np.int64)
    per_node = kind.fabric.gpus_per_node
    used = np.minimum(gpus, per_node)
    return Fleets(kinds=(kind,), kind=0 * gpus, used=used, nodes=-(-gpus // per_node), count=gpus)


def _bounds(model: JobModel, kind: Node) -> tuple[float, float] | None:
    """Whether compute has an interval: None where nothing is known of it."""
    unknown = kind.gpu is None and model.job.compute_factors is None
    return None if unknown else (kind.compute.low, kind.compute.high)


def _judged_steps(model: JobModel, fleets: Fleets, target: Target) -> FleetSteps:
    """The step of the target; one that does not fit into memory is predicted as if it did, and reported not to fit."""
    settings = settings_of(target)
    steps = steps_of(model, fleets, settings)
    if int(steps.why_not[0]) == NO_MEMORY:
        steps = steps_of(model, fleets, replace(settings, judge_memory=False))
    if int(steps.why_not[0]) != FITS:
        if target.global_batch is None:
            raise InputError("A pass has at least one sample on each GPU. Give a larger batch.", fields=("batch",))
        raise InputError(
            f"A batch of {show_count(target.global_batch)} cannot be shared evenly among {int(fleets.gpus[0]):,} GPUs. "
            "Give the batch of each GPU instead, or another number.",
            fields=("global_batch", "batch"),
        )
    return steps


def _compute(setups: Setups) -> Share:
    seconds = float(setups.compute_s[0])
    return Share(seconds, seconds * float(setups.compute_low[0]), seconds * float(setups.compute_high[0]))


def _baseline(model: JobModel, own: OwnLinks) -> StepEstimate | None:
    """The job as it is; None where the links of its several GPUs are not known."""
    job = model.job
    if job.gpus is not None and job.gpus > 1 and own == OwnLinks():
        return None
    kind, fleets = fleet_of(model, Target(), own)
    steps = steps_of(model, fleets, FleetSettings(judge_memory=False))
    return step_estimates(replace(job, compute_factors=_bounds(model, kind)), steps.setups)[0]


def _samples_per_s(job: MeasuredJob) -> float | None:
    if job.samples is None or job.step is None or job.gpus is None:
        return None
    return job.samples * job.gpus / job.step.s


def _curve(
    model: JobModel, kind: Node, target: Target, own: OwnLinks, gpus: int | None
) -> tuple[tuple[StepEstimate, ...], Sentence | None]:
    """As many points as links are known for, and the sentence that says why there are no more."""
    if gpus is None:
        return (), Sentence(
            "curve.no-gradients", "Exchange times without sizes of gradients say nothing about other numbers of GPUs."
        )
    counts, ends = _known_counts(kind.fabric, sorted({*POWERS_OF_TWO, gpus}), own)
    if len(counts) < 2:
        return (), ends
    settings = replace(settings_of(target), judge_memory=False)
    steps = steps_of(model, _with_counts(kind, counts), settings)
    fits = np.flatnonzero(steps.fits)
    job = replace(model.job, compute_factors=_bounds(model, kind))
    return step_estimates(job, steps.setups.take(fits)), ends


def _known_counts(fabric: Fabric, counts: list[int], own: OwnLinks) -> tuple[list[int], Sentence | None]:
    linked: list[int] = []
    for count in counts:
        try:
            used = fabric.used(count)
        except InputError as error:
            return linked, Sentence("links.unknown", str(error))
        if own.caveat and any(link.origin == "fitted" for link in used):
            return linked, own.caveat
        linked.append(count)
    return linked, None


def _setup(model: JobModel, kind: Node, fleets: Fleets, steps: FleetSteps, target: Target) -> Setup:
    job, setups = model.job, steps.setups
    gpus = int(fleets.gpus[0]) or None
    gpu = kind.gpu or model.source
    samples = None if job.samples is None else job.samples * float(setups.batch[0])
    return Setup(
        device=gpu.name if gpu is not None else "CPU" if job.step is not None else None,
        instance=None if kind.instance is None else kind.instance.name,
        gpus=gpus,
        gpus_per_node=None if gpus is None else kind.fabric.gpus_per_node,
        nodes=None if gpus is None else int(fleets.nodes[0]),
        samples_per_gpu=samples,
        global_batch=None if samples is None or gpus is None else samples * gpus,
        measured_global_batch=None if job.samples is None or job.gpus is None else job.samples * job.gpus,
        passes=int(setups.passes[0]),
        workers=None if job.work is None else int(setups.workers[0]),
        measured_workers=None if job.work is None else job.work.workers,
        cores=kind.cores,
        precision=precision_on(model, kind.gpu),
        links=() if gpus is None else _links(kind.fabric, gpus),
        dataset_bytes=target.dataset_bytes,
        storage_bytes_per_s=kind.storage_bytes_per_s,
    )


def _links(fabric: Fabric, gpus: int) -> tuple[UsedLink, ...]:
    used = fabric.used(gpus)
    named = (("inside a node", fabric.inside), ("between nodes", fabric.between))
    return tuple(UsedLink(tier=tier, link=link) for tier, link in named if link is not None and link in used)


def _memory(model: JobModel, kind: Node, steps: FleetSteps) -> MemoryFit | None:
    gpu, setups = kind.gpu or model.source, steps.setups
    if gpu is None or model.footprint is None:
        return None
    shards = max(1, int(setups.gpus[0])) if model.sharded else 1
    in_pass = float(setups.batch[0]) * model.job.overlap.accumulate / int(setups.passes[0])
    return MemoryFit(
        need=memory_need(model.footprint, batch=in_pass, shards=shards),
        usable_bytes=usable_bytes(gpu.memory_bytes),
        sharded_over=shards,
        largest_batch=largest_batch(model.footprint, gpu.memory_bytes, shards=shards),
        measured_samples=model.job.samples,
        fits_sharded_over=fewest_shards(model.footprint, gpu.memory_bytes, batch=in_pass),
    )


def _differences(model: JobModel, target: Target, setup: Setup, kind: Node, own: OwnLinks) -> tuple[Difference, ...]:
    job = model.job
    rows: list[tuple[str, str | None, str]] = []
    if setup.gpus is not None:
        units = "processes" if setup.unit == "process" else "GPUs"
        rows.append((units, _fleet(job.gpus, job.gpus_per_node), _fleet(setup.gpus, kind.fabric.gpus_per_node) or ""))
        rows += _link_differences(kind.fabric, setup.gpus, own)
    if kind.gpu is not None:
        rows.append(("device", "CPU" if model.source is None else model.source.name, kind.gpu.name))
    if target.overlap is not None:
        rows += _overlap_differences(job.overlap, target.overlap)
    for name, factor in (("compute", target.compute_speed), ("storage", target.storage_speed)):
        if factor not in (None, 1.0):
            rows.append((name, "as measured", show_factor(factor)))
    if setup.samples_per_gpu is not None and job.samples is not None:
        before, after = (f"{show_count(one)} per {setup.unit}" for one in (job.samples, setup.samples_per_gpu))
        rows.append(("batch", before, after))
    elif target.batch is not None:
        rows.append(("batch", "as measured", show_factor(target.batch)))
    if setup.workers is not None:
        rows.append(("workers", str(setup.measured_workers), str(setup.workers)))
    if target.memory_bytes is not None:
        rows.append(("memory of a node", _size(model.node_memory_bytes), show_memory(target.memory_bytes)))
    if target.cached is not None:
        rows.append(("cache", "as measured", f"{show_percent(target.cached)} of the data"))
    return tuple(Difference(name=name, before=old, after=new) for name, old, new in rows if old != new)


def _size(size_bytes: float | None) -> str:
    return "unknown" if size_bytes is None else show_memory(size_bytes)


def _memory_note(memory_bytes: float, dataset_bytes: float) -> Sentence:
    """What the page cache keeps, what a cache that never evicts would find, and the memory that keeps everything."""
    kept = min(1.0, MEMORY_FOR_FILES * memory_bytes / dataset_bytes)
    enough_bytes = dataset_bytes / MEMORY_FOR_FILES
    return Sentence(
        "loader.page-cache",
        f"{show_percent(MEMORY_FOR_FILES)} of a node's memory keep files: {show_percent(kept)} of the data. The page "
        "cache finds fewer of them in an epoch of another order, a cache that evicts nothing (NodeCache) all of them. "
        f"From {show_memory(enough_bytes)} on, a node keeps everything.",
        kept=kept,
        enough_bytes=enough_bytes,
    )


def _link_differences(fabric: Fabric, gpus: int, own: OwnLinks) -> list[tuple[str, str | None, str]]:
    used = fabric.used(gpus)
    tiers = (("link", own.inside, fabric.inside), ("network", own.between, fabric.between))
    return [
        (name, _rate(before), _rate(after))
        for name, before, after in tiers
        if before is not None and after is not None and before != after and after in used
    ]


def _rate(link: KnownLink) -> str:
    rate = link.bytes_per_s
    return "any rate" if rate is None else show_rate(rate)


def _fleet(gpus: int | None, per_node: int) -> str | None:
    if gpus is None:
        return None
    nodes = -(-gpus // per_node)
    return f"{gpus:,} on {nodes:,} node{'s' if nodes > 1 else ''}"


def _overlap_differences(before: Overlap, after: Overlap) -> list[tuple[str, str | None, str]]:
    return [
        ("overlap", before.scheme, after.scheme),
        ("buckets", show_memory(before.bucket_bytes), show_memory(after.bucket_bytes)),
        ("fusion", show_memory(before.fusion_bytes), show_memory(after.fusion_bytes)),
        ("cycle", show_seconds(before.cycle_s), show_seconds(after.cycle_s)),
        ("slices", _slices(before), _slices(after)),
        ("through", before.through, after.through),
        ("bytes sent", show_percent(before.compression), show_percent(after.compression)),
        ("gradients", _gradients(before), _gradients(after)),
        ("accumulate", str(before.accumulate), str(after.accumulate)),
    ]


def _slices(overlap: Overlap) -> str:
    return "as published" if overlap.slice_bytes is None else show_memory(overlap.slice_bytes)


def _gradients(overlap: Overlap) -> str:
    return "whole" if overlap.sparse is None else f"{overlap.sparse.kind}, {show_percent(overlap.sparse.density)}"


def _assumptions(model: JobModel, kind: Node, target: Target, setup: Setup, own: OwnLinks) -> tuple[Sentence, ...]:
    """What the answer takes for granted, in sentences."""
    job, gpus = model.job, setup.gpus
    notes = [*job.assumptions, *model.notes]
    if kind.gpu is not None or target.compute_speed is not None:
        notes.append(kind.compute.note)
        if kind.compute.launching_s + kind.compute.waits_s > _HOST_COUNTS * model.measured_compute_s:
            notes += _host_notes(model, target)
    if target.own_machine is not None:
        ratios = kind.ratios.text or "nothing that both measured"
        notes.append(
            Sentence("machine.records-compared", f"{target.machine_name} against the run's own machine: {ratios}.")
        )
    if setup.passes > (target.overlap or job.overlap).accumulate:
        notes.append(
            Sentence(
                "batch.passes",
                f"The batch does not fit at once: a step takes {setup.passes} passes.",
                passes=setup.passes,
            )
        )
    if target.batch not in (None, 1.0) or target.global_batch is not None:
        notes.append(
            Sentence(
                "batch.scales",
                "Forward, backward, copying and loading are taken to grow with the batch; the update is not.",
            )
        )
    if gpus not in (None, 1, job.gpus):
        notes.append(
            Sentence(
                "interval.raised",
                "The upper end is raised by 7 %, as far as real steps on other numbers of ranks have exceeded "
                "predictions.",
            )
        )
    if gpus != 1:
        notes.append(
            Sentence("compute.equal-gpus", "Every rank computes at the same speed; none is slower than the others.")
        )
    notes += _data_notes(model, kind, target, setup)
    if target.overlap is not None:
        notes += scheme_notes(target.overlap)
    if kind.gpu is not None and model.footprint is not None:
        notes.append(
            Sentence(
                "memory.counted",
                f"Memory: {target.optimizer}'s state, activations as counted in the run, 8 % lost to fragmentation.",
            )
        )
        if model.footprint.activation_bytes == 0:
            notes.append(
                Sentence(
                    "memory.no-activations",
                    "The run counted no activations, so the largest batch is not bounded by them.",
                )
            )
        if model.compiled:
            notes.append(
                Sentence(
                    "memory.compiled", "The model is compiled: it keeps fewer activations than counted layers say."
                )
            )
    return (*notes, *(link_notes(kind.fabric, own, gpus) if gpus else ()))


_HOST_COUNTS = 0.1  # of compute, from where on the host is worth a sentence


def _host_notes(model: JobModel, target: Target) -> list[Sentence]:
    """Which host launches the kernels."""
    hosts = target.machine.hosts if target.machine is not None else ()
    if host_ratio(model, hosts[0].cpu_model if hosts else None) is not None:
        return [
            Sentence(
                "host.by-cpu",
                "The host launches kernels as fast as the class of its CPU does beside that of the run's.",
            )
        ]
    return [
        Sentence(
            "host.as-measured",
            "The host is taken to launch kernels as fast as the run's: no faster GPU makes that part shorter.",
        )
    ]


def _data_notes(model: JobModel, kind: Node, target: Target, setup: Setup) -> list[Sentence]:
    job = model.job
    if job.work is None:
        return []
    notes = []
    if setup.workers != job.work.workers and target.workers is None:
        notes.append(
            Sentence(
                "loader.cores-per-gpu",
                f"Loader workers are limited to the cores that a GPU of the node has: {setup.workers} per GPU.",
                workers=setup.workers,
            )
        )
    if target.memory_bytes is not None and target.dataset_bytes is not None:
        notes.append(_memory_note(target.memory_bytes, target.dataset_bytes))
    if target.cached is not None:
        notes.append(
            Sentence(
                "loader.files-in-memory",
                "The steps as measured are taken to have found all files in memory, the cold ones none.",
            )
        )
    elif target.storage_speed not in (None, 1.0):
        notes.append(Sentence("loader.all-storage", "All time the loader was blocked for is taken to be storage."))
    had = min(job.gpus or 1, job.gpus_per_node)
    if job.work.blocked_s and setup.gpus and min(setup.gpus, setup.gpus_per_node or 1) > had:
        sharers = min(setup.gpus, setup.gpus_per_node or 1) / had
        notes.append(
            Sentence(
                "loader.shared-storage",
                f"The GPUs of a node share its storage: each loader waits for it {show_factor(sharers)} as long as in "
                "the run.",
                factor=sharers,
            )
        )
    if kind.cores is None and (target.workers is not None or setup.gpus != job.gpus):
        notes.append(
            Sentence(
                "loader.unknown-cores", "The number of cores is not known; loader workers are taken to have one each."
            )
        )
    if kind.instance is not None and kind.ratios.decode is None:
        notes.append(
            Sentence("loader.same-cores", "A core of the target prepares samples as fast as one of the run's machine.")
        )
    return notes
