"""The terminal's view of one run and of two runs compared."""

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwise.model.intervals import Interval
from stallwise.record.comparison import Change, Comparison, FailOver, PhaseComparison
from stallwise.record.summary import PhaseSummary, RunSummary
from stallwise.report.terminal import table
from stallwise.report.text import show_memory, show_seconds
from stallwise.run.manifest import NodeRecord

UNKNOWN = "unknown"
_GAP = (1, 0, 0, 0)  # one empty line above
_VERDICT_STYLES = {"slower": "red", "faster": "green", "no difference": "default", "unknown": "yellow"}


def draw_run(run: RunSummary) -> RenderableType:
    """What was run, where, whether the record is whole, and the phases."""
    parts: list[RenderableType] = [_title(run), _facts(run)]
    parts.append(Padding(_phases(run.phases), _GAP, expand=False))
    if run.notes:
        parts.append(
            Padding(Group("[bold]notes[/bold]", *(Text(f"- {note}") for note in run.notes)), _GAP, expand=False)
        )
    return Group(*parts)


def draw_comparison(comparison: Comparison) -> RenderableType:
    """What changed, then each phase before and after."""
    before, after = comparison.before, comparison.after
    heading = table("", "run", "begun", "record", title="compared")
    for name, run in (("before", before), ("after", after)):
        heading.add_row(name, escape(str(run.path)), f"{run.created:%Y-%m-%d %H:%M} UTC", run.state)
    parts: list[RenderableType] = [heading, *_partial_warnings(before, after)]
    parts.append(Padding(_changes(comparison.changes), _GAP, expand=False))
    parts.append(Padding(_compared_phases(comparison), _GAP, expand=False))
    if comparison.fail_over:
        parts.append(Padding(_fail_over(comparison.fail_over), _GAP, expand=False))
    return Group(*parts)


def change_in_words(phase: PhaseComparison) -> str:
    """`slower by 12 % (9 to 15)`, `no difference beyond noise (within ±2 %)`, or that nobody can tell."""
    relative = phase.relative
    if phase.verdict == "unknown":
        return f"{_percent(relative.value, sign=True)} %, too few blocks to say if this is noise"
    if phase.verdict == "no difference":
        bound = max(abs(relative.low), abs(relative.high))
        return f"no difference beyond noise (within ±{_percent(bound)} %)"
    near, far = sorted((abs(relative.low), abs(relative.high)))
    return f"{phase.verdict} by {_percent(abs(relative.value))} % ({_percent(near)} to {_percent(far)})"


def _title(run: RunSummary) -> RenderableType:
    state = {"complete": "[green]complete[/green]"}.get(run.state, f"[yellow]{run.state}[/yellow]")
    made = f"{run.created:%Y-%m-%d %H:%M} UTC with Stallwise {escape(run.stallwise_version)}"
    lines = [f"[bold]run {escape(run.run_id)}[/bold]  {state}, begun {made}"]
    if run.partial_reason:
        lines.append(f"[yellow]Not whole: {escape(run.partial_reason)}[/yellow]")
    return "\n".join(lines)


def _facts(run: RunSummary) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("what", Text(" ".join([run.job.script, *run.job.arguments])))
    facts.add_row("how", Text(_launch(run)))
    for node in run.nodes or (None,):
        facts.add_row("where", Text(_node(node)))
    facts.add_row("software", Text(", ".join(f"{k} {v}" for k, v in run.software.items()) or UNKNOWN))
    facts.add_row("counted", Text(_counts(run)))
    return facts


def _launch(run: RunSummary) -> str:
    code = run.job.exit_code
    ended = "exit code unknown" if code is None else f"exit code {code}"
    world = f"{_plural(run.world.world_size, 'rank')} on {_plural(run.world.nnodes, 'node')}"
    return f"{run.job.launcher or 'launcher unknown'}, {world}, back end {run.world.backend or UNKNOWN}, {ended}"


