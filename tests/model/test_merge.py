"""Merges: torch's rule from torch, the published greedy from its authors' text, the optimum by brute force."""

import itertools
from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.exchange import merge
from stallwise.model.exchange.merge import Exchange, Gradients, Merge
from stallwise.workload.layers import LayerTrace
from tests.conftest import lacks
from tests.model.traces import channel_end_s, latencies, layer_traces, line, lines, per_byte


def exposed_s(backward_s: Sequence[float], exchange_s: Sequence[float]) -> float:
    """WFBP's exchange that backward does not hide, in closed form; both sequences in forward order.

    t_c^no = max over l of (t_c^1 + … + t_c^l) - (t_b^1 + … + t_b^(l-1)), hence t_c^1 ≤ t_c^no ≤ Σ t_c.
    """
    sent = accumulate(exchange_s)
    computed = accumulate(backward_s, initial=0.0)
    return max(c - b for c, b in zip(sent, computed, strict=False))


def all_merges(gradients: Gradients) -> list[Merge]:
    inner = range(1, len(gradients))
    return [
        tuple(range(a, b) for a, b in itertools.pairwise([0, *cuts, len(gradients)]))
        for count in range(len(gradients))
        for cuts in itertools.combinations(inner, count)
    ]


def published_greedy(gradients: Gradients, a: float, b: float) -> Merge:
    """The rule of graph.md 3.2, literally: layers numbered from 0, walked from the last, everything recomputed."""
    count = len(gradients)
    sizes = [float(size) for size in gradients.bytes][::-1]
    ready = list(gradients.ready_s)[::-1]
    cost = [a + b * size for size in sizes]
    merged = set()

    def starts() -> list[float]:
        at = [0.0] * count
        at[-1] = ready[-1]
        for layer in range(count - 2, -1, -1):
            at[layer] = max(at[layer + 1] + cost[layer + 1], ready[layer])
        return at

    begin = starts()
    for layer in range(count - 1, 0, -1):
        next_ready = ready[layer - 1]
        if next_ready < begin[layer] + cost[layer] and (begin[layer] > next_ready or next_ready - begin[layer] < a):
            sizes[layer - 1] += sizes[layer]
            cost[layer], cost[layer - 1] = 0.0, a + b * sizes[layer - 1]
            merged.add(layer)
            begin = starts()
    cuts = [0, *(count - layer for layer in range(count - 1, 0, -1) if layer not in merged), count]
    return tuple(range(x, y) for x, y in itertools.pairwise(cuts))


@given(layer_traces(max_layers=9), lines)
def test_the_optimum_is_the_best_of_all_merges(trace: LayerTrace, exchange: Exchange) -> None:
    gradients = merge.gradients_of(trace)
    best = min(channel_end_s(gradients, runs, exchange) for runs in all_merges(gradients))
    found = channel_end_s(gradients, merge.optimal_merge(gradients, exchange), exchange)
    assert found == pytest.approx(best, rel=1e-12, abs=1e-15)


@given(layer_traces(max_layers=9), st.lists(st.floats(min_value=0, max_value=1), min_size=4, max_size=4))
def test_the_optimum_needs_no_straight_line(trace: LayerTrace, steps: list[float]) -> None:
    """Any cost of a message, even one that falls with size."""

    def exchange(size: float) -> float:
        return steps[int(size) % 4]

    gradients = merge.gradients_of(trace)
    best = min(channel_end_s(gradients, runs, exchange) for runs in all_merges(gradients))
    found = channel_end_s(gradients, merge.optimal_merge(gradients, exchange), exchange)
    assert found == pytest.approx(best, rel=1e-12, abs=1e-15)


@given(layer_traces(max_layers=40), lines, st.integers(min_value=1, max_value=10**8))
def test_no_other_merge_beats_the_optimum(trace: LayerTrace, exchange: Exchange, bucket: int) -> None:
    gradients = merge.gradients_of(trace)
    best = channel_end_s(gradients, merge.optimal_merge(gradients, exchange), exchange)
    for runs in (
        merge.each_alone(gradients),
        merge.all_in_one(gradients),
        merge.mg_wfbp(gradients, exchange),
        merge.ddp_buckets(gradients, first_bytes=bucket, bucket_bytes=bucket),
    ):
        assert best <= channel_end_s(gradients, runs, exchange) * (1 + 1e-12)


