"""The result of profiling a job: what the card, the page and the JSON show."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.model.intervals import Interval, median_of_block_means
from stallwise.record import plan
from stallwise.record.bucket import BucketUse, bucket_use_of
from stallwise.record.split import Measured, Skew, Split, measure
from stallwise.record.verdict import Verdict, judge
from stallwise.run.manifest import ModelRecord, NodeRecord, State, WorldRecord
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars


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
class Happening:
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
class Profile:
    """Where the time of a run goes. The field names are the keys of `--json`."""

    run: Path
    run_id: str
    script: str
    state: State
    partial_reason: str | None
    world: WorldRecord
    nodes: tuple[NodeRecord, ...]
    steps: int
    step_s: float
    step_low_s: float
    step_high_s: float
    samples_per_s: float | None
    tokens_per_s: float | None
    split: Split
    rates: Rates
    verdict: Verdict
    skew: Skew | None
    cold_step_s: float | None
    mfu: float | None
    model: ModelRecord | None = None
    layers: tuple[LayerTime, ...] = ()
    """Slowest first."""
    peak_memory_bytes: int | None
    happenings: tuple[Happening, ...]
    notes: tuple[str, ...]
    bucket: BucketUse | None = None
    """Where its data came from a bucket."""


def profile_of(run: Run) -> Profile:
    """Everything there is to say about a run."""
    found = measure(run)
    steps, known = run.table("steps"), run.manifest
    samples = _per_step(steps, "samples")
    tokens = _per_step(steps, "tokens")
    rates = _rates(run, found, samples)
    return Profile(
        run=run.path,
        run_id=known.run_id,
        script=known.job.script,
        state=known.state,
        partial_reason=run.partial_reason,
        world=known.world,
        nodes=known.nodes,
        steps=steps.get_column("step").n_unique(),
        step_s=found.step.value,
        step_low_s=max(0.0, found.step.low),
        step_high_s=found.step.high,
        samples_per_s=samples / found.step.value if samples else None,
        tokens_per_s=tokens / found.step.value if tokens else None,
        split=found.split,
        rates=rates,
        verdict=judge(found, cores=_cores(known.nodes), ranks=known.world.world_size // known.world.nnodes),
        skew=found.skew,
        cold_step_s=found.cold_step.value if found.cold_step else None,
        mfu=_mfu(known.model, known.nodes, found.step.value),
        model=known.model,
        layers=_layers(run.table("layers")),
        peak_memory_bytes=max((r.peak_memory_bytes for r in known.ranks if r.peak_memory_bytes), default=None),
        happenings=_happenings(run.table("events")),
        notes=known.notes,
        bucket=bucket_use_of(run),
    )


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


def _layers(layers: "polars.DataFrame") -> tuple[LayerTime, ...]:
    """Every module, by the median over ranks of what it takes in a step, slowest first."""
    import polars as pl

    timed = layers.filter(pl.col("forward_s").is_not_null())
    medians = timed.group_by("name", "kind", maintain_order=True).agg(
        pl.col("forward_s").median(), pl.col("backward_s").median()
    )
    found = [LayerTime(**row) for row in medians.iter_rows(named=True)]
    return tuple(sorted(found, key=lambda layer: -(layer.forward_s + (layer.backward_s or 0.0))))


def _cores(nodes: tuple[NodeRecord, ...]) -> int | None:
    return min((node.cores for node in nodes if node.cores), default=None)


def _per_step(steps: "polars.DataFrame", column: str) -> float | None:
    """Samples (or tokens) of a step over all ranks; None where some rank did not say."""
    import polars as pl

    if column not in steps.columns:
        return None
    kept = steps.filter(pl.col("kept") & (pl.col("phase") == plan.AS_IS))
    per_rank = kept.group_by("rank").agg(pl.col(column).mean(), pl.col(column).null_count().alias("unknown"))
    if not per_rank.height or per_rank.get_column("unknown").sum():
        return None
    return float(per_rank.get_column(column).sum())


def _rates(run: Run, found: Measured, samples: float | None) -> Rates:
    consuming = next((p for p in (plan.DEVICE, plan.HOST) if p in found.rungs), None)
    ingest = None
    if consuming is not None and samples:
        ingest = _inverse(median_of_block_means(list(found.rungs[consuming].values())), samples)
    warm, cold = _block_rates(run, plan.AS_IS), _block_rates(run, plan.COLD)
    blocked = cold or warm
    return Rates(
        G=ingest,
        P=_rate(warm.get("prepare")),
        P_per_core=_rate(warm.get("core")),
        F=_rate(blocked.get("blocked")),
        C=_rate(warm.get("blocked")) if cold else None,
    )


def _block_rates(run: Run, phase: str) -> dict[str, list[float]]:
    """Per block of a phase, in samples per second over all ranks: preparing by all workers, by one core, being blocked.

    A rank's workers run side by side, so their rates add up; so do the ranks'.
    """
    import polars as pl

    batches = run.table("batches")
    made = batches.filter((pl.col("phase") == phase) & pl.col("samples").is_not_null())
    if not made.height:
        return {}
    made = made.with_columns(pl.col("worker").fill_null(-1))
    of_rank = made.group_by("block", "rank").agg(
        pl.col("samples").sum(),
        (pl.col("wall_s") - pl.col("blocked_s")).sum().alias("prepare_s"),
        pl.col("cpu_s").sum(),
        pl.col("blocked_s").sum(),
        pl.col("worker").n_unique().alias("workers"),
    )
    rated = of_rank.with_columns(
        (pl.col("samples") * pl.col("workers") / pl.col("prepare_s")).alias("prepare"),
        (pl.col("samples") / pl.col("cpu_s")).alias("core"),
        (pl.col("samples") * pl.col("workers") / pl.col("blocked_s")).alias("blocked"),
    )
    blocks = rated.group_by("block").agg(pl.col("prepare").sum(), pl.col("core").mean(), pl.col("blocked").sum())
    rates = {name: blocks.get_column(name).to_list() for name in ("prepare", "core", "blocked")}
    return {name: values for name, values in rates.items() if all(0 < v < float("inf") for v in values)}


def _rate(values: list[float] | None) -> Rate | None:
    if not values:
        return None
    found = median_of_block_means(values)
    return Rate(samples_per_s=found.value, low=max(0.0, found.low), high=found.high)


def _inverse(step: Interval, samples: float) -> Rate:
    high = samples / step.low if step.low > 0 else float("inf")
    return Rate(samples_per_s=samples / step.value, low=samples / step.high, high=high)


def _happenings(events: "polars.DataFrame") -> tuple[Happening, ...]:
    import polars as pl

    if not events.height:
        return ()
    timed = events.filter(pl.col("duration_s").is_not_null())
    per_kind = timed.group_by("kind").agg(pl.len(), pl.col("duration_s").mean()).sort("kind")
    return tuple(Happening(kind=kind, count=count, mean_s=mean_s) for kind, count, mean_s in per_kind.iter_rows())
