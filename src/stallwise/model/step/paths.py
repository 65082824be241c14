"""The longest path through an iteration and the step time of its steady state.

`longest_path`: work ordered by Kahn's algorithm, each node relaxed when its last predecessor is done: one visit per
node and edge, and a cycle shows as nodes that are never reached.

`steady_state`: with lagged edges the graph is a max-plus linear system; in steady state every node repeats with the
same period, the maximum over cycles of (costs on the cycle) / (lags on the cycle) (Baccelli et al., *Synchronization
and Linearity*, 1992, th. 2.9 and 3.28). Every cycle passes a lagged edge, so the graph is first contracted to the heads
of those: one longest-path sweep from each. On what is left (a handful of nodes) the best ratio is found by raising it
to that of a cycle that beats it until none does. Exact, without unrolling.

The loops are written once. Small graphs run them as they stand, on lists; large ones through numba, imported only then:
compiling pays from some ten thousand nodes, starting numba alone costs half a second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stallwise.errors import InputError
from stallwise.model.step.graph import Graph, Numbers, Seconds

COMPILE_FROM = 20_000
_NEVER = -np.inf


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """A path through the graph; the critical cycle of a steady state spans `laps` iterations."""

    seconds: float
    nodes: Numbers
    laps: int = 1

    @property
    def period_s(self) -> float:
        """Seconds per iteration: the length of the path over `laps`."""
        return self.seconds / self.laps


def longest_path(graph: Graph) -> Path:
    """Find the critical path within one iteration; its costs add up to its seconds."""
    finish, previous = _sweep(graph, None)
    last = int(np.argmax(finish))
    return Path(float(finish[last]), _walk(previous, last))


def steady_state(graph: Graph) -> Path:
    """Find the critical cycle; its `period_s` is the step time."""
    arcs = _contract(graph)
    cycle = _best_cycle(arcs)
    nodes = np.concatenate([_walk(arc.previous, arc.last) for arc in cycle])
    return Path(sum(arc.seconds for arc in cycle), nodes, sum(arc.lag for arc in cycle))


@dataclass(frozen=True, slots=True, eq=False)
class _Arc:
    """The longest way from one head of lagged edges to a tail, and over the lagged edge to the next head."""

    tail: int
    head: int
    seconds: float
    lag: int
    last: int
    previous: Numbers


def _contract(graph: Graph) -> list[_Arc]:
    if not len(graph.late_lag):
        _sweep(graph, None)  # a cycle is the more useful error
        raise InputError("The graph has no edge into a later iteration, so it has no steady state.")
    arcs = []
    late = list(zip(graph.late_tail.tolist(), graph.late_head.tolist(), graph.late_lag.tolist(), strict=True))
    for source in dict.fromkeys(graph.late_head.tolist()):
        finish, previous = _sweep(graph, source)
        for tail, head, lag in late:
            if finish[tail] > _NEVER:
                arcs.append(_Arc(source, head, float(finish[tail]), lag, tail, previous))
    return arcs


def _best_cycle(arcs: list[_Arc]) -> list[_Arc]:
    best: list[_Arc] = []
    ratio = -1.0
    while True:
        better = _cycle_above(arcs, ratio)
        if not better:
            break
        better_ratio = sum(arc.seconds for arc in better) / sum(arc.lag for arc in better)
        if better_ratio <= ratio:  # only rounding is left
            break
        best, ratio = better, better_ratio
    if not best:
        raise InputError("No work is repeated from one iteration to the next, so the graph has no steady state.")
    return best


def _cycle_above(arcs: list[_Arc], ratio: float) -> list[_Arc]:
    """A cycle with seconds > ratio · lags, or nothing (Bellman-Ford)."""
    value = dict.fromkeys((arc.tail for arc in arcs), 0.0) | dict.fromkeys((arc.head for arc in arcs), 0.0)
    arc_into: dict[int, _Arc] = {}
    slack = 1e-12 * max((arc.seconds for arc in arcs), default=0.0) + 1e-300
    moved = -1
    for _ in range(len(value) + 1):
        moved = -1
        for arc in arcs:
            candidate = value[arc.tail] + arc.seconds - ratio * arc.lag
            if candidate > value[arc.head] + slack:
                value[arc.head], arc_into[arc.head], moved = candidate, arc, arc.head
        if moved < 0:
            return []
    for _ in range(len(value)):  # from a node that still moves, this many steps back lie on the cycle
        moved = arc_into[moved].tail
    cycle, at = [arc_into[moved]], arc_into[moved].tail
    while at != moved:
        cycle.append(arc_into[at])
        at = arc_into[at].tail
    return cycle[::-1]


def _walk(previous: Numbers, last: int) -> Numbers:
    """From `last` back to where its path begins, in the order of time."""
    if len(previous) < COMPILE_FROM:
        trail = [0] * len(previous)
        length = _back(previous.tolist(), last, trail)
        return np.array(trail[:length][::-1])
    steps = np.empty_like(previous)
    length = _compiled(_back)(previous, last, steps)
    return steps[:length][::-1]


def _sweep(graph: Graph, source: int | None) -> tuple[Seconds, Numbers]:
    """Finish times and predecessors; from `source` only where one is given (others that it does not reach: -inf)."""
    size = len(graph)
    begin = np.zeros(size) if source is None else np.full(size, _NEVER)
    if source is not None:
        begin[source] = 0.0
    waiting, previous, queue = (np.empty(size, dtype=np.int32) for _ in range(3))
    arrays = (graph.start, graph.target, graph.cost_s, waiting, begin, previous, queue)
    if size < COMPILE_FROM:
        lists = [array.tolist() for array in arrays]
        done = _relax(*lists)
        waiting, begin, previous = np.array(lists[3]), np.array(lists[4]), np.array(lists[5])
    else:
        done = _compiled(_relax)(*arrays)
    if done < size:
        raise InputError(_cycle_sentence(graph, waiting))
    return begin, previous


def _relax(start: Any, target: Any, cost: Any, waiting: Any, best: Any, previous: Any, queue: Any) -> int:
    """Kahn's order and longest path in one pass; `best` comes in as begins and goes out as ends."""
    for node in range(len(waiting)):
        waiting[node] = 0
        previous[node] = -1
    for head in target:
        waiting[head] += 1
    end = 0
    for node in range(len(waiting)):
        if waiting[node] == 0:
            queue[end] = node
            end += 1
    at = 0
    while at < end:
        node = queue[at]
        at += 1
        finish = best[node] + cost[node]
        best[node] = finish
        for i in range(start[node], start[node + 1]):
            head = target[i]
            if finish > best[head]:
                best[head] = finish
                previous[head] = node
            waiting[head] -= 1
            if waiting[head] == 0:
                queue[end] = head
                end += 1
    return end


