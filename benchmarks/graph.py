"""The longest path of a large iteration graph against networkx and rustworkx, on the same graph in one run.

The graph is a real one: 75 steps of eight GPUs training a network of 160 layers with wait-free back-propagation, drawn
out. Every contestant starts from its own finished graph and costs, sorts it topologically and takes the longest path;
what building each costs is not counted. Edges carry the cost of their head, because that is what the peers weigh.
"""

import time
from collections.abc import Callable

import networkx
import numpy as np
import rustworkx

from benchmarks.harness import Result, take_turns
from stallwise.model.exchange.overlap import Overlap, plan
from stallwise.model.step.graph import Graph, unroll
from stallwise.model.step.iteration import iteration_graph
from stallwise.model.step.paths import longest_path
from stallwise.model.step.prediction import predict_step
from stallwise.workload.layers import Layer, LayerTrace

NODES = 200_000
BARS = {"networkx": 100, "rustworkx": 10}
ROUNDS = 5
CURVE_BAR_S = 0.2


def trace(layers: int = 160) -> LayerTrace:
    """A network of uneven layers; costs are drawn once, the same in every run."""
    draw = np.random.default_rng(5)
    forward_s, sizes = draw.uniform(1e-4, 1e-3, layers), draw.lognormal(12, 2, layers)
    return LayerTrace.of(
        (
            Layer(name=f"layer {i}", forward_s=f, backward_s=2 * f, gradient_bytes=int(size))
            for i, (f, size) in enumerate(zip(forward_s.tolist(), sizes.tolist(), strict=True))
        ),
        source="benchmark",
    )


def _exchange(size: float) -> float:
    return 5e-4 + 8e-10 * size


def large_graph() -> Graph:
    """At least `NODES` nodes."""
    job = trace()
    one = iteration_graph(job, plan(job, _exchange, Overlap(scheme="wfbp")), gpus=(1.0,) * 8)
    return unroll(one, -(-NODES // len(one)))


def _timed(work: Callable[[], float], expected: float) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - start
        assert abs(found - expected) <= 1e-9 * expected, f"{found} instead of {expected}"
        return seconds

    return measure


def _peers(graph: Graph) -> dict[str, Callable[[], float]]:
    """The same graph for each peer: a source with an edge to every node, and on each edge the cost of its head."""
    source = len(graph)
    edges = [(int(a), int(b), float(graph.cost_s[b])) for a, b, _ in graph.edges]
    heads = {b for _, b, _ in edges}
    edges += [(source, i, float(graph.cost_s[i])) for i in range(len(graph)) if i not in heads]
    python = networkx.DiGraph()
    python.add_weighted_edges_from(edges)
    rust = rustworkx.PyDiGraph()
    rust.add_nodes_from(range(len(graph) + 1))
    rust.add_edges_from(edges)
    return {
        "networkx": lambda: float(networkx.dag_longest_path_length(python)),
        "rustworkx": lambda: float(rustworkx.dag_weighted_longest_path_length(rust, lambda _, __, weight: weight)),
    }


def measure() -> list[Result]:
    """Median of five turns each, after one that compiles and warms up."""
    graph = large_graph()
    expected = longest_path(graph).seconds
    contestants = {"stallwise": lambda: longest_path(graph).seconds, **_peers(graph)}
    times = take_turns({name: _timed(work, expected) for name, work in contestants.items()}, ROUNDS)
    ours = times.pop("stallwise")
    results = [
        Result(
            claim=f"longest path of {len(graph):,} nodes and {len(graph.target):,} edges ≥ {BARS[name]}× {name}",
            measured=f"{peer.median_s / ours.median_s:.0f}×; ours {ours}, {name} {peer}",
            held=peer.median_s >= BARS[name] * ours.median_s,
        )
        for name, peer in times.items()
    ]
    return [*results, _curve()]


def _curve() -> Result:
    job, counts = trace(), [2**i for i in range(11)]

    def work() -> float:
        start = time.perf_counter()
        for n in counts:
            predict_step(job, lambda size, n=n: 2 * (n - 1) * 2e-5 + 2 * (n - 1) / n * 8e-10 * size)
        return time.perf_counter() - start

    def single() -> float:
        start = time.perf_counter()
        predict_step(job, _exchange)
        return time.perf_counter() - start

    times = take_turns({"curve": work, "step": single}, ROUNDS)
    return Result(
        claim=f"scaling curve of 1 to 1,024 GPUs (DDP, 160 layers) ≤ {CURVE_BAR_S * 1e3:.0f} ms",
        measured=f"{times['curve']}; one step {times['step']}",
        held=times["curve"].median_s <= CURVE_BAR_S,
    )
