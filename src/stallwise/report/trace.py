"""A run as a Trace Event Format file, which ui.perfetto.dev and chrome://tracing open.

The format: docs.google.com, "Trace Event Format" (Chromium). A rank is a process, a track a thread, a slice a complete
event (`X`), a moment an instant event (`i`). Times are microseconds with three decimals, so nothing below a nanosecond
is lost. Events are written as they come, one a line, so memory holds the tables and never the file.
"""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stallwise.errors import InputError
from stallwise.record import plan
from stallwise.report.timeline import Lanes, NodeShift, Slice, Track, known_ranks, node_shifts, slices
from stallwise.run.reader import Run

# Names of chrome://tracing's palette. Perfetto picks colours itself, by name.
_COLOURS = {
    plan.WARMUP: "grey",
    plan.AS_IS: "thread_state_running",
    plan.HOST: "rail_response",
    plan.DEVICE: "rail_animation",
    plan.NODE: "thread_state_runnable",
    plan.ALONE: "thread_state_iowait",
    plan.COLD: "rail_load",
    plan.LAYERS: "rail_idle",
    plan.TRACE: "thread_state_unknown",
    "not kept": "grey",
    "checkpoint": "bad",
    "validation": "olive",
}
# Perfetto takes process 0 for the idle one and a thread numbered like its process for its main one; it knows threads by
# number alone, and shows them in that order, where chrome://tracing goes by the sort index.
_FIRST_PROCESS, _THREADS_PER_RANK, _LANES = 1, 100_000, 100


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    path: Path
    events: int
    ranks: tuple[int, ...]
    clocks: tuple[NodeShift, ...]


def export(run: Run, path: Path, ranks: tuple[int, ...] = ()) -> Exported:
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
    return Exported(path, events, chosen, shifts)


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
    known = known_ranks(run.manifest)
    unknown = sorted(set(ranks) - set(known))
    if unknown:
        held = f"{known[0]} to {known[-1]}" if known else "none"
        raise InputError(f"The run at {run.path} has no rank {unknown[0]}. It holds ranks {held}.")
    return tuple(sorted(set(ranks))) or known


def _about(run: Run, shifts: tuple[NodeShift, ...]) -> dict[str, Any]:
    known = run.manifest
    return {
        "run_id": known.run_id,
        "script": known.job.script,
        "state": known.state,
        "stallwise_version": known.stallwise_version,
        "created": known.created,
        "clocks": shifts,
    }


@contextmanager
def _opened(path: Path) -> Iterator[gzip.GzipFile | BinaryIO]:
    """A file that takes its name when it is whole."""
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
        raise InputError(
            f"The trace cannot be written to {path} ({error.strerror}). Name another file with -o."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
