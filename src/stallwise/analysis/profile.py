"""The result of profiling a job: what the card, the page and the JSON show."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from stallwise.analysis._remedies import KernelMix, kernel_mix
from stallwise.analysis.bottleneck import Bottleneck, JobSituation, find_bottleneck
from stallwise.analysis.loading import loading_facts
from stallwise.analysis.object_store import BucketUse, bucket_use_of
from stallwise.analysis.observed import ObservedCause
from stallwise.analysis.split import Skew, Split, StepMeasurement, loader_workers
from stallwise.errors import InputError
from stallwise.model.statistics.intervals import Interval, positive_median
from stallwise.model.statistics.noise_scale import noise_ratio
from stallwise.model.step.iteration import StepTimetable
from stallwise.run import phases
from stallwise.run.manifest import ENDED_ITSELF, NO_LOADER, Manifest, ModelRecord, NodeRecord, State, WorldRecord
from stallwise.run.reader import Run
from stallwise.run.schema import MESSAGES
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.run.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Samples per second of the whole job, with bounds."""

    samples_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What each stage could do alone. None: not measured, or so fast that it left no trace."""

    G: Rate | None
    """The device with the exchange of gradients."""
    P: Rate | None
    """Preparation by all loader workers."""
    P_per_core: Rate | None
    """Preparation by one core."""
    F: Rate | None
    """Storage: the cold phase where there was one, else what the workers were blocked for."""
    C: Rate | None
    """The page cache: what the workers were blocked for as is, where a cold phase shows the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadEvent:
    """Time that is not part of steady steps: how often, and how long on average."""

    kind: str
    count: int
    mean_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """One module's part of a step; backward is unknown where its output needs no gradient."""

    name: str
    kind: str
    forward_s: float
    backward_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """The gradient noise scale, in samples, at this point of the training; steps fall with the batch B as 1 + noise/B.

    `samples` and `high` are infinite where the mean gradient is not told from zero: then only `low` is known.
    """

    samples: float
    low: float
    high: float
    batch: float
    """Samples of the job's own step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWait:
    """What a step's compute waits for in one group of ranks, by the script's own calls.

    For a pipeline the mean over its ranks: the bubble, with transfers that nothing hides. For collectives the shortest
    over the ranks: waiting for a late rank is that rank's compute.
    """

    kind: Literal["pipeline", "collectives"]
    ranks: str
    calls: tuple[str, ...]
    s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of a run goes. The field names are the keys of `--json`."""

    run: Path
    run_id: str
    script: str
    state: State
    partial_reason: Sentence | None
    world: WorldRecord
    nodes: tuple[NodeRecord, ...]
    steps: int
    step_s: float
    step_low_s: float
    step_high_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    split: Split
    observed: tuple[ObservedCause, ...] = ()
    """What the step waits for by cause, where it was observed; longest first."""
    rates: Rates
    verdict: Bottleneck
    skew: Skew | None
    groups: tuple[GroupWait, ...] = ()
    """Largest wait first."""
    cold_step_s: float | None
    mfu: float | None
    noise: GradientNoise | None = None
    """None: not measured, or the noise is not told from zero."""
    model: ModelRecord | None = None
    layers: tuple[LayerTime, ...] = ()
    """Slowest first."""
    peak_memory_bytes: int | None
    happenings: tuple[OverheadEvent, ...]
    notes: tuple[Sentence, ...]
    bucket: BucketUse | None = None
    """Where its data came from a bucket."""


def profile_of(run: Run, measured: StepMeasurement) -> Profile:
    """Everything there is to say about a run whose split is known."""
    steps, manifest = run.table("steps"), run.manifest
    samples, tokens = (_per_step(steps, name) or _of_shape(manifest, name) for name in ("samples", "tokens"))
    rates = _rates(run, measured, samples)
    return Profile(
        run=run.path,
        run_id=manifest.run_id,
        script=manifest.job.script,
        state=manifest.state,
        partial_reason=run.partial_reason,
        world=manifest.world,
        nodes=manifest.nodes,
        steps=steps["step"].n_unique(),
        step_s=measured.step.value,
        step_low_s=measured.step.low,
        step_high_s=measured.step.high,
        samples_per_s=samples / measured.step.value if samples else None,
        tokens_per_s=tokens / measured.step.value if tokens else None,
        split=measured.split,
        observed=measured.observed,
        rates=rates,
        verdict=find_bottleneck(measured, _situation(run, measured)),
        skew=measured.skew,
        cold_step_s=measured.cold_step.value if measured.cold_step else None,
        groups=_groups(run),
        noise=gradient_noise_of(run, samples),
        mfu=_mfu(manifest.model, manifest.nodes, measured.step.value),
        model=manifest.model,
        layers=_layers(run.table("layers")),
        peak_memory_bytes=max((r.peak_memory_bytes for r in manifest.ranks if r.peak_memory_bytes), default=None),
        happenings=_happenings(run.table("events")),
        notes=manifest.notes,
        bucket=bucket_use_of(run),
    )


