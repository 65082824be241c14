"""A run as a trace for ui.perfetto.dev and chrome://tracing: slices of time on named tracks, written as JSON.

Every table with moments in it becomes slices, sorted by their begin; what the tables call seconds on a node's clock is
here nanoseconds on one axis (see `node_shifts`).
"""

import gzip
import heapq
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from stallwise.analysis.traces.import_ import FACTS, WORKED_OUT
from stallwise.errors import InputError
from stallwise.run import phases
from stallwise.run.manifest import Manifest
from stallwise.run.reader import Run

if TYPE_CHECKING:
    from stallwise.run.table import Table, TableColumn

_NS = 1e9
_MAX_NS = 4e18  # within 64 bits, also where two are subtracted

# CUDA events are read in milliseconds of single precision, each to half a microsecond; four of them meet where two
# spans do.
_EVENT_RESOLUTION_NS = 2_000

# In these phases all ranks exchange gradients with each other, so they end a step together.
_TOGETHER = (phases.AS_IS, phases.HOST, phases.DEVICE, phases.COLD, phases.TRACE)

_SPAN_TRACKS = {
    "copy": "copy",
    "forward": "forward",
    "backward": "backward",
    "layer": "layers",
    "collective": "collectives",
    "optimizer": "optimizer",
}
_FIRST_SPAN, _OTHER_SPANS, _EVENTS, _WORKERS = 10, 30, 50, 100


class Track(NamedTuple):
    """A row of the timeline within a rank; a lower `order` stands higher."""

    order: int
    name: str


PHASES, STEPS, DATA_WAIT = Track(0, "phases"), Track(1, "steps"), Track(2, "data wait")
EVENTS = Track(_EVENTS, "events")


class Slice(NamedTuple):
    """An interval on a track; an end of None means a moment."""

    start_ns: int
    end_ns: int | None
    rank: int
    track: Track
    name: str
    category: str
    args: dict[str, Any]

    @property
    def last_ns(self) -> int:
        """Its end; a moment ends where it begins."""
        return self.start_ns if self.end_ns is None else self.end_ns

    def order(self) -> tuple[int, int]:
        """Earlier first; of two that begin together the longer one, which then encloses the other."""
        return self.start_ns, -self.last_ns


@dataclass(frozen=True, slots=True)
class NodeShift:
    """What is added to a node's clock: `shift_s`, the median over `steps`; half of them lie within ± `spread_s`."""

    node: int
    shift_s: float
    spread_s: float | None
    steps: int