def _node(node: NodeRecord | None) -> str:
    if node is None:
        return UNKNOWN
    cores = UNKNOWN if node.cores is None else str(node.cores)
    memory = UNKNOWN if node.memory_bytes is None else show_memory(node.memory_bytes)
    gpus = ", ".join(f"{node.gpus.count(name)} × {name}" for name in dict.fromkeys(node.gpus)) or "no GPU"
    host = f" ({node.host})" if node.host else ""
    return f"node {node.node}{host}: {gpus}; {node.cpu_model or 'CPU unknown'}, cores: {cores}, memory: {memory}"


def _counts(run: RunSummary) -> str:
    counts = run.counts
    samples = "samples unknown" if counts.samples is None else f"{counts.samples} samples"
    ranks = f"{counts.ranks_seen} of {counts.ranks_expected} ranks seen"
    return f"{_plural(counts.steps, 'step')}, {samples}, {ranks}"


def _phases(phases: tuple[PhaseSummary, ...]) -> RenderableType:
    if not phases:
        return "No steps were recorded."
    drawn = table(
        "phase", "what differs", ("steps", "right"), ("blocks", "right"), ("step", "right"), "95 % interval",
        ("samples/s", "right"), ("waiting for data", "right"),
    )  # fmt: skip
    drawn.columns[1].no_wrap = False
    for phase in phases:
        rate, wait = phase.samples_per_s, phase.data_wait_share
        drawn.add_row(
            escape(phase.name),
            escape(phase.differs),
            str(phase.steps),
            str(phase.blocks),
            show_seconds(phase.step_s.value) if phase.step_s else UNKNOWN,
            _bounds(phase.step_s),
            f"{rate.value:.4g}" if rate else UNKNOWN,
            f"{_percent(wait.value)} %" if wait else UNKNOWN,
        )
    return drawn


def _bounds(interval: Interval | None) -> str:
    if interval is None or not interval.is_bounded:
        return UNKNOWN
    return f"{show_seconds(interval.low)} to {show_seconds(interval.high)}"


def _partial_warnings(before: RunSummary, after: RunSummary) -> list[RenderableType]:
    return [
        Text(f"{name} is not whole: {run.partial_reason}", style="yellow")
        for name, run in (("before", before), ("after", after))
        if run.partial_reason
    ]


def _changes(changes: tuple[Change, ...]) -> RenderableType:
    if not changes:
        return "Job, machines and software are the same as far as recorded."
    drawn = table("changed", "before", "after")
    for column in drawn.columns:
        column.no_wrap = False
    for change in changes:
        absent = "-"
        drawn.add_row(escape(change.what), escape(change.before or absent), escape(change.after or absent))
    return drawn


def _compared_phases(comparison: Comparison) -> RenderableType:
    if not comparison.phases:
        return "The two runs have no measured phase in common."
    drawn = table("phase", ("before", "right"), ("after", "right"), "step time")
    for phase in comparison.phases:
        words = Text(change_in_words(phase), style=_VERDICT_STYLES[phase.verdict])
        drawn.add_row(escape(phase.phase), show_seconds(phase.before_s.value), show_seconds(phase.after_s.value), words)
    lines: list[RenderableType] = [drawn]
    for name, only in (("before", comparison.only_before), ("after", comparison.only_after)):
        if only:
            lines.append(Text(f"not measured in both, {name} only: {', '.join(only)}", style="dim"))
    return Group(*lines)


def _fail_over(fail_over: FailOver) -> Text:
    limit = f"{fail_over.limit * 100:g} %"
    if fail_over.exceeded:
        return Text(f"Fail: {fail_over.phase!r} is slower by more than {limit} beyond noise.", style="bold red")
    return Text(f"Pass: {fail_over.phase!r} is not slower by more than {limit} beyond noise.", style="green")


def _percent(fraction: float, *, sign: bool = False) -> str:
    value = fraction * 100
    digits = 0 if abs(value) >= 9.95 else 1 if abs(value) >= 0.95 else 2
    return f"{value:{'+' if sign else ''}.{digits}f}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
