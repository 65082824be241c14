"""An imported trace in the terminal, and the layer file made from it."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwise.analysis.traces.layers import layers_of
from stallwise.analysis.traces.view import RankStepTimes, Straggler, TraceView
from stallwise.errors import InputError
from stallwise.report.format import plural, show_percent, show_seconds
from stallwise.report.view import Notes, PartColumn, TablePart, View, number, table, view
from stallwise.run.atomic import write_atomically
from stallwise.run.reader import Run

_MAX_RANKS = 16
_MAX_NAMES = 3
_NAME_LENGTH = 60
_UNKNOWN = "–"


def draw_trace(trace: TraceView) -> View:
    """Split per rank, steps and stalls, critical path, stragglers, notes."""
    return view(
        _title(trace),
        _split(trace),
        _times(trace),
        _path(trace) if trace.path else None,
        _stragglers(trace) if trace.stragglers else None,
        Notes("notes", tuple(trace.notes)),
        rule=False,
    )


def _title(trace: TraceView) -> str:
    ranks = f"{len(trace.ranks)} of {plural(trace.world_size, 'rank')}"
    return f"{trace.source} · {ranks} · {trace.kept} of {plural(trace.steps, 'step')} kept"


def _split(trace: TraceView) -> TablePart:
    """Times as HolisticTraceAnalysis defines them."""
    rows = (
        (
            str(row.rank),
            *(
                show_seconds(us / 1e6)
                for us in (row.kernel_us, row.compute_us, row.communication_us, row.memory_us, row.idle_us)
            ),
            *(f"{share:.2f}" for share in (row.compute_pctg, row.non_compute_pctg, row.idle_pctg)),
            _UNKNOWN if row.overlap_pctg is None else f"{row.overlap_pctg:.2f} %",
        )
        for row in trace.split[:_MAX_RANKS]
    )
    names = (
        "kernel time", "compute", "communication", "copies", "idle", "compute %", "other %", "idle %", "overlapped",
    )  # fmt: skip
    title = "device, as HolisticTraceAnalysis splits it" + (" (all steps but the last)" if trace.steps > 1 else "")
    hidden = len(trace.split) - _MAX_RANKS
    note = f"{hidden} more ranks in the JSON document" if hidden > 0 else ""
    return table(("rank", *map(number, names)), rows, title, note, split=True)


def _times(trace: TraceView) -> TablePart:
    rows = (
        (str(row.rank), str(row.steps), show_seconds(row.step_s), *_stalls(row)) for row in trace.times[:_MAX_RANKS]
    )
    names = ("steps", "step", "data-loader wait", "stall: data", "stall: copy", "stall: exchange")
    return table(("rank", *map(number, names)), rows, "kept steps, means", split=True)


def _stalls(row: RankStepTimes) -> list[str]:
    values = (row.data_wait_s, row.data_stall_s, row.copy_stall_s, row.exchange_stall_s)
    return [_UNKNOWN if value is None else show_seconds(value) for value in values]


def _path(trace: TraceView) -> TablePart:
    rows: list[tuple[str, ...]] = []
    for part in trace.path:
        names = list(part.names.items())[:_MAX_NAMES] or [("", 0.0)]
        for place, (name, seconds) in enumerate(names):
            head = (part.on, show_seconds(part.s), show_percent(part.share)) if place == 0 else ("", "", "")
            rows.append((*head, show_seconds(seconds) if name else "", _short(name)))
    note = ""
    if len(trace.path_ranks) > 1:
        most = sorted(trace.path_ranks.items(), key=lambda item: -item[1])[:4]
        shares = ", ".join(f"rank {rank} {show_percent(s / sum(trace.path_ranks.values()))}" for rank, s in most)
        note = f"runs over {shares}"
    columns = ("on", number("time"), number("share"), number("longest"), PartColumn("", wrap=True))
    return table(columns, rows, "critical path over all ranks, kept steps", note)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"


def _stragglers(trace: TraceView) -> TablePart:
    names = ("collectives", "came last", "held others up", "waited", "transfer")
    rows = map(_straggler, trace.stragglers[:_MAX_RANKS])
    return table(("rank", *map(number, names)), rows, "collectives that ranks share, kept steps")


def _straggler(row: Straggler) -> list[str]:
    times = (row.held_up_s, row.waited_s, row.transfer_s)
    return [str(row.rank), str(row.collectives), str(row.came_last), *(show_seconds(value) for value in times)]


@dataclass(frozen=True, slots=True)
class WrittenLayers:
    """A written layer file: its path, the number of layers and the bytes of their gradients."""

    path: Path
    layers: int
    gradient_bytes: int


def export_layers(run: Run, path: Path) -> WrittenLayers:
    """Write the layer file of a run."""
    document = layers_of(run)
    text = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    try:
        if not path.parent.is_dir():
            raise FileNotFoundError(2, "No such file or directory")
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"The layers cannot be written to {path} ({error.strerror}).", fields=("out",)) from None
    return WrittenLayers(path, len(document.layers), sum(entry.gradient_bytes for entry in document.layers))