def _situation(run: Run, measured: StepMeasurement) -> JobSituation:
    manifest, steps = run.manifest, run.table("steps")
    ladder = steps.filter(steps["phase"].is_in(phases.LADDER))
    begin_s, end_s = ladder["start_s"].min(), ladder["start_s"].max()
    named = {phase.name for phase in manifest.phases}
    light = named <= {phases.AS_IS, phases.WARMUP} if manifest.light is None else manifest.light
    return JobSituation(
        loading=loading_facts(run, measured),
        gpus=any(node.gpus for node in manifest.nodes),
        light=light and not any(note.startswith(NO_LOADER) for note in manifest.notes),
        measured_s=end_s - begin_s if begin_s is not None else 0.0,
        ended_itself=any(note.startswith(ENDED_ITSELF) for note in manifest.notes),
        kernels=_kernels(run) if measured.on_device else None,
    )


def _kernels(run: Run) -> KernelMix | None:
    spans = run.table("spans")
    spans = spans.filter(spans["track"].equals("gpu"))
    return kernel_mix(zip(spans["name"].to_list(), spans["duration_s"].to_list(), strict=True))


def _mfu(model: ModelRecord | None, nodes: tuple[NodeRecord, ...], step_s: float) -> float | None:
    """FLOPs of one rank's step over what its GPU's listed dense peak would do in that time; None where one is unknown.

    FLOPs are counted as executed: a forward that checkpointing runs twice counts twice.
    """
    from stallwise.hardware import load_catalog
    from stallwise.hardware.gpu import PRECISIONS, peak_flop_per_s

    gpus = {name for node in nodes for name in node.gpus}
    if model is None or model.flops_per_step is None or model.precision not in PRECISIONS or len(gpus) != 1:
        return None
    gpu = load_catalog().gpu_of_driver_name(gpus.pop())
    peak = peak_flop_per_s(gpu, model.precision) if gpu is not None else None
    return model.flops_per_step / (step_s * peak) if peak else None


def gradient_noise_of(run: Run, batch: float | None) -> GradientNoise | None:
    """The noise scale from every rank's squared norms of the same steps."""
    rows = run.table("noise")
    if not rows.height or not batch:
        return None
    steps = rows.group_by("step")
    ratio = noise_ratio(*(steps.mean(name).to_list() for name in ("small", "large", "parts")))
    if ratio is None:
        return None
    return GradientNoise(samples=ratio.value * batch, low=ratio.low * batch, high=ratio.high * batch, batch=batch)


def _groups(run: Run) -> tuple[GroupWait, ...]:
    """The waits of as-is steps by group, from each block's mean."""
    steps, rows = run.table("steps"), run.table("collectives")
    if not rows.height:
        return ()
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.AS_IS))
    block_of = dict(zip(kept["step"].to_list(), kept["block"].to_list(), strict=True))
    calls: dict[tuple[str, str], set[str]] = {}
    members: dict[tuple[str, str], set[int]] = {}
    waits: dict[tuple[str, str], dict[tuple[int, int], float]] = {}
    for rank, step, name, ranks, waited_s in rows.select("rank", "step", "name", "group", "waited_s").rows():
        if step in block_of and ranks:
            key = ("pipeline" if name in MESSAGES else "collectives", ranks)
            calls.setdefault(key, set()).add(name)
            members.setdefault(key, set()).add(rank)
            of_rank = waits.setdefault(key, {})
            of_rank[rank, step] = of_rank.get((rank, step), 0.0) + waited_s
    out = []
    for (kind, ranks), of_rank in waits.items():
        over = fmean if kind == "pipeline" else min
        blocks: dict[int, list[float]] = {}
        for step, block in block_of.items():
            blocks.setdefault(block, []).append(
                over([of_rank.get((rank, step), 0.0) for rank in sorted(members[kind, ranks])])
            )
        waited = positive_median([fmean(times) for times in blocks.values()])
        out.append(
            GroupWait(
                kind="pipeline" if kind == "pipeline" else "collectives",
                ranks=ranks,
                calls=tuple(sorted(calls[kind, ranks])),
                s=waited.value,
                low_s=waited.low,
                high_s=waited.high,
            )
        )
    return tuple(sorted(out, key=lambda group: -group.s))


