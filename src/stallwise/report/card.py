"""The card: where the time of a job goes, on one screen of a terminal."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.record.profile import Profile
from stallwise.report.parts import (
    Part,
    RateRow,
    facts,
    lumped,
    parts_of,
    predicted,
    rate_rows,
    setting,
    show_rate_bounds,
    speeds,
    step_bounds,
    title,
)
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds

WIDTH = 100
_LABEL = 14  # the longest name and a gap: every section starts its second column here
_STYLES = {
    "compute": "green",
    "copy": "cyan",
    "interconnect": "magenta",
    "network": "blue",
    "prep": "yellow",
    "fetch": "red",
}


def draw(profile: Profile) -> RenderableType:
    """The card of a profile."""
    rows = labelled()
    for name, sentence in facts(profile):
        rows.add_row(name, Text(sentence))
    sections: list[RenderableType] = [
        _heading(profile),
        _headline(profile),
        Text(),
        _Bars(parts_of(profile), profile.step_s),
        *([Text(" " * _LABEL + "compute includes what was not measured", style="dim")] if lumped(profile) else ()),
        Text(),
        _rates(rate_rows(profile)),
        Text(),
        rows,
        _verdict(profile),
    ]
    if profile.notes:
        sections += [Text(), _notes(profile)]
    return Constrain(Group(*sections), WIDTH)


def labelled() -> Table:
    """Rows of a label and a text that wraps in its own column."""
    rows = Table.grid(padding=0)
    rows.add_column(style="dim", width=_LABEL, no_wrap=True)
    rows.add_column(overflow="fold")
    return rows


def _heading(profile: Profile) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    whole = profile.state == "complete"
    state = Text(profile.state, style="green" if whole else "bold yellow")
    line.add_row(Text(title(profile), style="bold"), Text.assemble((f"{setting(profile)} · ", "dim"), state))
    parts: list[RenderableType] = [line, Rule(style="dim")]
    if profile.partial_reason:
        parts += [Text(f"NOT WHOLE: {profile.partial_reason}", style="bold yellow"), Text()]
    return Group(*parts)


def _headline(profile: Profile) -> Text:
    return Text.assemble(
        ("step".ljust(_LABEL), "dim"),
        (show_seconds(profile.step_s), "bold"),
        (f"  ({step_bounds(profile)})", "dim"),
        "   ",
        (speeds(profile), "bold"),
    )


@dataclass(frozen=True)
class _Bars:
    """The split as stairs: each bar begins where the one above ends, and together they span the step."""

    parts: tuple[Part, ...]
    step_s: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = [part for part in self.parts if part.share is not None and part.words is None]
        seconds = {p.name: show_seconds(p.share.s) for p in drawn if p.share}
        percents = {p.name: show_percent(p.share.s / self.step_s) for p in drawn if p.share}
        bounds = {p.name: show_bounds(p.share.low_s, p.share.high_s) for p in drawn if p.share}
        widths = [max(map(len, column.values())) for column in (seconds, percents, bounds)]
        room = max(8, options.max_width - _LABEL - sum(widths) - 6)
        for part in self.parts:
            line = Text(part.name.ljust(_LABEL), no_wrap=True, end="\n")
            if part.words is not None:
                line.append(part.words, style="dim")
            else:
                line.append(self._bar(part, room), style=_STYLES[part.name])
                line.append(f"  {seconds[part.name]:>{widths[0]}}", style="bold")
                line.append(f"  {percents[part.name]:>{widths[1]}}")
                line.append(f"  {bounds[part.name]}", style="dim")
            yield line

    def _bar(self, part: Part, room: int) -> str:
        length_s = part.share.s if part.share else 0.0
        scale = room / self.step_s
        start = min(room - 1, round(part.start_s * scale))
        end = min(room, max(start + 1, round((part.start_s + length_s) * scale)))
        return (" " * start + "█" * (end - start)).ljust(room)


def _rates(rows: tuple[RateRow, ...]) -> Text:
    """One line per rate; the numbers of all rates under each other."""
    meanings = max(len(row.meaning) for row in rows)
    numbers = max((len(show_number(row.rate.samples_per_s)) for row in rows if row.rate), default=0)
    lines = [Text.assemble(("rates".ljust(_LABEL) + "what each stage could do alone, in samples/s", "dim"))]
    for row in rows:
        line = Text.assemble(row.name.ljust(_LABEL), (f"{row.meaning:<{meanings}}  ", "dim"))
        if row.rate is None:
            line.append(row.words, style="dim")
        else:
            line.append(f"{show_number(row.rate.samples_per_s):>{numbers}}", style="bold")
            line.append(f"  {show_rate_bounds(row.rate)}", style="dim")
        lines.append(line)
    return Text("\n").join(lines)


def _verdict(profile: Profile) -> RenderableType:
    verdict = profile.verdict
    rows = labelled()
    binds = (verdict.binds, f"bold {_STYLES.get(verdict.binds, 'yellow')}")
    rows.add_row("binds", Text.assemble(binds, f" · {verdict.sentence}"))
    rows.add_row("next", Text(verdict.next_step, style="bold"))
    gain = predicted(profile)
    if gain is not None:
        rows.add_row("predicted", Text(gain, style="italic"))
    return Group(Rule(style="dim"), rows)


def _notes(profile: Profile) -> Table:
    rows = labelled()
    for number, note in enumerate(profile.notes):
        rows.add_row("notes" if number == 0 else "", Text(note, style="dim"))
    return rows
