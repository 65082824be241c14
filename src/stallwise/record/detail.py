"""What a run says beyond its profile: each rank's own times, and when each gradient is ready."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwise.errors import InputError
from stallwise.model.calibrate import OwnLinks, own_links
from stallwise.model.schedule import Schedule, schedule
from stallwise.model.whatif import Change, prediction
from stallwise.record import plan
from stallwise.record.job import job_of
from stallwise.record.setup import own_fabric
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars


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
    schedule: Schedule | None = None
    """The step as the model has it, in time; None: nothing can be predicted from the run, or its links are unknown."""


def detail_of(run: Run) -> Detail:
    """Everything there is to say."""
    return Detail(ranks=_ranks(run), gradients=_gradients(run.table("gradients")), schedule=_schedule(run))


def _schedule(run: Run) -> Schedule | None:
    """When each part of a step runs, by the graph of the job as it is."""
    try:
        job = job_of(run)
        own = own_links(job)
        if (job.gpus or 1) > 1 and own == OwnLinks():
            return None
        return schedule(prediction(job, Change(), own_fabric(job, own), job.gpus).graph)
    except InputError:
        return None


def _ranks(run: Run) -> tuple[RankTimes, ...]:
    steps = run.table("steps")
    whole = _by_rank(steps, plan.AS_IS, "duration_s")
    waits = _by_rank(steps, plan.AS_IS, "data_wait_s")
    alone = _by_rank(steps, plan.ALONE, "duration_s")
    known = {rank.rank: rank for rank in run.manifest.ranks}
    return tuple(
        RankTimes(
            rank=rank,
            node=known[rank].node if rank in known else 0,
            step_s=step_s,
            data_wait_s=waits.get(rank),
            compute_s=alone.get(rank),
            peak_memory_bytes=known[rank].peak_memory_bytes if rank in known else None,
        )
        for rank, step_s in sorted(whole.items())
    )


def _by_rank(steps: "polars.DataFrame", phase: str, column: str) -> dict[int, float]:
    import polars as pl

    kept = steps.filter(pl.col("kept") & (pl.col("phase") == phase) & pl.col(column).is_not_null())
    blocks = kept.group_by("rank", "block").agg(pl.col(column).mean())
    return dict(blocks.group_by("rank").agg(pl.col(column).median()).iter_rows())


def _gradients(rows: "polars.DataFrame") -> tuple[GradientReady, ...]:
    """Those of the lowest rank that has them, in ready order: on every rank the same but for noise."""
    import polars as pl

    timed = rows.filter(pl.col("ready_s").is_not_null())
    if not timed.height:
        return ()
    one = timed.filter(pl.col("rank") == pl.col("rank").min()).sort("ready_s", "order")
    return tuple(
        GradientReady(name=row["name"], bytes=row["bytes"], ready_s=row["ready_s"], bucket=row["bucket"])
        for row in one.iter_rows(named=True)
    )
