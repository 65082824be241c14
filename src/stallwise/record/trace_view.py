"""What an imported trace says, beyond a profile: the split per rank, the critical path, who holds the others up."""

import json
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwise.errors import InputError
from stallwise.record import plan
from stallwise.record.trace_run import ARRIVALS, CLOCK, LAUNCHER, PATH, SPLIT
from stallwise.record.trace_split import RankSplit
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One rank's kept steps, in seconds: means. `data_wait_s` is the loop's, `data_stall_s` the idle device's part."""

    rank: int
    steps: int
    step_s: float
    data_wait_s: float | None
    data_stall_s: float | None
    copy_stall_s: float | None
    exchange_stall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """One rank among those that share its collectives, in seconds over all kept steps."""

    rank: int
    collectives: int
    came_last: int
    waited_s: float
    held_up_s: float
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPart:
    """A kind of time on the critical path; `names` are its longest pieces."""

    on: str
    s: float
    share: float
    names: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How a rank's clock was put on that of the lowest rank."""

    rank: int
    shift_s: float
    spread_s: float | None
    collectives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceView:
    """What `stallwise trace show` says. The field names are the keys of its JSON."""

    source: str
    ranks: tuple[int, ...]
    world_size: int
    steps: int
    kept: int
    split: tuple[RankSplit, ...]
    times: tuple[StepTimes, ...]
    path: tuple[PathPart, ...]
    path_ranks: dict[int, float]
    """Seconds of the path on each rank."""
    stragglers: tuple[Straggler, ...]
    """The rank that holds the others up longest comes first."""
    clocks: tuple[Clock, ...]
    notes: tuple[str, ...]


def view_of(run: Run) -> TraceView:
    """The view of a run that was imported from a trace; an `InputError` for any other."""
    if run.manifest.job.launcher != LAUNCHER:
        raise _not_traced(run)
    events, steps = run.table("events"), run.table("steps")
    path, path_ranks = _path(run.table("spans"))
    world = run.manifest.world
    return TraceView(
        source=run.manifest.job.script,
        ranks=tuple(rank.rank for rank in run.manifest.ranks),
        world_size=world.world_size,
        steps=steps.get_column("step").n_unique(),
        kept=steps.filter("kept").get_column("step").n_unique(),
        split=tuple(RankSplit(**_named(RankSplit, facts)) for facts in _facts(events, SPLIT, run.path)),
        times=_times(steps),
        path=path,
        path_ranks=path_ranks,
        stragglers=_stragglers(_facts(events, ARRIVALS, run.path)),
        clocks=tuple(_clock(facts) for facts in _facts(events, CLOCK, run.path)),
        notes=run.manifest.notes + ((run.partial_reason,) if run.partial_reason else ()),
    )


def _not_traced(run: Run) -> InputError:
    from stallwise.record.layer_run import LAUNCHER as LAYER_FILE

    if run.manifest.job.launcher == LAYER_FILE:
        return InputError(
            f"The run at {run.path} was imported from a layer file: one step without ranks. Use stallwise report or "
            "whatif."
        )
    return InputError(
        f"The run at {run.path} was measured by Stallwise, not imported from a trace. Use stallwise report or show."
    )


def _facts(events: "polars.DataFrame", kind: str, path: Path) -> list[dict[str, Any]]:
    import polars as pl

    found = events.filter(pl.col("kind") == kind).sort("rank").get_column("detail").to_list()
    try:
        return [json.loads(text) for text in found]
    except (TypeError, ValueError):
        raise InputError(f"The run at {path} holds a damaged entry ({kind}). Import the trace again.") from None


def _named(kind: type, facts: dict[str, Any]) -> dict[str, Any]:
    return {field.name: facts[field.name] for field in fields(kind)}


def _stragglers(facts: list[dict[str, Any]]) -> tuple[Straggler, ...]:
    found = [
        Straggler(
            rank=row["rank"],
            collectives=row["collectives"],
            came_last=row["came_last"],
            waited_s=row["waited_ns"] / 1e9,
            held_up_s=row["held_up_ns"] / 1e9,
            transfer_s=row["transfer_ns"] / 1e9,
        )
        for row in facts
    ]
    return tuple(sorted(found, key=lambda row: (-row.held_up_s, row.rank)))


def _clock(facts: dict[str, Any]) -> Clock:
    spread = facts["spread_ns"]
    return Clock(
        rank=facts["rank"],
        shift_s=facts["shift_ns"] / 1e9,
        spread_s=None if spread is None else spread / 1e9,
        collectives=facts["collectives"],
    )


def _times(steps: "polars.DataFrame") -> tuple[StepTimes, ...]:
    import polars as pl

    kept = steps.filter("kept")
    means = kept.group_by("rank", "phase").agg(pl.col("duration_s").mean(), pl.col("data_wait_s").mean(), pl.len())
    by_rank: dict[int, dict[str, tuple[float, float | None, int]]] = defaultdict(dict)
    for rank, phase, duration_s, wait_s, count in means.iter_rows():
        by_rank[rank][phase] = (duration_s, wait_s, count)
    return tuple(_rank_times(rank, by_rank[rank]) for rank in sorted(by_rank) if plan.AS_IS in by_rank[rank])


def _rank_times(rank: int, phases: dict[str, tuple[float, float | None, int]]) -> StepTimes:
    """Differences along the ladder; None for what the trace does not have."""
    stalls: dict[str, float] = {}
    above = phases[plan.AS_IS][0]
    for phase in (plan.HOST, plan.DEVICE, plan.ALONE):
        if phase in phases:
            stalls[phase], above = above - phases[phase][0], phases[phase][0]
    return StepTimes(
        rank=rank,
        steps=phases[plan.AS_IS][2],
        step_s=phases[plan.AS_IS][0],
        data_wait_s=phases[plan.AS_IS][1],
        data_stall_s=stalls.get(plan.HOST),
        copy_stall_s=stalls.get(plan.DEVICE),
        exchange_stall_s=stalls.get(plan.ALONE),
    )


def _path(spans: "polars.DataFrame") -> tuple[tuple[PathPart, ...], dict[int, float]]:
    import polars as pl

    rows = spans.filter(pl.col("track") == PATH)
    whole_s = float(rows.get_column("duration_s").sum())
    if not whole_s:
        return (), {}
    names: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, seconds in rows.group_by("name").agg(pl.col("duration_s").sum()).iter_rows():
        kind, _, what = name.partition(": ")
        names[kind][what] += seconds
    parts = [
        PathPart(
            on=kind,
            s=sum(found.values()),
            share=sum(found.values()) / whole_s,
            names=dict(sorted(((n, s) for n, s in found.items() if n), key=lambda item: -item[1])[:_MOST_NAMES]),
        )
        for kind, found in names.items()
    ]
    ranks = dict(rows.group_by("rank").agg(pl.col("duration_s").sum()).sort("rank").iter_rows())
    return tuple(sorted(parts, key=lambda part: -part.s)), ranks
