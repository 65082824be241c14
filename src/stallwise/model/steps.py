"""Many steps at once: the graph of one job with a column of costs for every fleet.

Who looks for machines asks for the same step on thousands of fleets. Their graphs have the same edges and differ in
costs only: compute by the GPU, copies by the batch, messages by the links. So the graph is built once, chains of nodes
that are always scaled alike are joined (a column of forwards is one node), and the sweep of `paths` runs on whole
columns. A column's answer is the `steady_state` of its own graph, which the tests hold it to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.model.collectives import Algorithm
from stallwise.model.fabric import KnownLink
from stallwise.model.graph import Graph, Kind
from stallwise.model.iteration import iteration_graph
from stallwise.model.overlap import Overlap, plan
from stallwise.model.step import alone
from stallwise.workload.layers import LayerTrace

Columns = npt.NDArray[np.float64]

_ALIKE = (Kind.FORWARD, Kind.BACKWARD, Kind.TAKE)
# What a step waits for least; several lagged edges meet in a handful of heads.
_MOST_HEADS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The graph of a step, joined; `message_bytes[i]` and `message_part[i]` say what its i-th exchange node costs.

    A node of the kind EXCHANGE costs `message_part` times an all-reduce of `message_bytes`; others their own cost times
    the factor of their kind. Reading is left out: see `read_bound`.
    """

    graph: Graph
    order: tuple[int, ...]
    message_bytes: Columns
    message_part: Columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factors:
    """One column per fleet: factors on compute (forward and backward), update and copies of the template."""

    compute: Columns
    update: Columns
    copy: Columns

    def of(self, kind: int) -> Columns:
        """The factor of a kind of node."""
        if kind == Kind.UPDATE:
            return self.update
        return self.copy if kind == Kind.COPY else self.compute


def template(trace: LayerTrace, overlap: Overlap, *, several: bool) -> Template:
    """The step of one GPU of several that exchange, or of one that is alone."""
    unread = trace if not trace.read_s else _without_reading(trace)
    planned = plan(unread, (lambda size: size) if several else alone, overlap)
    graph = iteration_graph(unread, planned)
    sizes = np.array([message.bytes for message in planned.messages])
    parts = np.array([message.seconds / message.bytes if message.bytes else 0.0 for message in planned.messages])
    joined = _joined(graph)
    return Template(joined, _order(joined), sizes, parts)


def step_columns(shape: Template, factors: Factors, all_reduce: Columns | None) -> Columns:
    """Seconds of a step in every column; `all_reduce[i, j]` is an all-reduce of `message_bytes[i]` in column j."""
    graph = shape.graph
    exchange = iter(()) if all_reduce is None else iter(all_reduce * shape.message_part[:, None])
    costs: list[Columns] = [
        _exchange(exchange, factors.compute) if kind == Kind.EXCHANGE else cost * factors.of(kind)
        for kind, cost in zip(graph.kind.tolist(), graph.cost_s.tolist(), strict=True)
    ]
    heads = list(dict.fromkeys(graph.late_head.tolist()))
    if not heads or len(heads) > _MOST_HEADS:
        raise InputError(f"A step with {len(heads)} places where the next one begins cannot be taken in columns.")
    arcs = {head: _sweep(shape, costs, head) for head in heads}
    late = list(zip(graph.late_tail.tolist(), graph.late_head.tolist(), graph.late_lag.tolist(), strict=True))
    best = np.zeros_like(factors.compute)
    for cycle in _cycles(heads):
        for seconds, lags in _along(cycle, arcs, late):
            best = np.maximum(best, seconds / lags)
    return best


