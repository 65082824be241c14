"""One run, and two runs compared: their views, and JSON."""

from collections.abc import Iterator

from stallwise.analysis.compare import Comparison, PhaseComparison, PhaseSummary, RunDifference, RunSummary, Slowdown
from stallwise.model.statistics.intervals import Interval
from stallwise.report.format import (
    plural,
    show_bounds,
    show_count,
    show_memory,
    show_number,
    show_percent,
    show_percent_bounds,
    show_seconds,
    show_signed_percent,
)
from stallwise.report.view import (
    Cell,
    Line,
    Notes,
    Paragraph,
    Part,
    PartColumn,
    Row,
    Span,
    TablePart,
    View,
    facts,
    number,
    table,
    view,
)
from stallwise.run.manifest import NodeRecord

UNKNOWN = "unknown"
_VERDICT_TONES = {"slower": "bad", "faster": "good", "no difference": "", "unknown": "warn"}


def draw_run(run: RunSummary) -> View:
    """What was run, where, whether the record is whole, and the phases."""
    state = Span(run.state, "good" if run.state == "complete" else "alarm")
    return View(
        f"run {run.run_id}",
        (Span(f"begun {run.created:%Y-%m-%d %H:%M} UTC with Stallwise {run.stallwise_version} · ", "dim"), state),
        (facts(_facts(run)), *_phases(run.phases), Notes("notes", tuple(run.notes))),
        warning=f"Partial run: {run.partial_reason}" if run.partial_reason else "",
    )


def _facts(run: RunSummary) -> Iterator[tuple[str, Line]]:
    yield "what", " ".join([run.job.script, *run.job.arguments])
    yield "how", _launch(run)
    for node in run.nodes or (None,):
        yield "where", _node(node)
    yield "software", ", ".join(f"{k} {v}" for k, v in run.software.items()) or UNKNOWN
    yield "counted", _counts(run)


def _launch(run: RunSummary) -> str:
    code = run.job.exit_code
    ended = "exit code unknown" if code is None else f"exit code {code}"
    world = f"{plural(run.world.world_size, 'rank')} on {plural(run.world.nnodes, 'node')}"
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
    samples = "samples unknown" if counts.samples is None else f"{show_count(counts.samples)} samples"
    ranks = f"{counts.ranks_seen} of {counts.ranks_expected} ranks seen"
    return f"{plural(counts.steps, 'step')}, {samples}, {ranks}"


def _phases(phases: tuple[PhaseSummary, ...]) -> Iterator[Part]:
    """The phases that have steps; what each of them leaves out stands below."""
    measured = [phase for phase in phases if phase.steps]
    if not measured:
        yield Paragraph("No steps were recorded.")
        return
    columns = (
        "phase",
        number("steps", 2),
        number("blocks", 3),
        number("step"),
        PartColumn("95 % interval"),
        number("samples/s", 1),
        number("waits for data", 4),
    )
    yield table(columns, map(_phase, measured))
    yield facts(
        ((phase.name, phase.differs) for phase in measured), "what differs from the job as it is", label_width=_PHASE
    )


_PHASE = 18  # the longest name of a phase and a gap


def _phase(phase: PhaseSummary) -> tuple[Cell | Line, ...]:
    rate, wait = phase.samples_per_s, phase.data_wait_share
    return (
        phase.name,
        f"{phase.steps:,}",
        f"{phase.blocks:,}",
        show_seconds(phase.step_s.value) if phase.step_s else UNKNOWN,
        Cell(_bounds(phase.step_s), "dim"),
        show_number(rate.value) if rate else UNKNOWN,
        show_percent(wait.value) if wait else UNKNOWN,
    )


def _bounds(interval: Interval | None) -> str:
    return UNKNOWN if interval is None or not interval.is_bounded else show_bounds(interval.low, interval.high)


def draw_comparison(comparison: Comparison) -> View:
    """What changed, then each phase before and after."""
    before, after = comparison.before, comparison.after
    runs = (
        (name, str(run.path), f"{run.created:%Y-%m-%d %H:%M} UTC", run.state)
        for name, run in (("before", before), ("after", after))
    )
    columns = ("", PartColumn("run", wrap=True), PartColumn("begun", priority=1), "record")
    return view(
        "",
        table(columns, runs, "compared"),
        *_partial_warnings(before, after),
        _changes(comparison.changes),
        *_compared_phases(comparison),
        _slowdown(comparison.slowdown) if comparison.slowdown else None,
    )


def _partial_warnings(before: RunSummary, after: RunSummary) -> Iterator[Paragraph]:
    for name, run in (("before", before), ("after", after)):
        if run.partial_reason:
            yield Paragraph(f"{name} is a partial run: {run.partial_reason}", "warn")


def _changes(changes: tuple[RunDifference, ...]) -> Part:
    if not changes:
        return Paragraph("Job, machines and software are the same as far as recorded.")
    columns = ("changed", PartColumn("before", wrap=True), PartColumn("after", wrap=True))
    return table(columns, ((change.what, change.before or "-", change.after or "-") for change in changes))


def _compared_phases(comparison: Comparison) -> Iterator[TablePart | Paragraph]:
    if not comparison.phases:
        yield Paragraph("The two runs have no measured phase in common.")
        return
    rows = (
        Row(
            (
                phase.phase,
                show_seconds(phase.before_s.value),
                show_seconds(phase.after_s.value),
                Cell(change_in_words(phase), _VERDICT_TONES[phase.verdict]),
            )
        )
        for phase in comparison.phases
    )
    yield table(("phase", number("before"), number("after"), PartColumn("step time", wrap=True)), rows)
    for name, only in (("before", comparison.only_before), ("after", comparison.only_after)):
        if only:
            yield Paragraph(f"not measured in both, {name} only: {', '.join(only)}", "dim")


def change_in_words(phase: PhaseComparison) -> str:
    """`slower by 12 % (9 to 15 %)`, `no difference beyond noise (within ±2 %)`, or that it cannot be told."""
    relative = phase.relative
    if phase.verdict == "unknown":
        return f"{show_signed_percent(relative.value)}, too few blocks to say if this is noise"
    if phase.verdict == "no difference":
        return f"no difference beyond noise (within ±{show_percent(max(abs(relative.low), abs(relative.high)))})"
    near, far = sorted((abs(relative.low), abs(relative.high)))
    return f"{phase.verdict} by {show_percent(abs(relative.value))} ({show_percent_bounds(near, far)})"


def _slowdown(slowdown: Slowdown) -> Paragraph:
    limit, phase = show_percent(slowdown.limit), repr(slowdown.phase)
    if slowdown.verdict == "fail":
        return Paragraph(f"FAIL: {phase} is slower by more than {limit}, beyond noise.", "bad")
    if slowdown.verdict == "pass":
        return Paragraph(f"PASS: {phase} is not slower by more than {limit}, noise included.", "good")
    low, high = (show_signed_percent(value) for value in (slowdown.relative.low, slowdown.relative.high))
    return Paragraph(
        f"INCONCLUSIVE: {phase} changed by {low} to {high}, which does not tell whether it is slower by more than "
        f"{limit}. Profile both runs longer, on a quiet machine.",
        "warn",
    )
