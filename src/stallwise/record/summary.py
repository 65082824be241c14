"""A run in a page: what was run, where, and the time of each phase with its interval.

The job's time in a block is that of its slowest rank: with gradient exchange all ranks take the same time,
and without it the slowest is the one the others would wait for.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stallwise.model.intervals import Interval, median_of_block_means
from stallwise.run.join import count, count_phases
from stallwise.run.manifest import CountsRecord, JobRecord, NodeRecord, PhaseRecord, State, WorldRecord
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class PhaseSummary:
    """A phase's step time, speed and waiting; None where nothing was kept or nothing was recorded of it."""

    name: str
    differs: str
    steps: int
    blocks: int
    step_s: Interval | None
    samples_per_s: Interval | None
    data_wait_share: Interval | None


@dataclass(frozen=True)
class RunSummary:
    """What `stallwise show` says of a run. The field names are the keys of its JSON."""

    path: Path
    run_id: str
    created: datetime
    schema_version: int
    stallwise_version: str
    state: State
    partial_reason: str | None
    job: JobRecord
    world: WorldRecord
    nodes: tuple[NodeRecord, ...]
    software: dict[str, str]
    counts: CountsRecord
    phases: tuple[PhaseSummary, ...]
    notes: tuple[str, ...]


def summarise(run: Run) -> RunSummary:
    """The summary of a run in any state; counts come from the tables, so they need no joining."""
    known = run.manifest
    steps = run.read("steps")
    return RunSummary(
        path=run.path,
        run_id=known.run_id,
        created=known.created,
        schema_version=known.schema_version,
        stallwise_version=known.stallwise_version,
        state=known.state,
        partial_reason=run.partial_reason,
        job=known.job,
        world=known.world,
        nodes=known.nodes,
        software=known.software,
        counts=count(steps.frame, known.counts),
        phases=tuple(_phase(phase, steps.frame) for phase in count_phases(steps.frame, known.phases)),
        notes=tuple(dict.fromkeys([*known.notes, *steps.damage])),
    )


def block_table(steps: "polars.DataFrame", phase: str) -> "polars.DataFrame":
    """Per block of a phase: `step_s` of the slowest rank, `samples_per_s` of all ranks, `data_wait_share`.

    1. per rank and block, the mean over kept steps of duration, samples and waiting;
    2. per block, the longest mean duration; samples of all ranks in a step over that; waiting of all over
       their time. A column is null where a rank did not record it: a sum without it would be too small.
    """
    import polars as pl

    kept = steps.filter(pl.col("kept") & (pl.col("phase") == phase))
    of_rank = kept.group_by("block", "rank").agg(
        pl.col("duration_s").mean(),
        pl.when(pl.col("samples").null_count() == 0).then(pl.col("samples").mean()),
        pl.when(pl.col("data_wait_s").null_count() == 0).then(pl.col("data_wait_s").mean()),
    )
    whole_samples = pl.when(pl.col("samples").null_count() == 0).then(pl.col("samples").sum())
    whole_wait = pl.when(pl.col("data_wait_s").null_count() == 0).then(pl.col("data_wait_s").sum())
    return (
        of_rank.group_by("block")
        .agg(
            pl.col("duration_s").max().alias("step_s"),
            (whole_samples / pl.col("duration_s").max()).alias("samples_per_s"),
            (whole_wait / pl.col("duration_s").sum()).alias("data_wait_share"),
        )
        .sort("block")
    )


def _phase(phase: PhaseRecord, steps: "polars.DataFrame") -> PhaseSummary:
    blocks = block_table(steps, phase.name)

    return PhaseSummary(
        name=phase.name,
        differs=phase.differs,
        steps=phase.steps,
        blocks=phase.blocks,
        step_s=_interval(blocks, "step_s"),
        samples_per_s=_interval(blocks, "samples_per_s"),
        data_wait_share=_interval(blocks, "data_wait_share"),
    )


def _interval(blocks: "polars.DataFrame", column: str) -> Interval | None:
    values = blocks.get_column(column)
    return median_of_block_means(values.to_list()) if len(values) and not values.null_count() else None
