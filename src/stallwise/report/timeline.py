"""A run as slices of time on named tracks: what a timeline viewer draws, before any file format.

Every table with moments in it becomes slices, sorted by their begin; what the tables call seconds on a node's clock is
here nanoseconds on one axis (see `node_shifts`).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from stallwise.record import plan
from stallwise.record.trace_run import FACTS, WORKED_OUT
from stallwise.run.manifest import Manifest
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars

_NS = 1e9

# CUDA events are read in milliseconds of single precision, each to half a microsecond; four of them meet where two
# spans do.
_EVENT_RESOLUTION_NS = 2_000

# In these phases all ranks exchange gradients with each other, so they end a step together.
_TOGETHER = (plan.AS_IS, plan.HOST, plan.DEVICE, plan.COLD, plan.TRACE)

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
    """Something with a begin and an end; an end of None means a moment."""

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
        """Where it fits among the open slices of a lane, which forgets those that are over only if it does."""
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
    """All slices of the ranks asked for, in the order of `Slice.order`."""
    from polars import col

    tables = {name: run.table(name) for name in ("steps", "batches", "events", "spans", "collectives")}
    # Phases that an import worked out took no time of their own, and its figures are no happenings.
    worked_out = [phase.name for phase in run.manifest.phases if phase.differs.startswith(WORKED_OUT)]
    tables["steps"] = tables["steps"].filter(~col("phase").is_in(worked_out))
    tables["events"] = tables["events"].filter(~col("kind").str.starts_with(FACTS))
    nodes = {rank.rank: rank.node for rank in run.manifest.ranks}
    of_node = {shift.node: shift.shift_s for shift in shifts}
    by_rank = {rank: of_node.get(nodes.get(rank, 0), 0.0) for rank in ranks}
    here = {name: table.filter(col("rank").is_in(ranks)) for name, table in tables.items()}
    earliest_s = min((_earliest_s(here[name], by_rank) for name in here if "start_s" in here[name].columns), default=0)
    back_s = min(0.0, earliest_s)  # no viewer is sure to like times below zero
    moved = {
        name: _on_axis(table, {rank: shift_s - back_s for rank, shift_s in by_rank.items()})
        for name, table in here.items()
        if "start_s" in table.columns
    }
    steps = _clipped(moved["steps"], here["collectives"])
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


def known_ranks(manifest: Manifest) -> tuple[int, ...]:
    """The ranks that left a record."""
    return tuple(rank.rank for rank in manifest.ranks)


def _step_ends(steps: "polars.DataFrame", nodes: dict[int, int]) -> "polars.DataFrame":
    from polars import col

    together = steps.filter(col("phase").is_in(_TOGETHER))
    node = col("rank").replace_strict(nodes, default=None).alias("node")
    ends = (together if together.height else steps).select(
        node, "step", (col("start_s") + col("duration_s")).alias("s")
    )
    return ends.group_by("node", "step").agg(col("s").max())


def _shift(ends: "polars.DataFrame", home: int, node: int) -> NodeShift:
    from polars import col

    both = ends.filter(col("node") == home).join(ends.filter(col("node") == node), on="step", suffix="_there")
    if not both.height:
        return NodeShift(node, 0.0, None, 0)
    apart = both.get_column("s") - both.get_column("s_there")
    shift_s = float(apart.quantile(0.5, "linear") or 0.0)
    spread_s = float((apart - shift_s).abs().quantile(0.5, "linear") or 0.0)
    return NodeShift(node, shift_s, spread_s, both.height)


def _earliest_s(table: "polars.DataFrame", shifts: dict[int, float]) -> float:
    from polars import col

    moved = table.select(col("start_s") + col("rank").replace_strict(shifts, default=0.0)).get_column("start_s")
    return float(moved.min() or 0.0)  # type: ignore[arg-type]


def _on_axis(table: "polars.DataFrame", shifts: dict[int, float]) -> "polars.DataFrame":
    """The table with `start_ns` and `end_ns` on the common axis, sorted as slices are. Rows without a begin go."""
    from polars import Int64, col

    length = "wall_s" if "wall_s" in table.columns else "duration_s"
    begin = col("start_s") + col("rank").replace_strict(shifts, default=0.0)
    placed = table.filter(col("start_s").is_not_null()).with_columns(
        start_ns=(begin * _NS).round().cast(Int64),
        # A duration that came out below zero (two clocks were asked) is none.
        end_ns=((begin + col(length).clip(0.0)) * _NS).round().cast(Int64),
    )
    return placed.sort(["start_ns", "end_ns"], descending=[False, True], nulls_last=True, maintain_order=True)


def _clipped(steps: "polars.DataFrame", collectives: "polars.DataFrame") -> "polars.DataFrame":
    """Steps that end where the next one begins (on a GPU begin and duration come from two clocks), with what they
    waited for the script's own collectives."""
    from polars import col, min_horizontal

    waits = collectives.group_by("rank", "step").agg(col("waited_s").sum())
    following = col("start_ns").shift(-1).over("rank")
    cut = min_horizontal("end_ns", following.fill_null(col("end_ns")))
    return steps.with_columns(measured_ns=col("end_ns") - col("start_ns"), end_ns=cut).join(
        waits, on=["rank", "step"], how="left", maintain_order="left"
    )


