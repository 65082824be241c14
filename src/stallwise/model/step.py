"""One step predicted: its time, where it goes, and the edge that binds.

    prediction = predict_step(trace, exchange, Overlap(scheme="ddp"))
    prediction.step_s, prediction.split, prediction.binding

The split is the profile's ladder taken on the graph: what the step loses when reading costs nothing, then copying, then
exchanging; what is left is compute. It adds up to the step and nothing in it is negative, because taking a cost away
never makes a path longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from stallwise.model.graph import Graph, Kind
from stallwise.model.iteration import Loading, iteration_graph
from stallwise.model.merge import Exchange
from stallwise.model.messages import Message, Plan, Prices
from stallwise.model.overlap import Overlap, plan
from stallwise.model.paths import Path, steady_state
from stallwise.workload.layers import LayerTrace

Factors = tuple[float, float]
"""Lowest and highest factor a cost may be off by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
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
        """All of it."""
        return self.compute_s + self.exchange_s + self.copy_s + self.read_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A stretch of the critical path on nodes of one kind."""

    kind: Kind
    first: str
    last: str
    nodes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPrediction:
    """A step in steady state."""

    step_s: float
    split: Split
    path: tuple[Leg, ...]
    """The critical cycle; it spans `laps` steps and its seconds are `laps` times the step."""
    laps: int
    messages: tuple[Message, ...]
    graph: Graph

    @property
    def channel_s(self) -> float:
        """How long the network is busy in a step."""
        return sum(message.seconds for message in self.messages)

    @property
    def binding(self) -> str:
        """The edge at which the critical path leaves the GPU, in words: what to work on first."""
        return _binding(self.path, self.messages)

    def bounds_s(self, factors: Mapping[Kind, Factors]) -> Factors:
        """Lowest and highest step when the costs of each kind may be off by those factors.

        A step never falls when a cost rises (the edges stay), so the extremes of the costs give those of the step.
        """
        low = self.graph.scaled({kind: pair[0] for kind, pair in factors.items()})
        high = self.graph.scaled({kind: pair[1] for kind, pair in factors.items()})
        return steady_state(low).period_s, steady_state(high).period_s


def predict_step(
    trace: LayerTrace,
    exchange: Prices | Exchange | None,
    overlap: Overlap | None = None,
    loading: Loading | None = None,
    *,
    gpus: Sequence[float] = (1.0,),
) -> StepPrediction:
    """The steady-state step of `trace` exchanging over `exchange` (None: by the exchange times in the trace)."""
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
    """The exchange of a single GPU: none."""
    return 0.0


def _split(graph: Graph, step_s: float, planned: Plan) -> Split:
    rungs = [step_s]
    gone: dict[Kind, float] = {}
    for kind, cost in (
        (Kind.READ, _cost(graph, Kind.READ)),
        (Kind.COPY, _cost(graph, Kind.COPY)),
        (Kind.EXCHANGE, planned.exchange_s),
    ):
        gone[kind] = 0.0
        if kind is Kind.EXCHANGE:
            gone[Kind.WAIT] = 0.0  # who exchanges nothing waits for no timer
        # Rounding may lift a rung by its last digit.
        rungs.append(min(rungs[-1], steady_state(graph.scaled(gone)).period_s) if cost else rungs[-1])
    return Split(
        read_s=rungs[0] - rungs[1],
        copy_s=rungs[1] - rungs[2],
        exchange_s=rungs[2] - rungs[3],
        compute_s=rungs[3],
    )


def _cost(graph: Graph, kind: Kind) -> float:
    return float(graph.cost_s[graph.kind == kind].sum())


def _legs(graph: Graph, path: Path) -> tuple[Leg, ...]:
    costly = [node for node in path.nodes.tolist() if graph.cost_s[node] > 0]
    return tuple(
        Leg(
            kind=Kind(kind),
            first=graph.labels[nodes[0]],
            last=graph.labels[nodes[-1]],
            nodes=len(nodes),
            seconds=float(sum(graph.cost_s[node] for node in nodes)),
        )
        for kind, nodes in ((kind, list(group)) for kind, group in groupby(costly, key=lambda node: graph.kind[node]))
    )


_WORDS = {Kind.READ: "reading the next batch", Kind.COPY: "copying the batch to the GPU"}


def _binding(path: Sequence[Leg], messages: Sequence[Message]) -> str:
    seconds = {kind: sum(leg.seconds for leg in path if leg.kind == kind) for kind in Kind}
    largest = max((Kind.READ, Kind.COPY, Kind.EXCHANGE), key=lambda kind: seconds[kind])
    if not seconds[largest]:
        return "compute: forward, backward and update follow each other without a gap"
    if largest is not Kind.EXCHANGE:
        return f"data: {_WORDS[largest]} takes {seconds[largest] * 1e3:.3g} ms of the critical path"
    legs = [leg for leg in path if leg.kind is Kind.EXCHANGE]
    count = sum(leg.nodes for leg in legs)
    before = next((leg.last for i, leg in enumerate(path) if i + 1 < len(path) and path[i + 1] is legs[0]), None)
    edge = f"{before} → {legs[0].first}" if before else legs[0].first
    return (
        f"network: {edge}; from there {count} of {len(messages)} messages, "
        f"{sum(leg.seconds for leg in legs) * 1e3:.3g} ms, are on the critical path"
    )