def read_bound(read_s: Columns, passes: int, workers: Columns) -> Columns:
    """Seconds per step that loader workers need: each has its own batch, one batch per pass.

    Reading runs ahead of training by a lag, so its cycle is its own: the step is the larger of the two.
    """
    return read_s * passes / np.maximum(1.0, workers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkColumns:
    """Of every fleet the links that its exchange crosses: α and β of small and large messages, and where they part."""

    small_s: Columns
    small_s_per_byte: Columns
    large_s: Columns
    large_s_per_byte: Columns
    piece_bytes: Columns
    """Infinite where there is one line only."""

    def take(self, chosen: npt.NDArray[np.int64]) -> "LinkColumns":
        """Those columns, in that order."""
        return LinkColumns(
            small_s=self.small_s[chosen],
            small_s_per_byte=self.small_s_per_byte[chosen],
            large_s=self.large_s[chosen],
            large_s_per_byte=self.large_s_per_byte[chosen],
            piece_bytes=self.piece_bytes[chosen],
        )


def link_columns(used: Sequence[tuple[KnownLink, ...]], factor: str = "") -> LinkColumns:
    """The slowest of each fleet's links, every one times its `low` or `high` factor where asked."""
    rows = [_slowest(links, factor) for links in used]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    small, small_byte, large, large_byte, piece = table
    return LinkColumns(
        small_s=small, small_s_per_byte=small_byte, large_s=large, large_s_per_byte=large_byte, piece_bytes=piece
    )


def all_reduce_columns(links: LinkColumns, gpus: Columns, algorithms: Sequence[Algorithm], sizes: Columns) -> Columns:
    """Seconds of all-reduces of each of `sizes` (rows) among `gpus` of each fleet (columns)."""
    quickest: Columns | None = None
    for algorithm in algorithms:
        starts, share = _formula(algorithm, gpus)
        found = (
            np.stack([_time(links, gpus, starts, share, size) for size in sizes.tolist()])
            if len(sizes)
            else (np.zeros((0, len(gpus))))
        )
        quickest = found if quickest is None else np.minimum(quickest, found)
    assert quickest is not None  # noqa: S101 - a library has at least one algorithm
    return quickest


def _formula(algorithm: Algorithm, gpus: Columns) -> tuple[Columns, Columns]:
    """Starts and times that a byte crosses a link; the formulas of `collectives` on columns."""
    if algorithm == "ring":
        return 2 * (gpus - 1), 2 * (gpus - 1) / gpus
    if algorithm == "double tree":
        return 2 * np.ceil(np.log2(gpus)), np.full_like(gpus, 2.0)
    raise InputError(f"The algorithm {algorithm!r} cannot be taken in columns.")


def _time(links: LinkColumns, gpus: Columns, starts: Columns, share: Columns, size: float) -> Columns:
    small = starts * links.small_s + share * links.small_s_per_byte * size
    breaks = links.piece_bytes * gpus
    if not np.isfinite(breaks).any():
        return small
    large = starts * links.large_s + share * links.large_s_per_byte * size
    at_break = starts * links.small_s + share * links.small_s_per_byte * np.where(np.isfinite(breaks), breaks, 0.0)
    return np.where(size < breaks, small, np.maximum(large, at_break))


def _slowest(links: tuple[KnownLink, ...], factor: str) -> tuple[float, float, float, float, float]:
    if not links:
        return 0.0, 0.0, 0.0, 0.0, float("inf")
    slowed = [link.slower(getattr(link, factor)) if factor else link for link in links]
    wires = [link.wires() for link in slowed]
    pieces = [piece for piece in (link.piece_bytes() for link in slowed) if piece is not None]
    return (
        max(small.latency_s for small, _ in wires),
        max(small.s_per_byte for small, _ in wires),
        max(large.latency_s for _, large in wires),
        max(large.s_per_byte for _, large in wires),
        max(pieces) if pieces else float("inf"),
    )


def _without_reading(trace: LayerTrace) -> LayerTrace:
    return replace(trace, read_s=0.0)


def _exchange(prices: Iterator[Columns], like: Columns) -> Columns:
    return next(prices, np.zeros_like(like))


def _joined(graph: Graph) -> Graph:
    """The graph with chains of forwards and backwards as one node each; edges keep their ends."""
    out_degree = np.diff(graph.start)
    in_degree = np.bincount(graph.target, minlength=len(graph))
    heads, tails = set(graph.late_head.tolist()), set(graph.late_tail.tolist())
    into = list(range(len(graph)))
    for tail, head, lag in graph.edges.tolist():
        alike = int(graph.kind[tail]) in _ALIKE and int(graph.kind[head]) in _ALIKE
        only = out_degree[tail] == 1 and in_degree[head] == 1 and head not in heads and tail not in tails
        if not lag and alike and only:
            into[head] = tail
    roots = [_root(into, node) for node in range(len(graph))]
    kept = sorted(set(roots))
    place = {root: number for number, root in enumerate(kept)}
    costs = np.zeros(len(kept))
    np.add.at(costs, [place[root] for root in roots], graph.cost_s)
    edges = [
        (place[roots[tail]], place[roots[head]], lag)
        for tail, head, lag in graph.edges.tolist()
        if lag or roots[tail] != roots[head]
    ]
    # A take that a chain of forwards was joined to computes.
    kinds = [Kind.FORWARD if graph.kind[root] == Kind.TAKE else int(graph.kind[root]) for root in kept]
    return Graph.of(costs, edges, kind=kinds, labels=[graph.labels[root] for root in kept])


def _root(into: list[int], node: int) -> int:
    while into[node] != node:
        node = into[node]
    return node


def _order(graph: Graph) -> tuple[int, ...]:
    """Kahn's order."""
    waiting = np.bincount(graph.target, minlength=len(graph)).tolist()
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        for head in graph.target[graph.start[node] : graph.start[node + 1]].tolist():
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(head)
    return tuple(ready)


def _sweep(shape: Template, costs: Sequence[Columns], source: int) -> dict[int, Columns]:
    """When each node that `source` leads to is done, counted from the begin of `source`."""
    graph = shape.graph
    begin: dict[int, Columns] = {source: np.zeros_like(costs[source])}
    done: dict[int, Columns] = {}
    for node in shape.order:
        if node not in begin:
            continue
        done[node] = begin.pop(node) + costs[node]
        for head in graph.target[graph.start[node] : graph.start[node + 1]].tolist():
            begin[head] = np.maximum(begin[head], done[node]) if head in begin else done[node]
    return done


def _cycles(heads: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every simple cycle over the heads, each from its smallest."""

    def extend(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield path
        for head in heads:
            if head > path[0] and head not in path:
                yield from extend((*path, head))

    for head in heads:
        yield from extend((head,))


def _along(
    cycle: tuple[int, ...], arcs: dict[int, dict[int, Columns]], late: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[Columns, int]]:
    """Seconds and lags of every way round the cycle; nothing where an arc is missing."""
    found: list[tuple[Columns | None, int]] = [(None, 0)]
    for source, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        steps = [(arcs[source][tail], lag) for tail, head, lag in late if head == following and tail in arcs[source]]
        found = [
            (seconds if so_far is None else so_far + seconds, lags + lag)
            for so_far, lags in found
            for seconds, lag in steps
        ]
    for seconds_or_none, lags in found:
        if seconds_or_none is not None and lags:
            yield seconds_or_none, lags
