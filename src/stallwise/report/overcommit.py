"""An overcommitted fleet in the terminal: a table per overcommitment, rule beside rule."""

from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from stallwise.cluster.deflation.overcommitment import Overcommitted, Row, verdict
from stallwise.report.terminal import table
from stallwise.report.text import show_percent

_WIDTH = 100
_LABEL = 14

# Heading, the figure, whether more is better, and what it says.
COLUMNS: tuple[tuple[str, Callable[[Row], float], bool, str], ...] = (
    ("failed", lambda row: row.figures.failure, False, "of all machines: refused, or preempted before their end"),
    ("refused", lambda row: row.figures.refused_on_demand, False, "of the machines on demand"),
    ("preempted", lambda row: row.figures.preempted_low, False, "of the machines of low priority"),
    ("loss", lambda row: row.figures.loss, False, "of the use low-priority machines wanted while they ran"),
    ("not served", lambda row: row.figures.unserved, False, "of all the use they wanted until their own end"),
    ("static", lambda row: row.increase("static"), True, "revenue of low priority per host at 0.2 of the price"),
    ("priority", lambda row: row.increase("priority"), True, "the same at their priority times the price"),
    ("allocation", lambda row: row.increase("allocation"), True, "the same at the price of what they hold"),
)


def draw(found: Overcommitted) -> RenderableType:
    """Everything, overcommitment by overcommitment."""
    parts: list[RenderableType] = [_heading(found), _facts(found)]
    for level in dict.fromkeys(row.overcommitment for row in found.rows):
        rows = [row for row in found.rows if row.overcommitment == level]
        parts += [Text(), Text(show_level(rows[0]), style="bold"), _figures(rows)]
    return Constrain(Group(*parts, Text(), _notes(found)), _WIDTH)


def show_level(row: Row) -> str:
    """61 % overcommitted: 27 hosts."""
    return f"{show_percent(row.overcommitment)} overcommitted: {row.hosts:,} host{'s' * (row.hosts != 1)}"


def _heading(found: Overcommitted) -> RenderableType:
    line = Table.grid(expand=True, padding=(0, 1))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(no_wrap=True, justify="right")
    how = found.format + (" · a partition per priority" if found.partitioned else "")
    line.add_row(Text(f"{found.source}: {found.machines:,} machines", style="bold"), Text(how, style="dim"))
    return Group(line, Rule(style="dim"))


def _facts(found: Overcommitted) -> Table:
    rows = _labelled()
    rows.add_row("hosts", f"{found.fleet}: {found.whole:,} hold everybody at full size")
    rows.add_row("low priority", f"{found.low:,} machines may be shrunk or preempted")
    said = verdict(found)
    if said:
        rows.add_row("answer", Text(said, style="bold"))
    return rows


def _figures(rows: list[Row]) -> Table:
    drawn = table("rule", *((heading, "right") for heading, *_ in COLUMNS))
    best = [(max if more else min)(value(row) for row in rows) for _, value, more, _ in COLUMNS]
    for row in rows:
        cells = [
            Text(show_percent(value(row)), style="bold green" if len(rows) > 1 and value(row) == top else "")
            for (_, value, _, _), top in zip(COLUMNS, best, strict=True)
        ]
        drawn.add_row(row.way, *cells)
    return drawn


def _notes(found: Overcommitted) -> Table:
    rows = _labelled()
    for number, sentence in enumerate([*found.notes, REVENUE]):
        rows.add_row("notes" if number == 0 else "", Text(sentence, style="dim"))
    return rows


REVENUE = (
    "Revenue (static, priority, allocation) is what low-priority machines bring per host, over what machines on demand "
    "bring per host of the whole fleet."
)


def _labelled() -> Table:
    rows = Table.grid(padding=0)
    rows.add_column(style="dim", width=_LABEL, no_wrap=True)
    rows.add_column(overflow="fold")
    return rows