def _layers(layers: "Table") -> tuple[LayerTime, ...]:
    """Every module, by the median over ranks of what it takes in a step, slowest first."""
    modules = layers.filter(~layers["forward_s"].null).group_by("name", "kind")
    medians = modules.with_columns(forward_s=modules.median("forward_s"), backward_s=modules.median("backward_s"))
    times = [LayerTime(**row) for row in medians.dicts()]
    return tuple(sorted(times, key=lambda layer: -(layer.forward_s + (layer.backward_s or 0.0))))


def _per_step(steps: "Table", column: str) -> float | None:
    """Samples (or tokens) of a step over all ranks; None where some rank did not say."""
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.AS_IS))
    if not kept.height or kept[column].null_count:
        return None
    return float(kept.group_by("rank").mean(column).sum())


def _of_shape(manifest: Manifest, name: str) -> float | None:
    """Samples (or tokens) of a step over all ranks by the shape of what the model is called with."""
    of_rank = getattr(manifest.model, f"{name}_per_step", None)
    return None if of_rank is None else of_rank * manifest.world.world_size


def _rates(run: Run, measured: StepMeasurement, samples: float | None) -> Rates:
    """What each stage could do alone. A stage has done at least what the whole job did while it was observed."""
    consuming = next((p for p in (phases.DEVICE, phases.HOST) if p in measured.rungs), None)
    job = _inverse(measured.step, samples) if samples else None
    ingest = None
    if consuming is not None and samples:
        ingest = _inverse(positive_median(list(measured.rungs[consuming].values())), samples)
    warm, cold = _block_rates(run, phases.AS_IS), _block_rates(run, phases.COLD)
    cold_job = _inverse(measured.cold_step, samples) if measured.cold_step is not None and samples else None
    storage = _at_least(_rate(cold.get("blocked")), cold_job) if cold else _at_least(_rate(warm.get("blocked")), job)
    return Rates(
        G=_at_least(ingest, job),
        P=_at_least(_rate(warm.get("prepare")), job),
        P_per_core=_rate(warm.get("core")),
        F=storage,
        C=_at_least(_rate(warm.get("blocked")), job) if cold else None,
    )


def _at_least(rate: Rate | None, job: Rate | None) -> Rate | None:
    """The rate of a stage, no lower than the job's own: noise and crowding may make it seem so."""
    if rate is None or job is None:
        return rate
    value = max(rate.samples_per_s, job.samples_per_s)
    low = rate.low if math.isfinite(rate.low) else job.low
    return Rate(samples_per_s=value, low=min(value, max(low, job.low)), high=max(rate.high, value))


def _block_rates(run: Run, phase: str) -> dict[str, list[float]]:
    """Per block of a phase, in samples per second over all ranks: preparing by all workers, by one core, being blocked.

    A rank's workers run side by side, so their rates add up; so do the ranks'.
    """
    from stallwise.run.table import TableColumn

    batches = run.table("batches")
    prepared = batches.filter(batches["phase"].equals(phase) & ~batches["samples"].null)
    if not prepared.height:
        return {}
    prepared = prepared.with_columns(prepare_s=prepared["wall_s"].less(prepared["blocked_s"]))
    ranks = prepared.group_by("block", "rank")
    samples = TableColumn.whole(ranks.sum("samples").values * _samples_scale(run, prepared))
    together = TableColumn.whole(samples.values * max(1, loader_workers(run)))
    rated = ranks.with_columns(
        prepare=together.over(ranks.sum("prepare_s")),
        core=samples.over(ranks.sum("cpu_s")),
        blocked=together.over(ranks.sum("blocked_s")),
    )
    blocks = rated.group_by("block")
    rates = {
        "prepare": blocks.sum("prepare").to_list(),
        "core": blocks.mean("core").to_list(),
        "blocked": blocks.sum("blocked").to_list(),
    }
    return {name: values for name, values in rates.items() if all(0 < v < float("inf") for v in values)}


