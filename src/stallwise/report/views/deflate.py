"""A deflation: what a job would do with less, and what was done to one."""

import math
from collections.abc import Iterator
from datetime import datetime

from stallwise.deflate.act import DeflationResult
from stallwise.deflate.journal import DeflationRecord
from stallwise.deflate.response import Outlook
from stallwise.model.deflation import RESOURCES, UNNOTICED, DeflationCurve
from stallwise.report.format import plural, show_bounds, show_memory, show_number, show_percent, show_seconds
from stallwise.report.view import Cell, Line, Notes, Paragraph, Span, TablePart, View, facts, number, table, view

_WORDS = {"cpu": "cores", "memory": "memory", "bandwidth": "bandwidth", "gpu": "GPU share"}


def draw_outlook(outlook: Outlook) -> View:
    """The curves, then the requested deflation."""
    cores = f"{show_number(outlook.cores)} {'core' if outlook.cores == 1 else 'cores'} each"
    return view(
        f"{outlook.name}: deflated",
        facts(_summary(outlook)),
        _curves(outlook),
        facts(_requested(outlook)) if outlook.point is not None else None,
        Notes("assumed", tuple(outlook.assumptions)),
        aside=f"{plural(outlook.ranks, 'rank')}, {cores}",
    )


def _summary(outlook: Outlook) -> Iterator[tuple[str, Line]]:
    measured = "" if outlook.measured_s is None else f"; measured {show_seconds(outlook.measured_s)}"
    yield "as it is", f"model {show_seconds(outlook.step_s)} a step{measured}"
    yield from (("slack", _slack(outlook, curve)) for curve in outlook.curves)
    if outlook.unknown:
        yield "unknown", Span(", ".join(_WORDS[name] for name in outlook.unknown), "dim")


def _slack(outlook: Outlook, curve: DeflationCurve) -> str:
    kept = (
        f" ({show_number(curve.knee * outlook.cores)} of {show_number(outlook.cores)})"
        if curve.resource == "cpu"
        else ""
    )
    word = _WORDS[curve.resource]
    if curve.slack <= UNNOTICED:
        return f"{word}: none, every step waits for it"
    if curve.slack >= 1 - UNNOTICED:
        return f"{word}: not used, all of it can be taken"
    return f"{word}: {show_percent(curve.slack)} can be taken; below {show_percent(curve.knee)}{kept} steps slow down"


def _curves(outlook: Outlook) -> TablePart:
    columns = [number("kept")]
    for curve in outlook.curves:
        columns += [number(_WORDS[curve.resource]), number("speed")]
    rows = []
    for row in zip(*(zip(curve.points, curve.speed, strict=True) for curve in outlook.curves), strict=True):
        level = min(getattr(row[0][0].kept, name) for name in RESOURCES)
        cells: list[Cell | Line] = [show_percent(level)]
        for (point, speed), curve in zip(row, outlook.curves, strict=True):
            tone = "" if getattr(point.kept, curve.resource) >= curve.knee else "warn"
            cells += [Cell(_step(point.step_s), tone), Cell(show_percent(speed), tone)]
        rows.append(cells)
    return table(columns, rows, split=True)


def _step(step_s: float) -> str:
    return show_seconds(step_s) if math.isfinite(step_s) else "killed"


def _requested(outlook: Outlook) -> Iterator[tuple[str, Line]]:
    request = outlook.asked
    if request is None or outlook.point is None or outlook.speed is None:
        return
    kept = [
        f"{show_percent(getattr(request, name))} of its {_WORDS[name]}"
        for name in RESOURCES
        if getattr(request, name) < 1
    ]
    bounds = show_bounds(outlook.point.low_s, outlook.point.high_s)
    yield "with", ", ".join(kept) or "everything"
    yield "limited", f"{_step(outlook.point.step_s)} a step ({bounds}), {show_percent(outlook.speed)} of its speed"
    if outlook.cooperative is not None and outlook.cooperative_speed is not None:
        share = f"it takes {show_percent(outlook.parts[-1])} of its share of the batch"
        step = f"{_step(outlook.cooperative.step_s)} a step, {show_percent(outlook.cooperative_speed)}"
        yield "cooperative", f"{step}; {share}"
    if outlook.choice is not None and outlook.pressure is not None:
        yield "choice", Span(_choice(outlook), "strong")


def _choice(outlook: Outlook) -> str:
    choice, pressure = outlook.choice, outlook.pressure
    if choice is None or pressure is None:
        return ""
    lost = f"{show_seconds(choice.deflate_s)} of training lost against {show_seconds(choice.lose_s)} if a rank goes"
    if math.isinf(choice.break_even_s):
        until = "deflating is better however long it lasts"
    else:
        until = f"even at {show_seconds(choice.break_even_s)} of pressure"
    word = "deflate" if choice.deflate else "let a rank go"
    return f"{word}: over {show_seconds(pressure.lasts_s)}, {lost}; {until}"


def draw_done(done: DeflationResult) -> View:
    """What was taken from a process or control group, and how to undo it."""
    return view("", facts(_done(done)))


def _done(done: DeflationResult) -> Iterator[tuple[str, Line]]:
    yield "target", done.target
    if done.cores is not None and done.had_cores is not None:
        used = "" if done.busy_cores is None else f"; it used {show_number(done.busy_cores)}"
        yield "cores", f"{show_number(done.had_cores)} → {show_number(done.cores)}{used}"
    if done.memory_bytes is not None and done.had_memory_bytes is not None:
        yield "memory", f"{show_memory(done.had_memory_bytes)} → {show_memory(done.memory_bytes)}"
    if done.speed is not None:
        ranks = ", ".join(map(str, done.asked))
        yield "request", f"rank {ranks}: a smaller share of the global batch, for {show_percent(done.speed)} speed"
    elif done.not_asked:
        yield "no request", Span(done.not_asked, "dim")
    yield from (("held in", Span(group, "dim")) for group in done.groups)
    if done.until is not None:
        yield "until", _clock(done.until)
    yield "undo", Span(" ".join(["stallwise deflate", done.target, "--undo"]), "dim")


def _clock(moment: float) -> str:
    """Local time of day, with the date where it is not today."""
    local = datetime.fromtimestamp(moment).astimezone()
    today = local.date() == datetime.now(local.tzinfo).date()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M}"


def draw_list(records: tuple[DeflationRecord, ...]) -> View:
    """What is deflated now."""
    if not records:
        return view("", Paragraph("Nothing is deflated."))
    rows = (
        (
            one.target,
            "" if one.cores is None else show_number(one.cores),
            "" if one.memory_bytes is None else show_memory(one.memory_bytes),
            "" if one.speed is None else show_percent(one.speed),
            "" if one.until is None else _clock(one.until),
        )
        for one in records
    )
    columns = ("target", number("cores"), number("memory"), number("requested speed", 1), "until")
    return view("", table(columns, rows))
