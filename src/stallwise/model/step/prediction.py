"""Predict one step: its time, its split, and the edge that limits it; or the steps of many set-ups as columns.

    prediction = predict_step(trace, exchange, Overlap(scheme="ddp"))
    prediction.step_s, prediction.split, prediction.binding

The split is the profile's ladder taken on the graph: what the step loses when reading costs nothing, then copying, then
exchanging; what is left is compute. It adds up to the step and nothing in it is negative, because taking a cost away
never makes a path longer.

**Columns.** A search for machines needs the same step on thousands of fleets. Their graphs have the same edges and
differ in costs only: compute by the GPU, copies by the batch, messages by the links. So the graph is built once,
chains of nodes that are always scaled alike are joined (a column of forwards is one node), and the sweep of `paths`
runs on whole columns. A column's answer is the `steady_state` of its own graph, which the tests hold it to.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError
from stallwise.model.exchange._messages import CollectivePrices, ExchangePlan, Message
from stallwise.model.exchange.collectives import Algorithm
from stallwise.model.exchange.fabric import KnownLink
from stallwise.model.exchange.merge import Exchange
from stallwise.model.exchange.overlap import Overlap, plan
from stallwise.model.step.graph import Graph, NodeKind
from stallwise.model.step.iteration import LoaderSetup, iteration_graph
from stallwise.model.step.paths import Path, steady_state
from stallwise.units import show_seconds
from stallwise.workload.layers import LayerTrace

Factors = tuple[float, float]
"""Lowest and highest factor of a cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """A step's seconds by what takes them; they add up to the step."""

    compute_s: float
    exchange_s: float
    """Exchange that compute does not hide."""
    copy_s: float
    read_s: float

    @property
    def data_s(self) -> float:
        """Waiting for data: reading and copying."""
        return self.copy_s + self.read_s

    @property
    def step_s(self) -> float:
        """Seconds of the whole step: the sum of its parts."""
        return self.compute_s + self.exchange_s + self.copy_s + self.read_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLeg:
    """A stretch of the critical path on nodes of one kind."""

    kind: NodeKind
    first: str
    last: str
    nodes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPrediction:
    """A step in steady state."""

    step_s: float
    split: StepSplit
    path: tuple[PathLeg, ...]
    """The critical cycle; it spans `laps` steps and its seconds are `laps` times the step."""
    laps: int
    messages: tuple[Message, ...]
    graph: Graph

    @property
    def binding(self) -> str:
        """The edge at which the critical path leaves the GPU, in words: what to work on first."""
        return _binding(self.path, self.messages)

    def bounds_s(self, factors: Mapping[NodeKind, Factors]) -> Factors:
        """Lowest and highest step when the costs of each kind may be off by those factors.

        A step never falls when a cost rises (the edges stay), so the extremes of the costs give those of the step.
        """
        low = self.graph.scaled({kind: pair[0] for kind, pair in factors.items()})
        high = self.graph.scaled({kind: pair[1] for kind, pair in factors.items()})
        return steady_state(low).period_s, steady_state(high).period_s


def predict_step(
    trace: LayerTrace,
    exchange: CollectivePrices | Exchange | None,
    overlap: Overlap | None = None,
    loading: LoaderSetup | None = None,
    *,
    gpus: Sequence[float] = (1.0,),
) -> StepPrediction:
    """Predict the steady-state step of `trace` exchanging over `exchange` (None: the exchange times in the trace)."""
    planned = plan(trace, exchange, overlap or Overlap())
    graph = iteration_graph(trace, planned, loading, gpus=gpus)
    path = steady_state(graph)
    return StepPrediction(
        step_s=path.period_s,
        split=_split(graph, path.period_s, planned),
        path=_legs(graph, path),
        laps=path.laps,
        messages=planned.messages,
        graph=graph,
    )


def alone(_: float) -> float:
    """The exchange of a single GPU: takes no time."""
    return 0.0


def _split(graph: Graph, step_s: float, planned: ExchangePlan) -> StepSplit:
    rungs = [step_s]
    removed: dict[NodeKind, float] = {}
    for kind, cost in (
        (NodeKind.READ, _cost(graph, NodeKind.READ)),
        (NodeKind.COPY, _cost(graph, NodeKind.COPY)),
        (NodeKind.EXCHANGE, planned.exchange_s),
    ):
        removed[kind] = 0.0
        if kind is NodeKind.EXCHANGE:
            removed[NodeKind.WAIT] = 0.0  # without exchange there is no timer
        # Rounding may lift a rung by its last digit.
        rungs.append(min(rungs[-1], steady_state(graph.scaled(removed)).period_s) if cost else rungs[-1])
    return StepSplit(
        read_s=rungs[0] - rungs[1],
        copy_s=rungs[1] - rungs[2],
        exchange_s=rungs[2] - rungs[3],
        compute_s=rungs[3],
    )


