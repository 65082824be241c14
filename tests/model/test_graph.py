"""The graph as arrays: paths against slow independent answers, edits, and what cannot be."""

import itertools
import math
import subprocess
import sys

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.step import paths
from stallwise.model.step.graph import Graph, GraphDraft, NodeKind, unroll
from stallwise.model.step.paths import longest_path, steady_state

costs = st.floats(min_value=0.0, max_value=10.0)


@st.composite
def graphs(draw: st.DrawFn, late: bool = True) -> Graph:
    """Any DAG (edges lead from lower to higher numbers, then the numbers are shuffled), with lagged edges on top."""
    size = draw(st.integers(min_value=1, max_value=9))
    order = draw(st.permutations(range(size)))
    pairs = list(itertools.combinations(range(size), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=14)) if pairs else []
    edges = [(order[a], order[b], 0) for a, b in chosen]
    if late:
        node = st.integers(min_value=0, max_value=size - 1)
        edges += draw(st.lists(st.tuples(node, node, st.integers(min_value=1, max_value=3)), min_size=1, max_size=4))
    return Graph.of(draw(st.lists(costs, min_size=size, max_size=size)), edges)


def networkx_longest(graph: Graph) -> float:
    known = networkx.DiGraph()
    known.add_weighted_edges_from((-1, i, graph.cost_s[i]) for i in range(len(graph)))
    known.add_weighted_edges_from((int(a), int(b), graph.cost_s[b]) for a, b, lag in graph.edges if not lag)
    return float(networkx.dag_longest_path_length(known))


def brute_ratio(graph: Graph) -> float:
    """The largest cost per lag over all simple cycles."""
    known = networkx.MultiDiGraph()
    known.add_nodes_from(range(len(graph)))
    lags: dict[tuple[int, int], list[int]] = {}
    for a, b, lag in graph.edges.tolist():
        lags.setdefault((a, b), []).append(lag)
    known = networkx.DiGraph(lags.keys())
    best = -math.inf
    for cycle in networkx.simple_cycles(known):
        steps = list(zip(cycle, cycle[1:] + cycle[:1], strict=True))
        # A cycle of lag 0 does not exist, so of parallel edges the one with the least lag counts.
        lag = sum(min(lags[step]) for step in steps)
        best = max(best, sum(graph.cost_s[node] for node in cycle) / lag)
    return best


@given(graphs())
def test_longest_path_is_networkx_s_and_its_costs_add_up(graph: Graph) -> None:
    path = longest_path(graph)
    assert path.seconds == pytest.approx(networkx_longest(graph), abs=1e-12)
    assert graph.cost_s[path.nodes].sum() == pytest.approx(path.seconds, abs=1e-12)
    follows = {(a, b) for a, b, lag in graph.edges.tolist() if not lag}
    assert all(step in follows for step in itertools.pairwise(path.nodes.tolist()))


@settings(deadline=None)  # the first example compiles
@given(graphs(late=False))
def test_compiled_and_plain_loops_agree(graph: Graph) -> None:
    many = unroll(graph, 3)
    plain = paths._sweep(many, None)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "COMPILE_FROM", 0)
        assert paths._sweep(many, None)[0].tolist() == plain.tolist()
        compiled = longest_path(many)
    assert compiled.nodes.tolist() == longest_path(many).nodes.tolist()


@given(graphs())
def test_steady_state_is_the_best_cycle_of_all(graph: Graph) -> None:
    expected = brute_ratio(graph)
    if math.isinf(expected):
        with pytest.raises(InputError, match="no steady state"):
            steady_state(graph)
        return
    found = steady_state(graph)
    assert found.period_s == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert graph.cost_s[found.nodes].sum() == pytest.approx(found.seconds, abs=1e-12)


@given(graphs())
def test_many_iterations_take_as_long_as_the_steady_state_says(graph: Graph) -> None:
    """Between a period each and that plus what one pass through the graph may add."""
    try:
        period_s = steady_state(graph).period_s
    except InputError:
        return
    rounds = 60
    whole_s = longest_path(unroll(graph, rounds)).seconds
    longest_lag = int(graph.late_lag.max())
    assert whole_s >= period_s * (rounds // longest_lag - len(graph)) - 1e-9
    assert whole_s <= period_s * rounds + float(graph.cost_s.sum()) + 1e-9


@given(graphs(), st.integers(min_value=0, max_value=8), st.floats(min_value=1.0, max_value=3.0))
def test_a_cost_that_grows_never_shortens_anything(graph: Graph, node: int, factor: float) -> None:
    more = graph.cost_s.copy()
    more[node % len(graph)] *= factor
    assert longest_path(graph.with_costs(more)).seconds >= longest_path(graph).seconds - 1e-12


def chain() -> Graph:
    draft = GraphDraft()
    read = draft.node(NodeKind.READ, "read", 3.0, "storage")
    forward = draft.node(NodeKind.FORWARD, "forward", 1.0, "GPU", [read])
    update = draft.node(NodeKind.UPDATE, "update", 1.0, "GPU", [forward, None])
    draft.edge(update, forward, 1)
    draft.edge(read, read, 1)
    return draft.graph()


def test_edits_change_costs_and_nothing_else() -> None:
    graph = chain()
    assert steady_state(graph).period_s == 3.0
    assert steady_state(graph.scaled({NodeKind.READ: 0.5})).period_s == 2.0
    assert graph.busy_s() == {"storage": 3.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("cost_s", "edges", "sentence"),
    [
        ([], [], "empty"),
        ([1.0, math.nan], [], "'node 1' costs nan s"),
        ([1.0, -2.0], [], "'node 1' costs -2.0 s"),
        ([math.inf], [], "costs inf s"),
        ([1.0], [(0, 1, 0)], "outside the 1 nodes"),
        ([1.0, 1.0], [(0, 1, -1)], "negative lag"),
    ],
)
def test_what_is_no_graph_is_refused(cost_s: list[float], edges: list[tuple[int, int, int]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        Graph.of(cost_s, edges)


def test_new_costs_are_checked_too() -> None:
    with pytest.raises(InputError, match="costs nan s"):
        chain().with_costs(np.array([1.0, math.nan, 1.0]))
    with pytest.raises(InputError, match="needs as many costs, not 2"):
        chain().with_costs(np.array([1.0, 1.0]))


@pytest.mark.parametrize("tail", [0, 3])
def test_a_cycle_is_named(tail: int) -> None:
    labels = ["a", "b", "c", "d"]
    graph = Graph.of([1.0] * 4, [(0, 1, 0), (1, 2, 0), (2, 1, 0), (tail, 2, 0), (2, 3 - tail, 1)], labels=labels)
    for ask in (longest_path, steady_state):
        with pytest.raises(InputError, match=r"cycle.*(b → c → b|c → b → c)"):
            ask(graph)


def test_without_a_lagged_edge_there_is_no_steady_state() -> None:
    with pytest.raises(InputError, match="no edge into a later iteration"):
        steady_state(Graph.of([1.0, 1.0], [(0, 1, 0)]))


def test_numba_is_not_imported_for_a_small_graph() -> None:
    code = (
        "import sys\n"
        "from stallwise.model.step.graph import Graph\n"
        "from stallwise.model.step.paths import longest_path\n"
        "longest_path(Graph.of([1.0, 2.0], [(0, 1, 0)])); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)
