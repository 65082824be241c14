"""The iteration graph: one step of synchronous training as arrays.

A node is a piece of work with a cost on one resource (storage, loader, copy engine, a GPU, the network); an edge says
what must end before it may start. An edge with a *lag* k leads to the k-th following iteration: the update of one step
gates the next forward pass (lag 1), a loader that may be d batches ahead waits for the batch taken d steps ago (lag
d). Every difference between frameworks is a difference of edges (Shi et al., *A DAG Model of Synchronous Stochastic
Gradient Descent in Distributed Deep Learning*, arXiv 1805.03812); a what-if edits costs or edges and evaluates it
again.

Edges within the iteration are stored by tail in compressed rows (`start`, `target`), lagged ones as three columns.
`paths.py` takes the longest path and the steady state.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self, TypedDict

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError

Seconds = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.integer[Any]]
Edge = tuple[int, int, int]
"""Tail, head, lag."""


class NodeKind(IntEnum):
    """Kind of work of a node."""

    READ = 0
    TAKE = 1  # the training loop takes a batch; costs nothing, but other nodes wait for it
    COPY = 2
    FORWARD = 3
    BACKWARD = 4
    EXCHANGE = 5
    UPDATE = 6
    WAIT = 7  # a timer of the exchange; no resource works


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """One iteration; node i has `cost_s[i]`, `kind[i]`, `labels[i]` and works on `resources[resource[i]]`."""

    cost_s: Seconds
    start: Numbers
    """Successors of node i within the iteration: `target[start[i]:start[i + 1]]`."""
    target: Numbers
    late_tail: Numbers
    late_head: Numbers
    late_lag: Numbers
    kind: Numbers
    resource: Numbers
    resources: tuple[str, ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.cost_s)

    @classmethod
    def of(
        cls,
        cost_s: Sequence[float] | Seconds,
        edges: Iterable[Edge] | Numbers,
        *,
        kind: Sequence[int] | None = None,
        resource: Sequence[int] | None = None,
        resources: Sequence[str] = ("",),
        labels: Sequence[str] | None = None,
    ) -> Self:
        """Build from costs and edges (tail, head, lag); raises an `InputError` that names an invalid node or edge."""
        costs = np.asarray(cost_s, dtype=np.float64)
        names = tuple(labels) if labels is not None else tuple(f"node {i}" for i in range(len(costs)))
        _check_costs(costs, names)
        table = edges if isinstance(edges, np.ndarray) else np.array(list(edges), dtype=np.int64)
        table = table.reshape(-1, 3)
        _check_edges(table, len(costs))
        zeros = np.zeros(len(costs), dtype=np.int64)
        return cls(
            cost_s=costs,
            **_rows(table, len(costs)),
            kind=zeros if kind is None else np.asarray(kind, dtype=np.int64),
            resource=zeros if resource is None else np.asarray(resource, dtype=np.int64),
            resources=tuple(resources),
            labels=names,
        )

    @property
    def edges(self) -> Numbers:
        """All edges as rows (tail, head, lag)."""
        tails = np.repeat(np.arange(len(self)), np.diff(self.start))
        now = np.column_stack([tails, self.target, np.zeros_like(self.target)])
        return np.concatenate([now, np.column_stack([self.late_tail, self.late_head, self.late_lag])])

    def with_costs(self, cost_s: Seconds) -> Self:
        """Return a graph with the same edges and other costs."""
        costs = np.asarray(cost_s, dtype=np.float64)
        if costs.shape != self.cost_s.shape:
            raise InputError(f"A graph of {len(self)} nodes needs as many costs, not {len(costs)}.")
        _check_costs(costs, self.labels)
        return replace(self, cost_s=costs)

    def scaled(self, factors: Mapping[NodeKind, float]) -> Self:
        """Return a graph with the costs of each given kind of node multiplied: 0 removes it, 0.5 is twice as fast."""
        by_kind = np.ones(len(NodeKind))
        for kind, factor in factors.items():
            by_kind[kind] = factor
        return self.with_costs(self.cost_s * by_kind[self.kind])

    def busy_s(self) -> dict[str, float]:
        """Work per iteration on each resource; the step cannot be shorter than the largest of a serial resource."""
        sums = np.bincount(self.resource, weights=self.cost_s, minlength=len(self.resources))
        return {name: float(total) for name, total in zip(self.resources, sums, strict=True)}


@dataclass(slots=True)
class GraphDraft:
    """Collects nodes and edges; `graph()` builds the graph."""

    _cost_s: list[float] = field(default_factory=list)
    _kind: list[int] = field(default_factory=list)
    _resource: list[int] = field(default_factory=list)
    _resources: dict[str, int] = field(default_factory=dict)
    _labels: list[str] = field(default_factory=list)
    _edges: list[Edge] = field(default_factory=list)

    def node(self, kind: NodeKind, label: str, cost_s: float, resource: str, after: Iterable[int | None] = ()) -> int:
        """Add a node that starts after those named (None is skipped); returns its number."""
        number = len(self._cost_s)
        self._cost_s.append(cost_s)
        self._kind.append(kind)
        self._labels.append(label)
        self._resource.append(self._resources.setdefault(resource, len(self._resources)))
        self._edges.extend((tail, number, 0) for tail in after if tail is not None)
        return number

    def edge(self, tail: int, head: int, lag: int = 0) -> None:
        """`head` starts after `tail` ended, `lag` iterations before."""
        self._edges.append((tail, head, lag))

    def graph(self) -> Graph:
        """Build the graph of the nodes and edges added so far."""
        return Graph.of(
            self._cost_s,
            self._edges,
            kind=self._kind,
            resource=self._resource,
            resources=tuple(self._resources),
            labels=self._labels,
        )


def unroll(graph: Graph, iterations: int) -> Graph:
    """Return a graph of `iterations` in a row without lagged edges; node i of iteration k has number k·n + i."""
    size = len(graph)
    edges = graph.edges
    offsets = np.arange(iterations)[:, None] * size
    tails = (edges[:, 0] + offsets).ravel()
    heads = (edges[:, 1] + edges[:, 2] * size + offsets).ravel()
    inside = heads < size * iterations
    table = np.column_stack([tails[inside], heads[inside], np.zeros(inside.sum(), dtype=np.int64)])
    return Graph(
        cost_s=np.tile(graph.cost_s, iterations),
        **_rows(table, size * iterations),
        kind=np.tile(graph.kind, iterations),
        resource=np.tile(graph.resource, iterations),
        resources=graph.resources,
        labels=graph.labels * iterations,
    )


class _Rows(TypedDict):
    start: Numbers
    target: Numbers
    late_tail: Numbers
    late_head: Numbers
    late_lag: Numbers


def _rows(edges: Numbers, nodes: int) -> _Rows:
    late = edges[:, 2] > 0
    now = edges[~late]
    order = np.argsort(now[:, 0], kind="stable")
    counts = np.bincount(now[:, 0], minlength=nodes)
    return {
        "start": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        "target": now[order, 1].astype(np.int32),  # half the memory to walk through
        "late_tail": np.ascontiguousarray(edges[late, 0]),
        "late_head": np.ascontiguousarray(edges[late, 1]),
        "late_lag": np.ascontiguousarray(edges[late, 2]),
    }


def _check_costs(costs: Seconds, labels: Sequence[str]) -> None:
    if not len(costs):
        raise InputError("A graph needs at least one node; this one is empty.")
    valid = np.isfinite(costs) & (costs >= 0)
    if not valid.all():
        bad = int(np.argmin(valid))
        raise InputError(
            f"{labels[bad]!r} costs {costs[bad]} s; a cost must be a number of at least 0. "
            "Check the durations the graph was built from."
        )


def _check_edges(edges: Numbers, nodes: int) -> None:
    ends = edges[:, :2]
    if ((ends < 0) | (ends >= nodes)).any():
        bad = edges[((ends < 0) | (ends >= nodes)).any(axis=1)][0]
        raise InputError(f"Edge {tuple(int(v) for v in bad)} (tail, head, lag) leads outside the {nodes} nodes.")
    if (edges[:, 2] < 0).any():
        bad = edges[edges[:, 2] < 0][0]
        raise InputError(
            f"Edge {tuple(int(v) for v in bad)} (tail, head, lag) has a negative lag; a lag is at least 0."
        )
