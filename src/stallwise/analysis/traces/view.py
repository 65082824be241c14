"""What an imported trace says, beyond a profile: the split per rank, the critical path, who holds the others up."""

import json
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwise.analysis.traces._steps import RankSplit
from stallwise.analysis.traces.import_ import ARRIVALS, CLOCK, LAUNCHER, PATH, SPLIT
from stallwise.errors import InputError
from stallwise.run import phases
from stallwise.run.reader import Run
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.run.table import Table

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepTimes:
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
class ClockAlignment:
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
    times: tuple[RankStepTimes, ...]
    path: tuple[PathPart, ...]
    path_ranks: dict[int, float]
    """Seconds of the path on each rank."""
    stragglers: tuple[Straggler, ...]
    """The rank that holds the others up longest comes first."""
    clocks: tuple[ClockAlignment, ...]
    notes: tuple[Sentence, ...]


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
        steps=steps["step"].n_unique(),
        kept=steps.filter(steps["kept"].is_true())["step"].n_unique(),
        split=tuple(RankSplit(**_named(RankSplit, facts)) for facts in _facts(events, SPLIT, run.path)),
        times=_times(steps),
        path=path,
        path_ranks=path_ranks,
        stragglers=_stragglers(_facts(events, ARRIVALS, run.path)),
        clocks=tuple(_clock(facts) for facts in _facts(events, CLOCK, run.path)),
        notes=run.manifest.notes + ((run.partial_reason,) if run.partial_reason else ()),
    )


def _not_traced(run: Run) -> InputError:
    from stallwise.analysis.traces.layers import LAUNCHER as LAYER_FILE

    if run.manifest.job.launcher == LAYER_FILE:
        return InputError(
            f"The run at {run.path} was imported from a layer file: one step without ranks. Use stallwise report or "
            "whatif."
        )
    return InputError(
        f"The run at {run.path} was measured by Stallwise, not imported from a trace. Use stallwise report."
    )


def _facts(events: "Table", kind: str, path: Path) -> list[dict[str, Any]]:
    details = events.filter(events["kind"].equals(kind)).sort("rank")["detail"].to_list()
    try:
        return [json.loads(text) for text in details]
    except (TypeError, ValueError):
        raise InputError(f"The run at {path} holds a damaged entry ({kind}). Import the trace again.") from None


def _named(kind: type, facts: dict[str, Any]) -> dict[str, Any]:
    return {field.name: facts[field.name] for field in fields(kind)}


def _stragglers(facts: list[dict[str, Any]]) -> tuple[Straggler, ...]:
    stragglers = [
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
    return tuple(sorted(stragglers, key=lambda row: (-row.held_up_s, row.rank)))


def _clock(facts: dict[str, Any]) -> ClockAlignment:
    spread = facts["spread_ns"]
    return ClockAlignment(
        rank=facts["rank"],
        shift_s=facts["shift_ns"] / 1e9,
        spread_s=None if spread is None else spread / 1e9,
        collectives=facts["collectives"],
    )


def _times(steps: "Table") -> tuple[RankStepTimes, ...]:
    groups = steps.filter(steps["kept"].is_true()).group_by("rank", "phase")
    means = groups.with_columns(
        duration_s=groups.mean("duration_s"), data_wait_s=groups.mean("data_wait_s"), steps=groups.size()
    )
    by_rank: dict[int, dict[str, tuple[float, float | None, int]]] = defaultdict(dict)
    for rank, phase, duration_s, wait_s, count in means.rows():
        by_rank[rank][phase] = (duration_s, wait_s, count)
    return tuple(_rank_times(rank, by_rank[rank]) for rank in sorted(by_rank) if phases.AS_IS in by_rank[rank])


def _rank_times(rank: int, times: dict[str, tuple[float, float | None, int]]) -> RankStepTimes:
    """Differences along the ladder; None for what the trace does not have."""
    stalls: dict[str, float] = {}
    above = times[phases.AS_IS][0]
    for phase in (phases.HOST, phases.DEVICE, phases.ALONE):
        if phase in times:
            stalls[phase], above = above - times[phase][0], times[phase][0]
    return RankStepTimes(
        rank=rank,
        steps=times[phases.AS_IS][2],
        step_s=times[phases.AS_IS][0],
        data_wait_s=times[phases.AS_IS][1],
        data_stall_s=stalls.get(phases.HOST),
        copy_stall_s=stalls.get(phases.DEVICE),
        exchange_stall_s=stalls.get(phases.ALONE),
    )


def _path(spans: "Table") -> tuple[tuple[PathPart, ...], dict[int, float]]:
    rows = spans.filter(spans["track"].equals(PATH))
    whole_s: float = rows["duration_s"].sum()
    if not whole_s:
        return (), {}
    names: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_name, by_rank = rows.group_by("name"), rows.group_by("rank")
    for name, seconds in by_name.with_columns(s=by_name.sum("duration_s")).rows():
        kind, _, what = name.partition(": ")
        names[kind][what] += seconds
    parts = [
        PathPart(
            on=kind,
            s=sum(seconds_by_name.values()),
            share=sum(seconds_by_name.values()) / whole_s,
            names=dict(
                sorted(((n, s) for n, s in seconds_by_name.items() if n), key=lambda item: -item[1])[:_MOST_NAMES]
            ),
        )
        for kind, seconds_by_name in names.items()
    ]
    ranks = dict(by_rank.with_columns(s=by_rank.sum("duration_s")).sort("rank").rows())
    return tuple(sorted(parts, key=lambda part: -part.s)), ranks
