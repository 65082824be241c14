"""Two runs side by side: what changed around the job, and what that did to its step time beyond noise."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stallwise.errors import RunError
from stallwise.model.intervals import Interval, combine, combine_relative
from stallwise.record.summary import PhaseSummary, RunSummary, summarise
from stallwise.run.manifest import NodeRecord
from stallwise.run.reader import Run

# The phase that is the user's own job; the others are ablations of it.
AS_IS = "as is"

Verdict = Literal["slower", "faster", "no difference", "unknown"]


@dataclass(frozen=True)
class Change:
    """One thing that is not the same; None where a run does not have it."""

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


@dataclass(frozen=True)
class FailOver:
    """The answer to `--fail-over`: is `phase` slower by more than `limit` (a fraction) beyond noise?"""

    limit: float
    phase: str
    exceeded: bool


@dataclass(frozen=True)
class Comparison:
    """What `stallwise compare` says. The field names are the keys of its JSON."""

    before: RunSummary
    after: RunSummary
    changes: tuple[Change, ...]
    phases: tuple[PhaseComparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    fail_over: FailOver | None


def compare(before: Run, after: Run, *, fail_over: float | None = None) -> Comparison:
    """Compare two runs phase by phase; `fail_over` is the tolerated slow-down as a fraction of the step."""
    first, second = summarise(before), summarise(after)
    others = {phase.name: phase for phase in second.phases}
    pairs = [(phase, others[phase.name]) for phase in first.phases if phase.name in others]
    phases = tuple(made for pair in pairs for made in _phase(*pair))
    common = {made.phase for made in phases}
    return Comparison(
        before=first,
        after=second,
        changes=changes(first, second),
        phases=phases,
        only_before=tuple(p.name for p in first.phases if p.name not in common),
        only_after=tuple(p.name for p in second.phases if p.name not in common),
        fail_over=None if fail_over is None else judge(phases, fail_over),
    )


def judge(phases: tuple[PhaseComparison, ...], limit: float) -> FailOver:
    """Whether the job got slower by more than `limit`: the lower end of the interval lies beyond it.

    The phase `as is` decides, or the first common one where a run has none by that name. What cannot be
    judged is an error, not a pass.
    """
    chosen = next((p for p in phases if p.phase == AS_IS), phases[0] if phases else None)
    if chosen is None:
        raise RunError("The two runs have no measured phase in common, so --fail-over cannot be judged.")
    if not chosen.relative.is_bounded:
        raise RunError(
            f"Phase {chosen.phase!r} has too few blocks to tell a difference from noise, so --fail-over "
            "cannot be judged. Record more steps."
        )
    return FailOver(limit=limit, phase=chosen.phase, exceeded=chosen.relative.low > limit)


def changes(before: RunSummary, after: RunSummary) -> tuple[Change, ...]:
    """What differs in job, world, machines and software, each named `group.key`."""
    first, second = _facts(before), _facts(after)
    keys = dict.fromkeys([*first, *second])
    return tuple(Change(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key))


def _phase(before: PhaseSummary, after: PhaseSummary) -> Iterator[PhaseComparison]:
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
    known = {
        "cpu": node.cpu_model,
        "cores": node.cores,
        "memory_bytes": node.memory_bytes,
        "gpus": ", ".join(node.gpus) or "none",
    }
    return {name: str(value) for name, value in known.items() if value is not None}


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