def _phases(steps: "polars.DataFrame", differs: dict[str, str]) -> Iterator[Slice]:
    from polars import col, len

    stretch = (col("phase") + col("block").cast(str)).rle_id().over("rank").alias("stretch")
    found = steps.with_columns(stretch).group_by("rank", "stretch", "phase", "block", maintain_order=True)
    rows = found.agg(
        col("start_ns").min(), col("end_ns").max(), len().alias("steps"), col("kept").sum().alias("kept")
    ).sort("start_ns", maintain_order=True)
    for row in rows.iter_rows(named=True):
        args = {"block": row["block"], "steps": row["steps"], "kept": row["kept"]}
        if differs.get(row["phase"]):
            args["differs"] = differs[row["phase"]]
        name = f"{row['phase']} · block {row['block']}"
        yield Slice(row["start_ns"], row["end_ns"], row["rank"], PHASES, name, row["phase"], args)


def _steps(steps: "polars.DataFrame") -> Iterator[Slice]:
    waits = {"data_wait_ms": "data_wait_s", "own_collectives_ms": "waited_s"}
    for row in steps.iter_rows(named=True):
        start_ns, end_ns = row["start_ns"], row["end_ns"]
        args = _known(row, "phase", "block", "kept", "samples", "tokens", **waits)
        if row["measured_ns"] > end_ns - start_ns:
            args["measured_ms"] = round(row["measured_ns"] / 1e6, 6)
        category = row["phase"] if row["kept"] else "not kept"
        yield Slice(start_ns, end_ns, row["rank"], STEPS, f"step {row['step']}", category, args)


def _data_waits(steps: "polars.DataFrame") -> Iterator[Slice]:
    """A step begins by asking for its batch; the waits of a step with several batches are drawn as one."""
    for row in steps.iter_rows(named=True):
        wait_s, start_ns = row["data_wait_s"], row["start_ns"]
        if wait_s:
            end_ns = min(row["end_ns"], start_ns + round(wait_s * _NS))
            yield Slice(start_ns, end_ns, row["rank"], DATA_WAIT, "wait for data", row["phase"], {"step": row["step"]})


def _batches(batches: "polars.DataFrame") -> Iterator[Slice]:
    times = {"cpu_ms": "cpu_s", "blocked_ms": "blocked_s", "runqueue_wait_ms": "runqueue_wait_s"}
    for row in batches.iter_rows(named=True):
        worker = row["worker"]
        track = Track(_WORKERS, "own loading") if worker is None else Track(_WORKERS + 1 + worker, f"worker {worker}")
        args = _known(row, "samples", "read_bytes", "phase", "block", **times)
        category = row["phase"] or "not kept"
        yield Slice(row["start_ns"], row["end_ns"], row["rank"], track, f"batch {row['batch']}", category, args)


def _events(events: "polars.DataFrame") -> Iterator[Slice]:
    for row in events.iter_rows(named=True):
        name = row["kind"].replace("_", " ")
        yield Slice(
            row["start_ns"], row["end_ns"], row["rank"], EVENTS, name, row["kind"], _known(row, "step", "detail")
        )


def _spans(spans: "polars.DataFrame") -> list[Slice]:
    """Spans cut to fit where the resolution of GPU events makes neighbours cross; then sorted again, as a cut moves
    a begin. They are of a few steps only, so a list does no harm."""
    lanes: dict[tuple[int, str], Lanes] = {}
    found = []
    for row in spans.iter_rows(named=True):
        _, start_ns, end_ns = lanes.setdefault((row["rank"], row["track"]), Lanes(_EVENT_RESOLUTION_NS)).place(
            row["start_ns"], row["end_ns"]
        )
        args, track = _known(row, "step", "bytes"), _span_track(row["track"])
        found.append(Slice(start_ns, end_ns, row["rank"], track, row["name"], row["track"], args))
    return sorted(found, key=Slice.order)


def _span_track(name: str) -> Track:
    """Known tracks in the order in which a step runs; traced steps and tracks of later recorders below them."""
    if name in _SPAN_TRACKS:
        return Track(_FIRST_SPAN + list(_SPAN_TRACKS).index(name), _SPAN_TRACKS[name])
    return Track(_OTHER_SPANS, f"traced {name}")


def _known(row: dict[str, Any], *names: str, **milliseconds: str) -> dict[str, Any]:
    """What of a row is not null; times, given as new name = column, in milliseconds, as viewers show them."""
    args = {name: row[name] for name in names if row[name] is not None}
    for name, column in milliseconds.items():
        if row[column] is not None:
            args[name] = round(row[column] * 1e3, 6)
    return args
