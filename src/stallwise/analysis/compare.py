"""Runs summarised and two of them compared.

A summary says what was run, where, and the time of each phase with its interval. The job's time in a block is that of
its slowest rank: with gradient exchange all ranks take the same time, and without it the slowest is the one the others
would wait for. A comparison says what changed around the job, and what that did to its step time beyond noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stallwise.errors import MeasurementError
from stallwise.model.statistics.intervals import Interval, combine, combine_relative, positive_median
from stallwise.run.join import count, count_phases
from stallwise.run.manifest import CountsRecord, JobRecord, NodeRecord, PhaseRecord, State, WorldRecord
from stallwise.run.phases import AS_IS
from stallwise.run.reader import Run
from stallwise.sentences import Sentence

if TYPE_CHECKING:
    from stallwise.run.table import Table, TableColumn


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
    """The result of `stallwise report --detail`. The field names are the keys of its JSON."""

    path: Path
    run_id: str
    created: datetime
    schema_version: int
    stallwise_version: str
    state: State
    partial_reason: Sentence | None
    job: JobRecord
    world: WorldRecord
    nodes: tuple[NodeRecord, ...]
    software: dict[str, str]
    counts: CountsRecord
    phases: tuple[PhaseSummary, ...]
    notes: tuple[Sentence, ...]


def summarise(run: Run) -> RunSummary:
    """The summary of a run in any state; counts come from the tables, so they need no joining."""
    manifest = run.manifest
    steps = run.read("steps")
    return RunSummary(
        path=run.path,
        run_id=manifest.run_id,
        created=manifest.created,
        schema_version=manifest.schema_version,
        stallwise_version=manifest.stallwise_version,
        state=manifest.state,
        partial_reason=run.partial_reason,
        job=manifest.job,
        world=manifest.world,
        nodes=manifest.nodes,
        software=manifest.software,
        counts=count(steps.table, manifest.counts),
        phases=tuple(_phase(phase, steps.table) for phase in count_phases(steps.table, manifest.phases)),
        notes=tuple(dict.fromkeys([*manifest.notes, *steps.damage])),
    )


def block_table(steps: "Table", phase: str) -> "Table":
    """Per block of a phase: `step_s` of the slowest rank, `samples_per_s` of all ranks, `data_wait_share`.

    1. per rank and block, the mean over kept steps of duration, samples and waiting;
    2. per block, the longest mean duration; samples of all ranks in a step over that; waiting of all over
       their time. A column is null where a rank did not record it: a sum without it would be too small.
    """
    kept = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phase))
    by_rank = kept.group_by("block", "rank")
    of_rank = by_rank.with_columns(
        duration_s=by_rank.mean("duration_s"),
        samples=_only(by_rank.mean("samples"), by_rank.null_count("samples")),
        data_wait_s=_only(by_rank.mean("data_wait_s"), by_rank.null_count("data_wait_s")),
    )
    blocks = of_rank.group_by("block")
    step_s, rank_s = blocks.max("duration_s"), blocks.sum("duration_s")
    samples = _only(blocks.sum("samples"), blocks.null_count("samples"))
    wait_s = _only(blocks.sum("data_wait_s"), blocks.null_count("data_wait_s"))
    return blocks.with_columns(
        step_s=step_s, samples_per_s=samples.over(step_s), data_wait_share=wait_s.over(rank_s)
    ).sort("block")


def _only(values: "TableColumn", nulls: "TableColumn") -> "TableColumn":
    """Null out the groups that had a null value."""
    return replace(values, null=values.null | (nulls.values > 0))


def _phase(phase: PhaseRecord, steps: "Table") -> PhaseSummary:
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


def _interval(blocks: "Table", column: str) -> Interval | None:
    values = blocks[column]
    if not len(values) or values.null_count or not all(map(math.isfinite, values.to_list())):
        return None  # the last: a rate over a time of 0
    return positive_median(values.to_list())


Verdict = Literal["slower", "faster", "no difference", "unknown"]


@dataclass(frozen=True)
class RunDifference:
    """One setting that differs between two runs; None where a run does not have it."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PhaseComparison:
    """One phase in both runs. `difference_s` and `relative` are after minus before: positive means slower."""

    phase: str
    before_s: Interval
    after_s: Interval
    difference_s: Interval
    relative: Interval
    verdict: Verdict


SlowdownVerdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Slowdown:
    """Whether `phase` is slower by more than `limit` (a fraction of the step), or that the noise hides it."""

    limit: float
    phase: str
    relative: Interval
    verdict: SlowdownVerdict


