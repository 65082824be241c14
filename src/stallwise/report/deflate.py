"""The terminal's view of a deflation: what a job would do with less, and what was done to one."""

import math
from datetime import datetime

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.deflate.act import Done
from stallwise.deflate.journal import Journal
from stallwise.deflate.response import Outlook
from stallwise.model.deflation import RESOURCES, UNNOTICED, Curve
from stallwise.report.card import WIDTH, labelled
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds
from stallwise.units import MIB

_WORDS = {"cpu": "cores", "memory": "memory", "bandwidth": "bandwidth", "gpu": "GPU share"}


def draw_outlook(found: Outlook) -> RenderableType:
    """The curves, then what was asked for."""
    rows = labelled()
    measured = "" if found.measured_s is None else f"; measured {show_seconds(found.measured_s)}"
    rows.add_row("as it is", Text(f"model {show_seconds(found.step_s)} a step{measured}"))
    for number, curve in enumerate(found.curves):
        rows.add_row("slack" if number == 0 else "", Text(_slack(found, curve)))
    if found.unknown:
        rows.add_row("unknown", Text(", ".join(_WORDS[name] for name in found.unknown), style="dim"))
    sections: list[RenderableType] = [_heading(found), rows, Text(), _curves(found)]
    if found.point is not None:
        sections += [Text(), _asked(found)]
    notes = labelled()
    for number, sentence in enumerate(found.assumptions):
        notes.add_row("assumed" if number == 0 else "", Text(sentence, style="dim"))
    return Constrain(Group(*sections, Text(), notes), WIDTH)


def _heading(found: Outlook) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    plural = ["s" if count != 1 else "" for count in (found.ranks, found.cores)]
    ranks = f"{found.ranks} rank{plural[0]}, {show_number(found.cores)} core{plural[1]} each"
    line.add_row(Text(f"{found.name}: deflated", style="bold"), Text(ranks, style="dim"))
    return Group(line, Rule(style="dim"))


def _slack(found: Outlook, curve: Curve) -> str:
    amount = (
        f" ({show_number(curve.knee * found.cores)} of {show_number(found.cores)})" if curve.resource == "cpu" else ""
    )
    word = _WORDS[curve.resource]
    if curve.slack <= UNNOTICED:
        return f"{word}: none, every step waits for it"
    return f"{word}: {show_percent(curve.slack)} can be taken, the knee is at {show_percent(curve.knee)}{amount}"


def _curves(found: Outlook) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("kept", justify="right")
    for curve in found.curves:
        table.add_column(_WORDS[curve.resource], justify="right")
        table.add_column("speed", justify="right")
    for row in zip(*(zip(curve.points, curve.speed, strict=True) for curve in found.curves), strict=True):
        level = min(getattr(row[0][0].kept, name) for name in RESOURCES)
        cells = []
        for (point, speed), curve in zip(row, found.curves, strict=True):
            kept = getattr(point.kept, curve.resource)
            style = "" if kept >= curve.knee else "yellow"
            cells += [Text(_step(point.step_s), style), Text(show_percent(speed), style)]
        table.add_row(show_percent(level), *cells)
    return table


def _step(step_s: float) -> str:
    return show_seconds(step_s) if math.isfinite(step_s) else "killed"


def _asked(found: Outlook) -> RenderableType:
    rows = labelled()
    if found.asked is None or found.point is None or found.speed is None:
        return rows
    kept = [
        f"{show_percent(getattr(found.asked, n))} of its {_WORDS[n]}" for n in RESOURCES if getattr(found.asked, n) < 1
    ]
    bounds = show_bounds(found.point.low_s, found.point.high_s)
    rows.add_row("with", Text(", ".join(kept) or "everything"))
    rows.add_row(
        "limited", Text(f"{_step(found.point.step_s)} a step ({bounds}), {show_percent(found.speed)} of its speed")
    )
    if found.cooperative is not None and found.cooperative_speed is not None:
        part = f"it takes {show_percent(found.parts[-1])} of its part of the batch"
        rows.add_row(
            "cooperative",
            Text(f"{_step(found.cooperative.step_s)} a step, {show_percent(found.cooperative_speed)}; {part}"),
        )
    if found.choice is not None and found.pressure is not None:
        rows.add_row("choice", Text(_choice(found), style="bold"))
    return rows


def _choice(found: Outlook) -> str:
    choice, pressure = found.choice, found.pressure
    if choice is None or pressure is None:
        return ""
    lost = f"{show_seconds(choice.deflate_s)} of training lost against {show_seconds(choice.lose_s)} if a rank goes"
    if math.isinf(choice.break_even_s):
        until = "deflating is better however long it lasts"
    else:
        until = f"even at {show_seconds(choice.break_even_s)} of pressure"
    word = "deflate" if choice.deflate else "let a rank go"
    return f"{word}: over {show_seconds(pressure.lasts_s)}, {lost}; {until}"


def draw_done(done: Done) -> RenderableType:
    """What was taken."""
    rows = labelled()
    rows.add_row("target", Text(done.target))
    if done.cores is not None and done.had_cores is not None:
        used = "" if done.busy_cores is None else f"; it used {show_number(done.busy_cores)}"
        rows.add_row("cores", Text(f"{show_number(done.had_cores)} → {show_number(done.cores)}{used}"))
    if done.memory_bytes is not None and done.had_memory_bytes is not None:
        sizes = f"{done.had_memory_bytes / MIB:,.0f} → {done.memory_bytes / MIB:,.0f} MiB"
        rows.add_row("memory", Text(sizes))
    if done.speed is not None:
        ranks = ", ".join(map(str, done.asked))
        rows.add_row(
            "asked", Text(f"rank {ranks}: a smaller part of the global batch, for {show_percent(done.speed)} speed")
        )
    elif done.not_asked:
        rows.add_row("not asked", Text(done.not_asked, style="dim"))
    for number, group in enumerate(done.groups):
        rows.add_row("held in" if number == 0 else "", Text(group, style="dim"))
    if done.until is not None:
        rows.add_row("until", Text(_clock(done.until)))
    rows.add_row("undo", Text(f"stallwise deflate {done.target} --undo", style="dim"))
    return Constrain(rows, WIDTH)


def _clock(moment: float) -> str:
    """By the clock on the wall; with the day where it is not within this one."""
    here = datetime.fromtimestamp(moment).astimezone()
    today = here.date() == datetime.now(here.tzinfo).date()
    return f"{here:%H:%M:%S}" if today else f"{here:%Y-%m-%d %H:%M}"


def draw_list(found: tuple[Journal, ...]) -> RenderableType:
    """What is deflated now."""
    if not found:
        return Text("Nothing is deflated.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("target", "cores", "memory", "speed asked", "until"):
        table.add_column(name)
    for one in found:
        memory = "" if one.memory_bytes is None else f"{one.memory_bytes / MIB:,.0f} MiB"
        table.add_row(
            one.target,
            "" if one.cores is None else show_number(one.cores),
            memory,
            "" if one.speed is None else show_percent(one.speed),
            "" if one.until is None else _clock(one.until),
        )
    return table