def _cost(graph: Graph, kind: NodeKind) -> float:
    return float(graph.cost_s[graph.kind == kind].sum())


def _legs(graph: Graph, path: Path) -> tuple[PathLeg, ...]:
    costly = [node for node in path.nodes.tolist() if graph.cost_s[node] > 0]
    return tuple(
        PathLeg(
            kind=NodeKind(kind),
            first=graph.labels[nodes[0]],
            last=graph.labels[nodes[-1]],
            nodes=len(nodes),
            seconds=float(sum(graph.cost_s[node] for node in nodes)),
        )
        for kind, nodes in ((kind, list(group)) for kind, group in groupby(costly, key=lambda node: graph.kind[node]))
    )


_DATA_WORK = {NodeKind.READ: "reading the next batch", NodeKind.COPY: "copying the batch to the GPU"}


def _binding(path: Sequence[PathLeg], messages: Sequence[Message]) -> str:
    seconds = {kind: sum(leg.seconds for leg in path if leg.kind == kind) for kind in NodeKind}
    largest = max((NodeKind.READ, NodeKind.COPY, NodeKind.EXCHANGE), key=lambda kind: seconds[kind])
    if not seconds[largest]:
        return "compute: forward, backward and update follow each other without a gap"
    if largest is not NodeKind.EXCHANGE:
        return f"data: {_DATA_WORK[largest]} takes {show_seconds(seconds[largest])} of the critical path"
    legs = [leg for leg in path if leg.kind is NodeKind.EXCHANGE]
    count = sum(leg.nodes for leg in legs)
    before = next((leg.last for i, leg in enumerate(path) if i + 1 < len(path) and path[i + 1] is legs[0]), None)
    edge = f"{before} → {legs[0].first}" if before else legs[0].first
    return (
        f"network: {edge}; from there {count} of {len(messages)} messages, "
        f"{show_seconds(sum(leg.seconds for leg in legs))}, are on the critical path"
    )


Columns = npt.NDArray[np.float64]

_JOINABLE = (NodeKind.FORWARD, NodeKind.BACKWARD, NodeKind.TAKE)
_MOST_HEADS = 8  # heads of lagged edges; their cycles are enumerated


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """The graph of a step with chains of nodes joined; `message_bytes[i]` and `message_part[i]` say what its i-th
    exchange node costs.

    A node of the kind EXCHANGE costs `message_part` times an all-reduce of `message_bytes`; others their own cost times
    the factor of their kind. Loader workers read beside the step, which is the larger of the two: `setups`.
    """

    graph: Graph
    order: tuple[int, ...]
    message_bytes: Columns
    message_part: Columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CostFactors:
    """One entry per set-up: factors on compute (forward and backward), update and copies of the template."""

    compute: Columns
    update: Columns
    copy: Columns
    read: Columns | None = None
    """Seconds that the training process reads for the batch of one pass, where it loads its own batches."""

    def of(self, kind: int) -> Columns:
        """Factor of the costs of a kind of node."""
        if kind == NodeKind.UPDATE:
            return self.update
        if kind == NodeKind.READ and self.read is not None:
            return self.read
        return self.copy if kind == NodeKind.COPY else self.compute


def template(trace: LayerTrace, overlap: Overlap, *, several: bool, inline_reading: bool = False) -> Template:
    """Build the step of one GPU of several that exchange, or of a single one.

    With `inline_reading` the training process reads its own batches: a read costs 1 s times its factor.
    """
    trace = replace(trace, read_s=1.0 if inline_reading else 0.0)
    planned = plan(trace, (lambda size: size) if several else alone, overlap)
    graph = iteration_graph(trace, planned, LoaderSetup(workers=0) if inline_reading else None)
    sizes = np.array([message.bytes for message in planned.messages])
    parts = np.array([message.seconds / message.bytes if message.bytes else 0.0 for message in planned.messages])
    joined = _joined(graph)
    return Template(joined, _order(joined), sizes, parts)