def _back(previous: Any, last: Any, trail: Any) -> int:
    """Write the nodes from `last` backwards into `trail`; returns how many."""
    length = 0
    while last >= 0:
        trail[length] = last
        length += 1
        last = previous[last]
    return length


@cache
def _compiled(kernel: Callable[..., int]) -> Callable[..., int]:
    from numba import njit

    try:
        compiled: Callable[..., int] = njit(cache=True)(kernel)
    except RuntimeError:  # nowhere to keep the compiled code: compile it in every process
        compiled = njit(kernel)
    return compiled


def _cycle_sentence(graph: Graph, waiting: Numbers) -> str:
    """Describe one cycle: every node still waiting has a predecessor that waits too, so walking back must close."""
    tails = np.repeat(np.arange(len(graph)), np.diff(graph.start))
    stuck = (waiting[graph.target] > 0) & (waiting[tails] > 0)
    before = dict(zip(graph.target[stuck].tolist(), tails[stuck].tolist(), strict=True))
    at = next(iter(before))
    visited: list[int] = []
    while at not in visited:
        visited.append(at)
        at = before[at]
    cycle = [graph.labels[node] for node in [*visited[visited.index(at) :], at][::-1]]
    shown = cycle if len(cycle) <= 6 else [*cycle[:3], "…", *cycle[-2:]]
    return f"The graph has a cycle, so nothing on it could ever start: {' → '.join(shown)}."
