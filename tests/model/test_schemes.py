"""Schemes that schedule themselves: hand cases, known schemes as their limits, and the physical laws."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError, UnknownNameError
from stallwise.model.exchange._messages import CollectivePrices
from stallwise.model.exchange._schemes import horovod, priority
from stallwise.model.exchange.collectives import Sparse, Wire
from stallwise.model.exchange.fabric import Fabric, link_of_rate
from stallwise.model.exchange.merge import Exchange, gradients_of
from stallwise.model.exchange.overlap import FRAMEWORKS, Overlap, Scheme, framework, plan
from stallwise.model.step.iteration import LoaderSetup
from stallwise.model.step.prediction import alone, predict_step
from stallwise.workload.layers import Layer, LayerTrace
from tests.model.traces import latencies, layer_traces, line, lines, per_byte

near = pytest.approx
NEW: tuple[Scheme, ...] = ("horovod", "p3", "bytescheduler", "hybrid", "local-sgd")
# Whose messages do not depend on prices: a network changes costs, never edges.
FIXED: tuple[Scheme, ...] = ("hybrid", "local-sgd")


def two_links(exchange: Exchange, scale: float = 0.1) -> CollectivePrices:
    """A node link ten times as quick as the network."""
    inside = CollectivePrices(all_reduce=lambda size: scale * exchange(size))
    wire = Wire(latency_s=exchange(0) / 2, s_per_byte=exchange(1) - exchange(0))
    return CollectivePrices(all_reduce=exchange, shard=inside, replicas=exchange, wire=wire, ranks=8)


def step_s(trace: LayerTrace, exchange: Exchange, overlap: Overlap) -> float:
    return predict_step(trace, two_links(exchange), overlap).step_s


def compute_s(trace: LayerTrace) -> float:
    return trace.forward_s + trace.backward_s + trace.update_s


@given(layer_traces(data=True), lines, st.sampled_from(NEW), st.integers(1, 3))
def test_never_faster_than_without_exchange(trace: LayerTrace, exchange: Exchange, scheme: Scheme, passes: int) -> None:
    trace = replace(trace, read_s=0.0, copy_s=0.0)
    overlap = Overlap(scheme=scheme, accumulate=passes, bucket_bytes=4_000_000)
    found = predict_step(trace, two_links(exchange), overlap)
    free = predict_step(trace, alone, overlap)
    assert found.step_s >= free.step_s * (1 - 1e-9)
    updates = passes if scheme == "local-sgd" else 1
    assert free.step_s == near(
        passes * (trace.forward_s + trace.backward_s) + updates * trace.update_s, rel=1e-9, abs=1e-12
    )
    assert found.step_s >= max((sum(m.seconds for m in found.messages if m.channel == "network")), 0) * (1 - 1e-9)
    assert found.split.step_s == near(found.step_s, rel=1e-9, abs=1e-12)


@given(layer_traces(), latencies, per_byte, st.floats(0, 1), st.floats(0, 1), st.sampled_from(FIXED))
def test_a_better_network_is_never_slower(
    trace: LayerTrace, a: float, b: float, less_a: float, less_b: float, scheme: Scheme
) -> None:
    overlap = Overlap(scheme=scheme, bucket_bytes=4_000_000)
    assert step_s(trace, line(a * less_a, b * less_b), overlap) <= step_s(trace, line(a, b), overlap) * (1 + 1e-9)


@given(layer_traces(), per_byte, st.floats(0, 1), st.integers(1, 50_000_000))
def test_more_bandwidth_is_never_slower_for_slices(trace: LayerTrace, b: float, less: float, size: int) -> None:
    """Without start-up times the channel is never idle while something is ready, whatever the order: no later end."""
    overlap = Overlap(scheme="p3", slice_bytes=size)
    whole = Overlap(scheme="wfbp")
    assert step_s(trace, line(0, b * less), overlap) <= step_s(trace, line(0, b), whole) * (1 + 1e-9)


@given(layer_traces(), lines, st.integers(1, 50_000_000))
def test_slices_never_beat_the_ideal(trace: LayerTrace, exchange: Exchange, size: int) -> None:
    for scheme in ("p3", "bytescheduler"):
        sliced = step_s(trace, exchange, Overlap(scheme=scheme, slice_bytes=size))
        assert sliced >= step_s(trace, exchange, Overlap(scheme="p3-ideal")) * (1 - 1e-9)


def test_the_lowest_layer_goes_first_and_hides_in_the_next_forward() -> None:
    """Three layers, 10 ms forward and 10 ms backward each, 30 MB each at 1 ms/MB, slices of 10 MB.

    Backward ends layer 2 at 10 ms (of backward), 1 at 20, 0 at 30. Channel: one slice of 2 (10-20), then layer 1 is
    ready: one slice (20-30), then layer 0: all three (30-60), then 1's other two (60-80), then 2's (80-100). The next
    forward: 0 waits until 60, 1 until 80, 2 until 100, ends at 110, so a step takes 110 ms. WFBP: all 90 ms are sent
    by 100, then 30 ms of forward: 130.
    """
    layer = Layer(name="", forward_s=0.010, backward_s=0.010, gradient_bytes=30_000_000)
    trace = LayerTrace(layers=(layer,) * 3, source="made up")
    cost = line(0, 1e-3 / 1e6)
    overlap = Overlap(scheme="p3", slice_bytes=10_000_000)
    sent = [(m.layers[0], round(m.bytes / 1e6)) for m in plan(trace, cost, overlap).messages]
    assert sent == [(2, 10), (1, 10), (0, 30), (1, 20), (2, 20)]
    assert predict_step(trace, cost, overlap).step_s == near(0.110)
    assert predict_step(trace, cost, Overlap(scheme="wfbp")).step_s == near(0.130)
    # A start-up of 10 ms for every slice: nine of them cost more than they hide.
    assert predict_step(trace, line(0.010, 1e-9), overlap).step_s == near(0.010 + 9 * 0.020 + 0.010)
    assert predict_step(trace, line(0.010, 1e-9), Overlap(scheme="wfbp")).step_s == near(0.010 + 0.120 + 0.030)


@given(layer_traces(), lines)
def test_a_layers_update_comes_before_its_forward(trace: LayerTrace, exchange: Exchange) -> None:
    """Update spread over layers: with everything in one layer, p3 is exchange and update after backward."""
    layer = trace.layers[0]
    one = LayerTrace(layers=(layer,), source="made up", update_s=0.01)
    overlap = Overlap(scheme="p3", slice_bytes=layer.gradient_bytes)
    expected = layer.forward_s + layer.backward_s + 0.01 + exchange(layer.gradient_bytes)
    assert predict_step(one, exchange, overlap).step_s == near(expected)


@given(layer_traces(data=True), lines)
def test_horovod_that_fuses_nothing_and_never_sleeps_is_wfbp(trace: LayerTrace, exchange: Exchange) -> None:
    overlap = Overlap(scheme="horovod", fusion_bytes=0, cycle_s=0.0)
    assert step_s(trace, exchange, overlap) == near(step_s(trace, exchange, Overlap(scheme="wfbp")), rel=1e-9)


@given(layer_traces(), lines)
def test_horovod_with_one_cycle_per_backward_is_fused(trace: LayerTrace, exchange: Exchange) -> None:
    overlap = Overlap(scheme="horovod", fusion_bytes=10**12, cycle_s=max(trace.backward_s, 1e-6) * (1 + 1e-12))
    fused = step_s(trace, exchange, Overlap(scheme="fused"))
    assert step_s(trace, exchange, overlap) == near(fused, rel=1e-6, abs=1e-5)


def test_horovod_sends_at_ticks() -> None:
    """Four layers of 10 MB, ready every 4 ms, 1 ms/MB; a cycle of 5 ms, 25 MB fused at most.

    Tick 5: layer 3 (10 ms, until 15). The loop is busy until then; tick 15: layers 2, 1 are ready (8, 12), 20 MB until
    35. Then layer 0 alone until 45. Backward took 16, forward 4: the step is 49 ms.
    """
    layer = Layer(name="", forward_s=0.001, backward_s=0.004, gradient_bytes=10_000_000)
    trace = LayerTrace(layers=(layer,) * 4, source="made up")
    cost, gradients = line(0, 1e-3 / 1e6), gradients_of(trace)
    messages = horovod(gradients, cost, fusion_bytes=25_000_000, cycle_s=0.005)
    assert [(m.bytes / 1e6, m.not_before_s) for m in messages] == [(10, 0.005), (20, near(0.015)), (10, near(0.035))]
    overlap = Overlap(scheme="horovod", fusion_bytes=25_000_000, cycle_s=0.005)
    assert predict_step(trace, cost, overlap).step_s == near(0.049)
    smaller = horovod(gradients, cost, fusion_bytes=15_000_000, cycle_s=0.005)
    assert [m.bytes / 1e6 for m in smaller] == [10, 10, 10, 10]


@given(layer_traces(), st.builds(line, latencies.filter(bool), per_byte))
def test_a_cycle_is_waited_for_and_is_no_compute(trace: LayerTrace, exchange: Exchange) -> None:
    found = predict_step(trace, exchange, Overlap(scheme="horovod", cycle_s=0.02))
    assert found.split.compute_s == near(compute_s(trace), rel=1e-9, abs=1e-12)
    assert found.split.exchange_s >= 0


@given(layer_traces(), lines)
def test_hybrid_on_one_node_is_zero3_and_on_nodes_of_one_gpu_buckets(trace: LayerTrace, exchange: Exchange) -> None:
    size = 4_000_000
    overlap = Overlap(scheme="hybrid", bucket_bytes=size)
    one_node = CollectivePrices(all_reduce=exchange, shard=CollectivePrices(all_reduce=exchange), replicas=alone)
    zero3 = predict_step(trace, exchange, Overlap(scheme="zero3", bucket_bytes=size)).step_s
    assert predict_step(trace, one_node, overlap).step_s == near(zero3, rel=1e-9)
    single = CollectivePrices(all_reduce=exchange, shard=CollectivePrices(all_reduce=alone), replicas=exchange)
    buckets = predict_step(trace, exchange, Overlap(scheme="ddp", bucket_bytes=size, first_bucket_bytes=size)).step_s
    assert predict_step(trace, single, overlap).step_s == near(buckets, rel=1e-9)


def test_hybrid_moves_what_the_reference_says() -> None:
    """In the node 3 (g-1)/g M, through the NIC 2 (n-1)/n M; section 3.5 of the reference."""
    layer = Layer(name="", forward_s=0.001, backward_s=0.002, gradient_bytes=8_000_000)
    trace = LayerTrace(layers=(layer,) * 6, source="made up")
    fabric = Fabric(
        gpus_per_node=8,
        inside=link_of_rate(100e9, 0.0, "given"),
        between=link_of_rate(10e9, 0.0, "given"),
        algorithms=("ring",),
    )
    sent = plan(trace, fabric.prices(32), Overlap(scheme="hybrid", bucket_bytes=1)).messages
    total = trace.gradient_bytes
    inside = sum(m.seconds for m in sent if m.channel != "network")
    across = sum(m.seconds for m in sent if m.channel == "network")
    assert inside == near(3 * 7 / 8 * total / 100e9)
    assert across == near(2 * 3 / 4 * total / 10e9)


@given(layer_traces(), lines, st.integers(1, 6))
def test_local_sgd_is_its_formula(trace: LayerTrace, exchange: Exchange, passes: int) -> None:
    trace = replace(trace, update_s=0.003)
    overlap = Overlap(scheme="local-sgd", accumulate=passes, bucket_bytes=10**12)
    expected = passes * compute_s(trace) + exchange(trace.gradient_bytes)
    assert step_s(trace, exchange, overlap) == near(expected, rel=1e-9, abs=1e-12)
    if passes == 1:
        assert step_s(trace, exchange, overlap) == near(step_s(trace, exchange, Overlap(scheme="fused")), rel=1e-9)


def test_sparsified_exchange_is_the_published_formula() -> None:
    wire = Wire(latency_s=0.5e-3, s_per_byte=1e-8)
    topk, gtopk = (Sparse(kind=kind, density=0.001, select_s=0.0) for kind in ("topk", "gtopk"))
    size = 100_000_000.0
    assert topk.time_s(size, wire, 16) == near(4 * 0.5e-3 + 2 * 15 * 0.001 * size * 1e-8)
    assert gtopk.time_s(size, wire, 16) == near(2 * 4 * 0.5e-3 + 4 * 4 * 0.001 * size * 1e-8)
    # With selection: 25 M elements, log2 of them 24.6.
    slow = Sparse(kind="topk", density=0.001, select_s=2.19e-10)
    assert slow.selection_s(size) == near(2.19e-10 * 25e6 * math.log2(25e6))
    assert gtopk.time_s(size, wire, 1) == 0.0


@given(st.integers(2, 4096), st.floats(1e-5, 1e-2), latencies, per_byte)
def test_gtopk_wins_where_many_exchange(ranks: int, density: float, a: float, b: float) -> None:
    """2 (P-1) against 4 log2 P: with equal start-ups aside, gTop-k moves less from 8 ranks on."""
    wire = Wire(latency_s=a, s_per_byte=b)
    top, gtop = (Sparse(kind=kind, density=density).exchange(wire, ranks) for kind in ("topk", "gtopk"))
    assert (gtop.s_per_byte <= top.s_per_byte * (1 + 1e-9)) == (
        2 * math.log2(ranks) <= (ranks - 1) * (1 + 1e-9)
    ) or b == 0


def test_sparse_steps() -> None:
    layer = Layer(name="", forward_s=0.010, backward_s=0.020, gradient_bytes=25_000_000)
    trace = LayerTrace(layers=(layer,) * 4, source="made up")
    wire = Wire(latency_s=0.0, s_per_byte=1e-8)
    prices = CollectivePrices(all_reduce=line(0, 2e-8), wire=wire, ranks=4)
    sparse = Sparse(kind="gtopk", density=0.01, select_s=0.0)
    dense = predict_step(trace, prices, Overlap(scheme="fused")).step_s
    thin = predict_step(trace, prices, Overlap(scheme="fused", sparse=sparse)).step_s
    assert dense == near(0.120 + 2.0)
    assert thin == near(0.120 + 4 * 2 * 0.01 * 1e8 * 1e-8)
    assert predict_step(trace, alone, Overlap(scheme="fused", sparse=sparse)).step_s == near(0.120)
    with pytest.raises(InputError, match="only the cost of an all-reduce is known"):
        predict_step(trace, line(0, 1e-8), Overlap(scheme="fused", sparse=sparse))
    with pytest.raises(InputError, match="zero3"):
        Overlap(scheme="zero3", sparse=sparse)
    with pytest.raises(InputError, match="density"):
        Sparse(kind="topk", density=0.0)


@given(layer_traces(data=True), lines)
def test_frameworks_are_edges_of_the_same_graph(trace: LayerTrace, exchange: Exchange) -> None:
    prices = two_links(exchange)
    found = {
        name: predict_step(trace, prices, preset.overlap, LoaderSetup(workers=1, copy=preset.copy)).step_s
        for name, preset in FRAMEWORKS.items()
    }
    # Formulas of the reference, 1.2: everything serial but reading; wait-free without and with the copy in front.
    each = math.fsum(exchange(layer.gradient_bytes) for layer in trace.layers)
    assert found["cntk"] == near(max(trace.read_s, trace.copy_s + compute_s(trace) + each), rel=1e-9, abs=1e-12)
    wfbp = predict_step(replace(trace, read_s=0.0, copy_s=0.0), exchange, Overlap(scheme="wfbp")).step_s
    assert found["caffe-mpi"] == near(max(trace.read_s, trace.copy_s, wfbp), rel=1e-9, abs=1e-12)
    assert found["mxnet"] == found["tensorflow"]
    assert found["caffe-mpi"] <= found["cntk"] * (1 + 1e-9)


def test_wrong_input_is_named() -> None:
    gradients = gradients_of(
        LayerTrace(layers=(Layer(name="x", forward_s=0, backward_s=1, gradient_bytes=1),), source="x")
    )
    with pytest.raises(InputError, match="slice"):
        priority(gradients, line(0, 1), slice_bytes=0)
    with pytest.raises(InputError, match="cycle"):
        horovod(gradients, line(0, 1), fusion_bytes=1, cycle_s=-1)
    with pytest.raises(UnknownNameError, match="mxnet"):
        framework("mxnt")
    trace = LayerTrace(layers=(Layer(name="x", forward_s=0, backward_s=1, gradient_bytes=1),), source="x")
    with pytest.raises(InputError, match="inside a node and the one between"):
        predict_step(trace, line(0, 1), Overlap(scheme="hybrid"))