def step_columns(shape: Template, factors: CostFactors, all_reduce: Columns | None) -> Columns:
    """Seconds of a step in every column; `all_reduce[i, j]` is an all-reduce of `message_bytes[i]` in column j."""
    graph = shape.graph
    exchange = iter(()) if all_reduce is None else iter(all_reduce * shape.message_part[:, None])
    costs: list[Columns] = [
        _exchange(exchange, factors.compute) if kind == NodeKind.EXCHANGE else cost * factors.of(kind)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkColumns:
    """Links that the exchange of each fleet crosses: α and β of small and large messages, and the size between them."""

    small_s: Columns
    small_s_per_byte: Columns
    large_s: Columns
    large_s_per_byte: Columns
    piece_bytes: Columns
    """Infinite where there is one line only."""

    def take(self, chosen: npt.NDArray[np.int64]) -> "LinkColumns":
        """Return the chosen columns in the given order."""
        return LinkColumns(
            small_s=self.small_s[chosen],
            small_s_per_byte=self.small_s_per_byte[chosen],
            large_s=self.large_s[chosen],
            large_s_per_byte=self.large_s_per_byte[chosen],
            piece_bytes=self.piece_bytes[chosen],
        )


def link_columns(used: Sequence[tuple[KnownLink, ...]], factor: str = "") -> LinkColumns:
    """The slowest of each fleet's links; with `factor` `low` or `high`, each times that factor."""
    rows = [_slowest(links, factor) for links in used]
    table = np.array(rows, dtype=np.float64).reshape(-1, 5).T
    small, small_byte, large, large_byte, piece = table
    return LinkColumns(
        small_s=small, small_s_per_byte=small_byte, large_s=large, large_s_per_byte=large_byte, piece_bytes=piece
    )


def all_reduce_columns(links: LinkColumns, gpus: Columns, algorithms: Sequence[Algorithm], sizes: Columns) -> Columns:
    """Seconds of all-reduces of each of `sizes` (rows) among `gpus` of each fleet (columns)."""
    fastest: Columns | None = None
    for algorithm in algorithms:
        starts, share = _formula(algorithm, gpus)
        seconds = (
            np.stack([_time(links, gpus, starts, share, size) for size in sizes.tolist()])
            if len(sizes)
            else (np.zeros((0, len(gpus))))
        )
        fastest = seconds if fastest is None else np.minimum(fastest, seconds)
    assert fastest is not None  # noqa: S101 - a library has at least one algorithm
    return fastest


def _formula(algorithm: Algorithm, gpus: Columns) -> tuple[Columns, Columns]:
    """Number of starts, and of times that a byte crosses a link: the formulas of `collectives` on columns."""
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


def _exchange(prices: Iterator[Columns], like: Columns) -> Columns:
    return next(prices, np.zeros_like(like))


def _joined(graph: Graph) -> Graph:
    """The graph with chains of forwards and backwards as one node each; edges keep their ends."""
    out_degree = np.diff(graph.start)
    in_degree = np.bincount(graph.target, minlength=len(graph))
    heads, tails = set(graph.late_head.tolist()), set(graph.late_tail.tolist())
    into = list(range(len(graph)))
    for tail, head, lag in graph.edges.tolist():
        alike = int(graph.kind[tail]) in _JOINABLE and int(graph.kind[head]) in _JOINABLE
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
    kinds = [NodeKind.FORWARD if graph.kind[root] == NodeKind.TAKE else int(graph.kind[root]) for root in kept]
    return Graph.of(costs, edges, kind=kinds, labels=[graph.labels[root] for root in kept])


def _root(into: list[int], node: int) -> int:
    while into[node] != node:
        node = into[node]
    return node


def _order(graph: Graph) -> tuple[int, ...]:
    """Topological order of the nodes (Kahn)."""
    waiting = np.bincount(graph.target, minlength=len(graph)).tolist()
    ready = [node for node, count in enumerate(waiting) if not count]
    for node in ready:
        for head in graph.target[graph.start[node] : graph.start[node + 1]].tolist():
            waiting[head] -= 1
            if not waiting[head]:
                ready.append(head)
    return tuple(ready)


def _sweep(shape: Template, costs: Sequence[Columns], source: int) -> dict[int, Columns]:
    """End of each node that `source` leads to, counted from the start of `source`."""
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
    """Yield seconds and lags of every way round the cycle; nothing where an arc is missing."""
    partial: list[tuple[Columns | None, int]] = [(None, 0)]
    for source, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        steps = [(arcs[source][tail], lag) for tail, head, lag in late if head == following and tail in arcs[source]]
        partial = [
            (seconds if so_far is None else so_far + seconds, lags + lag)
            for so_far, lags in partial
            for seconds, lag in steps
        ]
    for seconds_or_none, lags in partial:
        if seconds_or_none is not None and lags:
            yield seconds_or_none, lags
