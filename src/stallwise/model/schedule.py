"""When each piece of work runs in a step that repeats: the graph's own time table, and what of it is critical.

In steady state node i of iteration n begins at v_i + n · T, where T is the period and v an eigenvector of the max-plus
system (Baccelli et al., *Synchronization and Linearity*, 1992, th. 3.23):

    v_head = max over edges (tail, head, lag) of v_tail + cost_tail - lag · T

The v taken here is that of the critical cycle: the longest ways from one of its nodes. Iterations share one period, so
what reaches over its end (a batch read ahead, an exchange under the next forward pass) goes on at its beginning.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.model.graph import Graph, Kind, Seconds
from stallwise.model.paths import Path, steady_state

_LANES = {
    Kind.READ: "read",
    Kind.COPY: "copy",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.EXCHANGE: "exchange",
    Kind.UPDATE: "update",
}
_EVEN = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A stretch of one kind of work within the period."""

    kind: str
    """`read`, `copy`, `forward`, `backward`, `exchange` or `update`."""
    start_s: float
    end_s: float
    nodes: int
    critical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A step from the moment its batch is taken; slots by kind, then by time."""

    step_s: float
    slots: tuple[Slot, ...]

    def critical_s(self, kind: str) -> float:
        """Of the period, what is on the critical path."""
        return sum(slot.end_s - slot.start_s for slot in self.slots if slot.kind == kind and slot.critical)


def schedule(graph: Graph) -> Schedule:
    """The time table of a step in steady state."""
    path = steady_state(graph)
    begins = _begins(graph, path)
    takes = begins[(graph.kind == Kind.TAKE) & np.isfinite(begins)]
    begins = begins - (takes.min() if len(takes) else np.nanmin(np.where(np.isfinite(begins), begins, np.nan)))
    on_path = np.zeros(len(graph), dtype=bool)
    on_path[path.nodes] = True
    slots: list[Slot] = []
    for kind, name in _LANES.items():
        nodes = np.flatnonzero((graph.kind == kind) & (graph.cost_s > 0) & np.isfinite(begins))
        for critical in (False, True):
            pieces = [
                piece
                for node in nodes[on_path[nodes] == critical].tolist()
                for piece in _wrapped(float(begins[node]), float(graph.cost_s[node]), path.period_s)
            ]
            slots += _joined(name, pieces, critical=critical)
    return Schedule(step_s=path.period_s, slots=tuple(slots))


def _begins(graph: Graph, path: Path) -> Seconds:
    """Longest ways from a node of the critical cycle, each lag a period less; what it does not reach: -inf."""
    period_s, order = path.period_s, _order(graph)
    begins = [-math.inf] * len(graph)
    begins[int(path.nodes[0])] = 0.0
    cost, start, target = graph.cost_s.tolist(), graph.start.tolist(), graph.target.tolist()
    late = list(zip(graph.late_tail.tolist(), graph.late_head.tolist(), graph.late_lag.tolist(), strict=True))
    moved = True
    # Within an iteration one pass in topological order is enough; no way crosses more lagged edges than there are.
    for _ in range(len(late) + 2):
        for node in order:
            ends = begins[node] + cost[node]
            for at in range(start[node], start[node + 1]):
                begins[target[at]] = max(begins[target[at]], ends)
        moved = False
        for tail, head, lag in late:
            again = begins[tail] + cost[tail] - lag * period_s
            if again > begins[head] + _EVEN * period_s:
                begins[head], moved = again, True
        if not moved:
            break
    return np.array(begins)


def _order(graph: Graph) -> list[int]:
    """Nodes so that edges within the iteration lead forward (Kahn)."""
    start, target = graph.start.tolist(), graph.target.tolist()
    waiting = [0] * len(graph)
    for head in target:
        waiting[head] += 1
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for at in range(start[node], start[node + 1]):
            waiting[target[at]] -= 1
            if not waiting[target[at]]:
                order.append(target[at])
    return order


def _wrapped(start_s: float, cost_s: float, period_s: float) -> Iterator[tuple[float, float]]:
    """The stretch within one period; one that is longer than it fills it."""
    if cost_s >= period_s:
        yield 0.0, period_s
        return
    start = start_s % period_s
    if start > period_s * (1 - _EVEN):
        start = 0.0
    end = start + cost_s
    yield start, min(end, period_s)
    if end > period_s * (1 + _EVEN):
        yield 0.0, end - period_s


def _joined(kind: str, pieces: Sequence[tuple[float, float]], *, critical: bool) -> list[Slot]:
    """Neighbours as one; `nodes` says how many."""
    found: list[Slot] = []
    for start_s, end_s in sorted(pieces):
        last = found[-1] if found else None
        if last is not None and start_s <= last.end_s * (1 + _EVEN) + 1e-12:
            found[-1] = Slot(
                kind=kind,
                start_s=last.start_s,
                end_s=max(last.end_s, end_s),
                nodes=last.nodes + 1,
                critical=critical,
            )
        else:
            found.append(Slot(kind=kind, start_s=start_s, end_s=end_s, nodes=1, critical=critical))
    return found