def _samples_scale(run: Run, prepared: "Table") -> float:
    """Samples as training counts them for each item that the loader counts; above 1 where an item is a whole batch."""
    steps = run.table("steps")
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.AS_IS))
    if not kept.height or kept["fetches"].null_count or kept["samples"].null_count:
        return 1.0
    per_batch, fetches = prepared["samples"].mean(), kept["fetches"].mean()
    per_step = kept["samples"].mean()
    return per_step / fetches / per_batch if per_batch and fetches and per_step else 1.0


def _rate(values: list[float] | None) -> Rate | None:
    if not values:
        return None
    interval = positive_median(values)
    return Rate(samples_per_s=interval.value, low=interval.low, high=interval.high)


def _inverse(step: Interval, samples: float) -> Rate:
    if not step.is_bounded:
        return Rate(samples_per_s=samples / step.value, low=-math.inf, high=math.inf)
    return Rate(samples_per_s=samples / step.value, low=samples / step.high, high=samples / step.low)


def _happenings(events: "Table") -> tuple[OverheadEvent, ...]:
    kinds = events.filter(~events["duration_s"].null).group_by("kind")
    per_kind = kinds.with_columns(count=kinds.size(), mean_s=kinds.mean("duration_s")).sort("kind")
    return tuple(OverheadEvent(**row) for row in per_kind.dicts())


if TYPE_CHECKING:
    from stallwise.run.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """One rank: its step as the script is, what of it the rank waits for batches, and its compute without exchange.

    Medians over blocks of block means. None: not measured.
    """

    rank: int
    node: int
    step_s: float
    data_wait_s: float | None
    compute_s: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientReady:
    """A gradient and the moment of the backward pass at which it is ready."""

    name: str
    bytes: int
    ready_s: float
    bucket: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a page shows beneath the profile. Empty: the run does not say."""

    ranks: tuple[RankTimes, ...] = ()
    gradients: tuple[GradientReady, ...] = ()
    schedule: StepTimetable | None = None
    """The step as the model has it, in time; None: nothing can be predicted from the run, or its links are unknown."""


def detail_of(run: Run, own_schedule: Callable[[], StepTimetable | None]) -> Detail:
    """Everything there is to say; `own_schedule` predicts when each part of the step as measured runs."""
    try:
        schedule = own_schedule()
    except InputError:
        schedule = None
    return Detail(ranks=_ranks(run), gradients=_gradients(run.table("gradients")), schedule=schedule)


def _ranks(run: Run) -> tuple[RankTimes, ...]:
    steps = run.table("steps")
    whole = _by_rank(steps, phases.AS_IS, "duration_s")
    waits = _by_rank(steps, phases.AS_IS, "data_wait_s")
    alone = _by_rank(steps, phases.ALONE, "duration_s")
    records = {rank.rank: rank for rank in run.manifest.ranks}
    return tuple(
        RankTimes(
            rank=rank,
            node=records[rank].node if rank in records else 0,
            step_s=step_s,
            data_wait_s=waits.get(rank),
            compute_s=alone.get(rank),
            peak_memory_bytes=records[rank].peak_memory_bytes if rank in records else None,
        )
        for rank, step_s in sorted(whole.items())
    )


def _by_rank(steps: "Table", phase: str, column: str) -> dict[int, float]:
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phase) & ~steps[column].null)
    blocks = kept.group_by("rank", "block")
    ranks = blocks.with_columns(s=blocks.mean(column)).group_by("rank")
    return dict(ranks.with_columns(s=ranks.median("s")).rows())


def _gradients(rows: "Table") -> tuple[GradientReady, ...]:
    """Those of the lowest rank that has them, in ready order: on every rank the same but for noise."""
    timed = rows.filter(~rows["ready_s"].null)
    if not timed.height:
        return ()
    one = timed.filter(timed["rank"].equals(timed["rank"].min())).sort("ready_s", "order")
    return tuple(
        GradientReady(name=row["name"], bytes=row["bytes"], ready_s=row["ready_s"], bucket=row["bucket"])
        for row in one.dicts()
    )
