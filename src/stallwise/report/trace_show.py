"""The terminal's view of an imported trace."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stallwise.record.trace_view import PathPart, StepTimes, Straggler, TraceView
from stallwise.report.terminal import table
from stallwise.report.text import show_percent, show_seconds

_GAP = (1, 0, 0, 0)
_MOST_RANKS = 16
_MOST_NAMES = 3
_NAME_LENGTH = 60
_UNKNOWN = "–"


def draw_trace(view: TraceView) -> RenderableType:
    """Split per rank, steps and stalls, critical path, stragglers, notes."""
    parts: list[RenderableType] = [Text(_title(view), style="bold"), *_apart([_split(view), _times(view)])]
    if view.path:
        parts += _apart([_path(view)])
    if view.stragglers:
        parts += _apart([_stragglers(view)])
    parts.append(Padding(Group("[bold]notes[/bold]", *(Text(f"- {note}") for note in view.notes)), _GAP, expand=False))
    return Group(*parts)


def _apart(parts: Iterable[RenderableType]) -> list[RenderableType]:
    return [Padding(part, _GAP, expand=False) for part in parts]


def _title(view: TraceView) -> str:
    ranks = f"{len(view.ranks)} of {view.world_size} ranks"
    return f"{view.source} · {ranks} · {view.kept} of {view.steps} steps kept"


def _split(view: TraceView) -> Table:
    """Times as HolisticTraceAnalysis defines them."""
    found = table(
        "rank",
        "kernel time",
        "compute",
        "communication",
        "copies",
        "idle",
        "compute %",
        "other %",
        "idle %",
        "overlapped",
        title="device, as HolisticTraceAnalysis splits it" + (" (all steps but the last)" if view.steps > 1 else ""),
    )
    for row in view.split[:_MOST_RANKS]:
        found.add_row(
            str(row.rank),
            *(
                show_seconds(us / 1e6)
                for us in (row.kernel_us, row.compute_us, row.communication_us, row.memory_us, row.idle_us)
            ),
            *(f"{share:.2f}" for share in (row.compute_pctg, row.non_compute_pctg, row.idle_pctg)),
            _UNKNOWN if row.overlap_pctg is None else f"{row.overlap_pctg:.2f} %",
        )
    if len(view.split) > _MOST_RANKS:
        found.add_row("…", f"{len(view.split) - _MOST_RANKS} more ranks with --json")
    return found


def _times(view: TraceView) -> Table:
    found = table(
        "rank",
        "steps",
        "step",
        "data-loader wait",
        "stall: data",
        "stall: copy",
        "stall: exchange",
        title="kept steps, means",
    )
    for row in view.times[:_MOST_RANKS]:
        found.add_row(str(row.rank), str(row.steps), show_seconds(row.step_s), *_stalls(row))
    return found


def _stalls(row: StepTimes) -> list[str]:
    values = (row.data_wait_s, row.data_stall_s, row.copy_stall_s, row.exchange_stall_s)
    return [_UNKNOWN if value is None else show_seconds(value) for value in values]


def _path(view: TraceView) -> Table:
    found = table("on", "time", "share", "longest", title="critical path over all ranks, kept steps")
    for part in view.path:
        found.add_row(part.on, show_seconds(part.s), show_percent(part.share), _longest(part))
    if len(view.path_ranks) > 1:
        most = sorted(view.path_ranks.items(), key=lambda item: -item[1])[:4]
        words = ", ".join(f"rank {rank} {show_percent(s / sum(view.path_ranks.values()))}" for rank, s in most)
        found.caption = f"runs over {words}"
    return found


def _longest(part: PathPart) -> str:
    names = list(part.names.items())[:_MOST_NAMES]
    return "\n".join(f"{show_seconds(s)} {_short(name)}" for name, s in names)


def _short(name: str) -> str:
    plain = name.replace("[", "\\[")
    return plain if len(plain) <= _NAME_LENGTH else plain[: _NAME_LENGTH - 1] + "…"


def _stragglers(view: TraceView) -> Table:
    found = table(
        "rank",
        "collectives",
        "came last",
        "held others up",
        "waited",
        "transfer",
        title="collectives that ranks share, kept steps",
    )
    for row in view.stragglers[:_MOST_RANKS]:
        found.add_row(*_straggler(row))
    return found


def _straggler(row: Straggler) -> list[str]:
    times = (row.held_up_s, row.waited_s, row.transfer_s)
    return [str(row.rank), str(row.collectives), str(row.came_last), *(show_seconds(value) for value in times)]