@dataclass(slots=True)
class Lanes:
    """Divides one track's slices into lanes in which each slice lies inside another or beside it, never across.

    Slices come in the order of `Slice.order`. A lane remembers the ends of the slices that are open, innermost last.
    Slices that cross by no more than `give_ns` are cut to fit instead of being sent to another lane.
    """

    give_ns: int = 0
    _open: list[list[int]] = field(default_factory=list)
    _begun: list[int] = field(default_factory=list)

    def place(self, start_ns: int, end_ns: int) -> tuple[int, int, int]:
        """The first lane with room, and the slice's begin and end there."""
        for number, ends in enumerate(self._open):
            # A slice inside one whose begin was cut begins no earlier than that.
            begin_ns = max(start_ns, self._begun[number])
            fitted = self._fitted(ends, begin_ns, max(begin_ns, end_ns))
            if fitted is not None:
                self._begun[number] = fitted[0]
                ends.append(fitted[1])
                return number, *fitted
        self._open.append([end_ns])
        self._begun.append(start_ns)
        return len(self._open) - 1, start_ns, end_ns

    def _fitted(self, ends: list[int], start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """Where the slice fits among the open slices of a lane (finished ones are dropped), or None."""
        left = len(ends)
        while left and ends[left - 1] <= start_ns:
            left -= 1
        while left and ends[left - 1] < end_ns:
            if end_ns - ends[left - 1] <= self.give_ns:
                end_ns = ends[left - 1]
            elif ends[left - 1] - start_ns <= self.give_ns:
                left -= 1
                start_ns = ends[left]
            else:
                return None
        del ends[left:]
        return start_ns, end_ns


def slices(run: Run, shifts: tuple[NodeShift, ...], ranks: tuple[int, ...]) -> Iterator[Slice]:
    """All slices of these ranks, in the order of `Slice.order`."""
    tables = {name: run.table(name) for name in ("steps", "batches", "events", "spans", "collectives")}
    # Phases that an import worked out took no time of their own, and its figures are no events.
    worked_out = [phase.name for phase in run.manifest.phases if phase.differs.startswith(WORKED_OUT)]
    tables["steps"] = tables["steps"].filter(~tables["steps"]["phase"].is_in(worked_out))
    tables["events"] = tables["events"].filter(~tables["events"]["kind"].starts_with(FACTS))
    nodes = {rank.rank: rank.node for rank in run.manifest.ranks}
    of_node = {shift.node: shift.shift_s for shift in shifts}
    by_rank = {rank: of_node.get(nodes.get(rank, 0), 0.0) for rank in ranks}
    chosen = {name: table.filter(table["rank"].is_in(ranks)) for name, table in tables.items()}
    earliest_s = min((_earliest_s(chosen[name], by_rank) for name in chosen if "start_s" in chosen[name]), default=0)
    back_s = min(0.0, earliest_s)  # viewers may not show times below zero
    moved = {
        name: _on_axis(table, {rank: shift_s - back_s for rank, shift_s in by_rank.items()})
        for name, table in chosen.items()
        if "start_s" in table
    }
    steps = _clipped(moved["steps"], chosen["collectives"])
    differs = {phase.name: phase.differs for phase in run.manifest.phases}
    return heapq.merge(
        _phases(steps, differs),
        _steps(steps),
        _data_waits(steps),
        _batches(moved["batches"]),
        _events(moved["events"]),
        _spans(moved["spans"]),
        key=Slice.order,
    )


def node_shifts(run: Run) -> tuple[NodeShift, ...]:
    """How far each node's clock has to be moved to lie on that of rank 0's node.

    Clocks of two machines do not begin together. Ranks that exchange gradients leave a step together, so per node and
    step the end of the last of its ranks is taken, over the steps in which all ranks exchange; a node's shift is the
    median over those steps of rank 0's node minus that node. It is as exact as ranks leave an exchange together.
    """
    nodes = {rank.rank: rank.node for rank in run.manifest.ranks}
    home = nodes.get(0, min(nodes.values(), default=0))
    others = sorted(set(nodes.values()) - {home})
    if not others:
        return (NodeShift(home, 0.0, None, 0),)
    ends = _step_ends(run.table("steps"), nodes)
    return (NodeShift(home, 0.0, None, 0), *(_shift(ends, home, node) for node in others))


def recorded_ranks(manifest: Manifest) -> tuple[int, ...]:
    """The ranks that left a record."""
    return tuple(rank.rank for rank in manifest.ranks)


def _step_ends(steps: "Table", nodes: dict[int, int]) -> dict[int, dict[int, float]]:
    """By node and step, when the last of the node's ranks ends it."""
    together = steps.filter(steps["phase"].is_in(_TOGETHER))
    chosen = together if together.height else steps
    groups = chosen.with_columns(end_s=chosen["start_s"].plus(chosen["duration_s"])).group_by("rank", "step")
    ends: dict[int, dict[int, float]] = {}
    for rank, step, end_s in groups.with_columns(end_s=groups.max("end_s")).rows():
        if rank in nodes and end_s is not None:
            of_node = ends.setdefault(nodes[rank], {})
            of_node[step] = max(end_s, of_node.get(step, end_s))
    return ends


def _shift(ends: dict[int, dict[int, float]], home: int, node: int) -> NodeShift:
    home_ends, node_ends = ends.get(home, {}), ends.get(node, {})
    apart_s = [end_s - node_ends[step] for step, end_s in home_ends.items() if step in node_ends]
    if not apart_s:
        return NodeShift(node, 0.0, None, 0)
    shift_s = statistics.median(apart_s)
    return NodeShift(node, shift_s, statistics.median(abs(s - shift_s) for s in apart_s), len(apart_s))


def _begins_s(table: "Table", shifts: dict[int, float]) -> "TableColumn":
    """`start_s` on the common axis."""
    from stallwise.run.table import TableColumn

    return table["start_s"].plus(TableColumn.of([shifts.get(rank, 0.0) for rank in table["rank"].to_list()], float))


def _earliest_s(table: "Table", shifts: dict[int, float]) -> float:
    return float(_begins_s(table, shifts).min() or 0.0)


def _on_axis(table: "Table", shifts: dict[int, float]) -> "Table":
    """Add `start_ns` and `end_ns` on the common axis, sort as slices are; drop rows without a start."""
    import numpy as np

    from stallwise.run.table import TableColumn

    placed = table.filter(~table["start_s"].null)
    begin_s, length_s = _begins_s(placed, shifts).values, placed["wall_s" if "wall_s" in placed else "duration_s"]
    # A duration that came out below zero (it comes from two clocks) is none.
    start_ns, end_ns = (
        np.clip(np.round(s * _NS), -_MAX_NS, _MAX_NS).astype(np.int64)
        for s in (begin_s, begin_s + np.maximum(length_s.values, 0.0))
    )
    moved = placed.with_columns(
        start_ns=TableColumn.whole(start_ns),
        end_ns=TableColumn(end_ns, length_s.null),
        late=TableColumn.whole(np.where(length_s.null, np.int64(_MAX_NS), -end_ns)),
    ).sort("start_ns", "late")
    return moved.select(*(name for name in moved.columns if name != "late"))


def _clipped(steps: "Table", collectives: "Table") -> "Table":
    """Steps that end where the next one begins (on a GPU begin and duration come from two clocks), with what they
    waited for the script's own collectives."""
    import numpy as np

    from stallwise.run.table import TableColumn

    calls = collectives.group_by("rank", "step")
    waits_s = {(rank, step): s for rank, step, s in calls.with_columns(s=calls.sum("waited_s")).rows()}
    ends_ns: list[int | None] = []
    following_ns: dict[int, int] = {}
    rows = list(steps.select("rank", "start_ns", "end_ns").rows())
    for rank, start_ns, end_ns in reversed(rows):
        candidates = [moment for moment in (end_ns, following_ns.get(rank)) if moment is not None]
        ends_ns.append(min(candidates, default=None))
        following_ns[rank] = start_ns
    waited_s = [waits_s.get(key) for key in steps.select("rank", "step").rows()]
    return steps.with_columns(
        measured_ns=steps["end_ns"].less(steps["start_ns"]),
        end_ns=TableColumn.of(ends_ns[::-1], np.int64),
        waited_s=TableColumn.of(waited_s, float),
    )


def _phases(steps: "Table", differs: dict[str, str]) -> list[Slice]:
    """One slice for each stretch of steps of a rank that are of one phase and block."""
    stretches: list[dict[str, Any]] = []
    latest: dict[int, dict[str, Any]] = {}
    for row in steps.select("rank", "phase", "block", "start_ns", "end_ns", "kept").dicts():
        stretch = latest.get(row["rank"])
        if stretch is None or (stretch["phase"], stretch["block"]) != (row["phase"], row["block"]):
            stretch = latest[row["rank"]] = {**row, "steps": 0, "kept": 0}
            stretches.append(stretch)
        stretch["end_ns"] = max(stretch["end_ns"], row["end_ns"])
        stretch["steps"] += 1
        stretch["kept"] += bool(row["kept"])
    return [_stretch(stretch, differs.get(stretch["phase"])) for stretch in stretches]


def _stretch(row: dict[str, Any], differs: str | None) -> Slice:
    args = {"block": row["block"], "steps": row["steps"], "kept": row["kept"]} | (
        {"differs": differs} if differs else {}
    )
    name = f"{row['phase']} · block {row['block']}"
    return Slice(row["start_ns"], row["end_ns"], row["rank"], PHASES, name, row["phase"], args)


def _steps(steps: "Table") -> Iterator[Slice]:
    waits = {"data_wait_ms": "data_wait_s", "own_collectives_ms": "waited_s"}
    for row in steps.dicts():
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        args = _present(row, "phase", "block", "kept", "samples", "tokens", **waits)
        if row["measured_ns"] > end_ns - start_ns:
            args["measured_ms"] = round(row["measured_ns"] / 1e6, 6)
        category = row["phase"] if row["kept"] else "not kept"
        yield Slice(start_ns, end_ns, row["rank"], STEPS, f"step {row['step']}", category, args)


def _data_waits(steps: "Table") -> Iterator[Slice]:
    """A step begins by asking for its batch; the waits of a step with several batches are drawn as one."""
    for row in steps.dicts():
        wait_s, start_ns = row["data_wait_s"], row["start_ns"]
        if wait_s:
            end_ns = min(row["end_ns"], start_ns + round(wait_s * _NS))
            yield Slice(start_ns, end_ns, row["rank"], DATA_WAIT, "wait for data", row["phase"], {"step": row["step"]})


def _batches(batches: "Table") -> Iterator[Slice]:
    times = {"cpu_ms": "cpu_s", "blocked_ms": "blocked_s", "runqueue_wait_ms": "runqueue_wait_s"}
    for row in batches.dicts():
        worker = row["worker"]
        track = Track(_WORKERS, "own loading") if worker is None else Track(_WORKERS + 1 + worker, f"worker {worker}")
        args = _present(row, "samples", "read_bytes", "phase", "block", **times)
        category = row["phase"] or "not kept"
        yield Slice(row["start_ns"], row["end_ns"], row["rank"], track, f"batch {row['batch']}", category, args)


def _events(events: "Table") -> Iterator[Slice]:
    for row in events.dicts():
        name = row["kind"].replace("_", " ")
        yield Slice(
            row["start_ns"], row["end_ns"], row["rank"], EVENTS, name, row["kind"], _present(row, "step", "detail")
        )


def _spans(spans: "Table") -> list[Slice]:
    """Spans cut to fit where the resolution of GPU events makes neighbours cross; then sorted again, as a cut moves
    a begin. They are of a few steps only, so a list does no harm."""
    lanes: dict[tuple[int, str], Lanes] = {}
    pieces = []
    for row in spans.dicts():
        _, start_ns, end_ns = lanes.setdefault((row["rank"], row["track"]), Lanes(_EVENT_RESOLUTION_NS)).place(
            row["start_ns"], row["end_ns"]
        )
        args, track = _present(row, "step", "bytes"), _span_track(row["track"])
        pieces.append(Slice(start_ns, end_ns, row["rank"], track, row["name"], row["track"], args))
    return sorted(pieces, key=Slice.order)


def _span_track(name: str) -> Track:
    """Known tracks in the order in which a step runs; traced steps and tracks of later recorders below them."""
    if name in _SPAN_TRACKS:
        return Track(_FIRST_SPAN + list(_SPAN_TRACKS).index(name), _SPAN_TRACKS[name])
    return Track(_OTHER_SPANS, f"traced {name}")


def _present(row: dict[str, Any], *names: str, **milliseconds: str) -> dict[str, Any]:
    """What of a row is not null; times, given as new name = column, in milliseconds, as viewers show them."""
    args = {name: row[name] for name in names if row[name] is not None}
    for name, column in milliseconds.items():
        if row[column] is not None:
            args[name] = round(row[column] * 1e3, 6)
    return args


# Names of chrome://tracing's palette. Perfetto picks colours itself, by name.
_COLOURS = {
    phases.WARMUP: "grey",
    phases.AS_IS: "thread_state_running",
    phases.HOST: "rail_response",
    phases.DEVICE: "rail_animation",
    phases.NODE: "thread_state_runnable",
    phases.ALONE: "thread_state_iowait",
    phases.COLD: "rail_load",
    phases.LAYERS: "rail_idle",
    phases.NOISE: "rail_idle",
    phases.TRACE: "thread_state_unknown",
    phases.OBSERVE: "thread_state_unknown",
    "not kept": "grey",
    "checkpoint": "bad",
    "validation": "olive",
}
# Perfetto takes process 0 for the idle one and a thread numbered like its process for its main one; it knows threads by
# number alone, and shows them in that order, where chrome://tracing goes by the sort index.
_FIRST_PROCESS, _THREADS_PER_RANK, _LANES = 1, 100_000, 100


@dataclass(frozen=True, slots=True)
class ExportedTrace:
    """A written trace: its file, the number of events, the ranks in it and how node clocks were shifted."""

    path: Path
    events: int
    ranks: tuple[int, ...]
    clocks: tuple[NodeShift, ...]


def export(run: Run, path: Path, ranks: tuple[int, ...] = ()) -> ExportedTrace:
    """Write the trace of `ranks` (all, where none is named) to `path`; a name that ends in .gz is compressed."""
    chosen = _chosen(run, ranks)
    shifts = node_shifts(run)
    events = 0
    with _opened(path) as out:
        out.write(b'{"displayTimeUnit":"ms","otherData":' + msgspec.json.encode(_about(run, shifts)))
        out.write(b',"traceEvents":[')
        for number, event in enumerate(trace_events(run, shifts, chosen)):
            out.write((b",\n" if number else b"\n") + msgspec.json.encode(event))
            events += event["ph"] != "M"
        out.write(b"\n]}\n")
    return ExportedTrace(path, events, chosen, shifts)


def trace_events(run: Run, shifts: tuple[NodeShift, ...], ranks: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Metadata and events: processes first, each thread just before its first event, events by their begin."""
    nodes = {rank.rank: rank.node for rank in run.manifest.ranks}
    many = run.manifest.world.nnodes > 1
    for rank in ranks:
        yield from _process(rank, f"rank {rank} · node {nodes.get(rank, 0)}" if many else f"rank {rank}")
    lanes: dict[tuple[int, Track], Lanes] = {}
    threads: dict[tuple[int, Track, int], int] = {}
    for piece in slices(run, shifts, ranks):
        lane, *_ = lanes.setdefault((piece.rank, piece.track), Lanes()).place(piece.start_ns, piece.last_ns)
        key = (piece.rank, piece.track, lane)
        if key not in threads:
            threads[key] = _thread_number(piece.rank, piece.track, lane, set(threads.values()))
            yield from _thread(piece.rank, threads[key], piece.track, lane)
        yield _event(piece, threads[key])


def _thread_number(rank: int, track: Track, lane: int, taken: set[int]) -> int:
    number = (rank + 1) * _THREADS_PER_RANK + track.order * _LANES + lane
    while number in taken:
        number += 1
    return number


def _event(piece: Slice, thread: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "name": piece.name,
        "cat": piece.category,
        "ph": "i" if piece.end_ns is None else "X",
        "ts": piece.start_ns / 1e3,
        "pid": piece.rank + _FIRST_PROCESS,
        "tid": thread,
        "args": piece.args,
    }
    if piece.end_ns is None:
        event["s"] = "t"
    else:
        event["dur"] = (piece.end_ns - piece.start_ns) / 1e3
    if piece.category in _COLOURS:
        event["cname"] = _COLOURS[piece.category]
    return event


def _process(rank: int, name: str) -> Iterator[dict[str, Any]]:
    for kind, args in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": rank})):
        yield {"name": kind, "ph": "M", "pid": rank + _FIRST_PROCESS, "tid": 0, "ts": 0, "args": args}


def _thread(rank: int, thread: int, track: Track, lane: int) -> Iterator[dict[str, Any]]:
    name = track.name if lane == 0 else f"{track.name} ({lane + 1})"
    order = {"sort_index": track.order * _LANES + lane}
    for kind, args in (("thread_name", {"name": name}), ("thread_sort_index", order)):
        yield {"name": kind, "ph": "M", "pid": rank + _FIRST_PROCESS, "tid": thread, "ts": 0, "args": args}


def _chosen(run: Run, ranks: tuple[int, ...]) -> tuple[int, ...]:
    recorded = recorded_ranks(run.manifest)
    unknown = sorted(set(ranks) - set(recorded))
    if unknown:
        present = f"{recorded[0]} to {recorded[-1]}" if recorded else "none"
        raise InputError(f"The run at {run.path} has no rank {unknown[0]}. It holds ranks {present}.")
    return tuple(sorted(set(ranks))) or recorded


def _about(run: Run, shifts: tuple[NodeShift, ...]) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "run_id": manifest.run_id,
        "script": manifest.job.script,
        "state": manifest.state,
        "stallwise_version": manifest.stallwise_version,
        "created": manifest.created,
        "clocks": shifts,
    }


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | BinaryIO]:
    """A file that gets its name only when it is complete."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                    yield packed
            else:
                yield raw
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"The trace cannot be written to {path} ({error.strerror}).", fields=("out",)) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