@given(layer_traces(max_layers=20), st.floats(min_value=1e-6, max_value=0.02), per_byte)
def test_mg_wfbp_is_the_published_rule(trace: LayerTrace, a: float, b: float) -> None:
    gradients = merge.gradients_of(trace)
    ours, theirs = merge.mg_wfbp(gradients, line(a, b)), published_greedy(gradients, a, b)
    if ours != theirs:  # only where a wait and a saving differ by rounding
        ends = [channel_end_s(gradients, runs, line(a, b)) for runs in (ours, theirs)]
        close = [
            abs(gradients.ready_s[run.stop] - gradients.ready_s[run.start] - a) < 1e-9
            for run in ours
            if run.stop < len(gradients)
        ]
        assert any(close) or ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_mg_wfbp_is_not_the_optimum() -> None:
    """Waits of less than a, one after the other, leave the channel idle: the greedy joins everything."""
    gradients = Gradients(tuple(range(19, -1, -1)), tuple(0.9e-3 * (i + 1) for i in range(20)), (500_000,) * 20)
    exchange = line(1e-3, 1e-9)
    greedy, best = merge.mg_wfbp(gradients, exchange), merge.optimal_merge(gradients, exchange)
    assert len(greedy) == 1
    assert channel_end_s(gradients, greedy, exchange) > 1.1 * channel_end_s(gradients, best, exchange)


def test_small_messages_are_always_joined_where_asked() -> None:
    gradients = Gradients((2, 1, 0), (0.0, 1.0, 2.0), (100, 100, 100_000))
    exchange = line(1e-6, 1e-9)
    assert len(merge.mg_wfbp(gradients, exchange)) == 3
    assert [len(run) for run in merge.mg_wfbp(gradients, exchange, always_below_bytes=32768)] == [3]


@settings(deadline=None)  # the first example imports torch
@given(
    st.lists(st.integers(min_value=1, max_value=300), min_size=1, max_size=40), st.integers(1, 400), st.integers(1, 900)
)
def test_ddp_buckets_are_torch_s(elements: list[int], first: int, cap: int) -> None:
    try:
        import torch
        from torch import distributed
    except ImportError:
        lacks("torch")
    tensors = [torch.empty(count) for count in elements]
    order = list(range(len(tensors)))
    theirs, _ = distributed._compute_bucket_assignment_by_size(tensors, [first, cap], [False] * len(tensors), order)
    gradients = Gradients(tuple(reversed(order)), tuple(map(float, order)), tuple(4 * count for count in elements))
    ours = merge.ddp_buckets(gradients, first_bytes=first, bucket_bytes=cap)
    assert [list(run) for run in ours] == theirs


def test_ddp_s_limits_are_torch_s() -> None:
    try:
        from torch import distributed
        from torch.nn.parallel.distributed import _DEFAULT_BUCKET_CAP_MB
    except ImportError:
        lacks("torch")
    assert merge.DDP_FIRST_BYTES == distributed._DEFAULT_FIRST_BUCKET_BYTES
    assert merge.DDP_BUCKET_BYTES == _DEFAULT_BUCKET_CAP_MB * 1024 * 1024


def test_a_bucket_must_hold_something() -> None:
    with pytest.raises(InputError, match="0 bytes"):
        merge.ddp_buckets(Gradients((0,), (0.0,), (4,)), bucket_bytes=0)


@given(layer_traces(max_layers=20), lines)
def test_every_merge_sends_everything_once(trace: LayerTrace, exchange: Exchange) -> None:
    gradients = merge.gradients_of(trace)
    for runs in (
        merge.each_alone(gradients),
        merge.all_in_one(gradients),
        merge.ddp_buckets(gradients),
        merge.mg_wfbp(gradients, exchange),
        merge.optimal_merge(gradients, exchange),
    ):
        assert [i for run in runs for i in run] == list(range(len(gradients)))
        assert sum(merge.message_bytes(gradients, runs)) == trace.gradient_bytes


@given(layer_traces(max_layers=30), latencies, per_byte)
def test_the_closed_form_of_exposed_exchange(trace: LayerTrace, a: float, b: float) -> None:
    gradients = merge.gradients_of(trace)
    each = [line(a, b)(layer.gradient_bytes) for layer in trace.layers]
    exposed = exposed_s([layer.backward_s for layer in trace.layers], each)
    end = channel_end_s(gradients, merge.each_alone(gradients), line(a, b))
    assert exposed == pytest.approx(end - trace.backward_s, abs=1e-9)
    assert each[0] - 1e-12 <= exposed <= sum(each) + 1e-12