@dataclass(frozen=True)
class Comparison:
    """The result of `stallwise compare`. The field names are the keys of its JSON."""

    before: RunSummary
    after: RunSummary
    changes: tuple[RunDifference, ...]
    phases: tuple[PhaseComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    slowdown: Slowdown | None


def compare(before: Run, after: Run, *, fail_if_slower: float | None = None) -> Comparison:
    """Compare two runs phase by phase; `fail_if_slower` is the tolerated slow-down as a fraction of the step."""
    first, second = summarise(before), summarise(after)
    others = {phase.name: phase for phase in second.phases}
    pairs = [(phase, others[phase.name]) for phase in first.phases if phase.name in others]
    phases = tuple(comparison for pair in pairs for comparison in _compared_phase(*pair))
    common = {comparison.phase for comparison in phases}
    alone_before, alone_after = (
        tuple(p.name for p in one.phases if p.step_s is not None and p.name not in common) for one in (first, second)
    )
    return Comparison(
        before=first,
        after=second,
        changes=changes(first, second),
        phases=phases,
        only_before=alone_before,
        only_after=alone_after,
        slowdown=None if fail_if_slower is None else judge_slowdown(phases, fail_if_slower),
    )


def judge_slowdown(phases: tuple[PhaseComparison, ...], limit: float) -> Slowdown:
    """Whether the job got slower by more than `limit`: yes where the whole interval lies beyond it, no where none does.

    The phase `as is` decides, or the first common one where a run has none by that name. What cannot be
    judged is an error or inconclusive, never a pass.
    """
    chosen = next((p for p in phases if p.phase == AS_IS), phases[0] if phases else None)
    if chosen is None:
        raise MeasurementError("The two runs have no measured phase in common, so a slow-down cannot be judged.")
    relative = chosen.relative
    if not relative.is_bounded:
        raise MeasurementError(
            f"Phase {chosen.phase!r} has too few blocks to tell a difference from noise, so a slow-down cannot be "
            "judged. Record more steps."
        )
    verdict: SlowdownVerdict = "fail" if relative.low > limit else "pass" if relative.high <= limit else "inconclusive"
    return Slowdown(limit=limit, phase=chosen.phase, relative=relative, verdict=verdict)


def changes(before: RunSummary, after: RunSummary) -> tuple[RunDifference, ...]:
    """What differs in job, world, machines and software, each named `group.key`."""
    first, second = _facts(before), _facts(after)
    keys = dict.fromkeys([*first, *second])
    return tuple(
        RunDifference(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)
    )


def _compared_phase(before: PhaseSummary, after: PhaseSummary) -> Iterator[PhaseComparison]:
    """The comparison of one phase, or nothing where a run kept no step of it."""
    first, second = before.step_s, after.step_s
    if first is None or second is None or first.value <= 0 or second.value <= 0:
        return
    relative = combine_relative(first, second)
    yield PhaseComparison(
        phase=before.name,
        before_s=first,
        after_s=second,
        difference_s=combine(first, second),
        relative=relative,
        verdict=_verdict(relative),
    )


def _verdict(relative: Interval) -> Verdict:
    if not relative.is_bounded:
        return "unknown"
    if not relative.excludes(0.0):
        return "no difference"
    return "slower" if relative.value > 0 else "faster"


def _facts(run: RunSummary) -> dict[str, str]:
    """Everything that may explain a difference, as plain text under stable names."""
    facts = {"job.script": run.job.script, "world.world_size": str(run.world.world_size)}
    facts |= {"world.nnodes": str(run.world.nnodes), "world.backend": run.world.backend or "unknown"}
    facts |= {f"argument.{name}": value for name, value in _options(run.job.arguments).items()}
    facts |= {f"environment.{name}": value for name, value in run.job.environment.items()}
    for node in run.nodes:
        facts |= {f"node {node.node}.{name}": text for name, text in _node_facts(node).items()}
    return facts | {f"software.{name}": version for name, version in run.software.items()}


def _node_facts(node: NodeRecord) -> dict[str, str]:
    facts = {
        "cpu": node.cpu_model,
        "cores": node.cores,
        "memory_bytes": node.memory_bytes,
        "gpus": ", ".join(node.gpus) or "none",
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _options(arguments: tuple[str, ...]) -> dict[str, str]:
    """Arguments by option, so that one changed value is one change: `--lr 0.1`, `--lr=0.1`, `lr=0.1`."""
    options: dict[str, list[str]] = {}
    name = "positional"
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key.replace("-", "").replace("_", "").replace(".", "").isalnum():
            options.setdefault(key, []).append(value)
            name = "positional"
        elif argument.startswith("-") and not _is_number(argument):
            name = argument
            options.setdefault(name, [])
        else:
            options.setdefault(name, []).append(argument)
    return {key: " ".join(values) or "given" for key, values in options.items()}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
