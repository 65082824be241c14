"""Schemes as edge sets: the graph's steady state equals the closed recursions, and the physical laws hold."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError, UnknownNameError
from stallwise.model.exchange import merge
from stallwise.model.exchange._messages import CollectivePrices
from stallwise.model.exchange.merge import Exchange
from stallwise.model.exchange.overlap import FP16, SCHEMES, Overlap, Scheme, plan
from stallwise.model.step.graph import NodeKind
from stallwise.model.step.iteration import LoaderSetup, iteration_graph, rescaled
from stallwise.model.step.paths import steady_state
from stallwise.model.step.prediction import alone, predict_step
from stallwise.workload.layers import Layer, LayerTrace
from tests.model.traces import channel_end_s, latencies, layer_traces, line, lines, per_byte

# Hybrid sharding needs two links; test_schemes.py gives it both.
schemes = st.sampled_from([scheme for scheme in SCHEMES if scheme != "hybrid"])
# Merges that do not look at prices: with them a network changes costs, never edges.
FIXED: tuple[Scheme, ...] = ("none", "fused", "wfbp", "ddp", "zero1", "zero2", "shard-grad-op", "zero3", "dear")
near = pytest.approx


def compute_s(trace: LayerTrace) -> float:
    return trace.forward_s + trace.backward_s + trace.update_s


def step_s(trace: LayerTrace, exchange: Exchange | None, scheme: Scheme) -> float:
    return predict_step(trace, exchange, Overlap(scheme=scheme, bucket_bytes=4_000_000)).step_s


@given(layer_traces(data=True), lines)
def test_the_graph_equals_the_formulas(trace: LayerTrace, exchange: Exchange) -> None:
    """Section 1.2 of the reference: serial, fused, WFBP and merged, with reading beside and copying before compute."""
    gradients = merge.gradients_of(trace)
    base = trace.copy_s + trace.forward_s + trace.update_s
    each = [exchange(size) for size in gradients.bytes]
    expected: dict[Scheme, float] = {
        "none": base + trace.backward_s + math.fsum(each),
        "fused": base + trace.backward_s + exchange(trace.gradient_bytes),
        "wfbp": base + channel_end_s(gradients, merge.each_alone(gradients), exchange),
        "mg-wfbp": base + channel_end_s(gradients, merge.mg_wfbp(gradients, exchange), exchange),
        "optimal": base + channel_end_s(gradients, merge.optimal_merge(gradients, exchange), exchange),
        "ddp": base
        + channel_end_s(
            gradients, merge.ddp_buckets(gradients, first_bytes=merge.MIB, bucket_bytes=4_000_000), exchange
        ),
    }
    for scheme, serial in expected.items():
        # A later backward may end after the last message when messages cost nothing.
        whole = max(serial, base + trace.backward_s)
        assert step_s(trace, exchange, scheme) == near(max(trace.read_s, whole), rel=1e-9, abs=1e-12)
    ideal = max(trace.read_s, compute_s(trace) + trace.copy_s, math.fsum(each))
    assert step_s(trace, exchange, "p3-ideal") == near(ideal, rel=1e-9, abs=1e-12)


@given(layer_traces(data=True), lines)
def test_dear_equals_its_recursion(trace: LayerTrace, exchange: Exchange) -> None:
    """Reduce-scatters hide in backward, all-gathers 1 … L in the next forward: forward l waits for its own."""
    trace = replace(trace, read_s=0.0, copy_s=0.0)
    gradients = merge.gradients_of(trace)
    half = [exchange(layer.gradient_bytes) / 2 for layer in trace.layers]
    forward = gathered = 0.0
    for layer, cost in zip(trace.layers, half, strict=True):
        gathered += cost
        forward = max(forward, gathered) + layer.forward_s
    # The channel is busy with gathers until they end, so a scatter may have to wait for them too.
    end = gathered - forward
    for i, layer in enumerate(gradients.layers):
        end = max(end, gradients.ready_s[i]) + half[layer]
    found = predict_step(trace, exchange, Overlap(scheme="dear", bucket_bytes=1)).step_s
    assert found == near(forward + max(end, trace.backward_s) + trace.update_s, rel=1e-9, abs=1e-12)


@given(layer_traces(data=True), schemes, lines)
def test_the_split_and_the_critical_path_add_up_to_the_step(
    trace: LayerTrace, scheme: Scheme, exchange: Exchange
) -> None:
    found = predict_step(trace, exchange, Overlap(scheme=scheme))
    assert found.split.step_s == near(found.step_s, rel=1e-9, abs=1e-12)
    assert min(found.split.compute_s, found.split.exchange_s, found.split.copy_s, found.split.read_s) >= 0
    assert found.split.compute_s == near(compute_s(trace), rel=1e-9, abs=1e-12)
    assert math.fsum(leg.seconds for leg in found.path) == near(found.laps * found.step_s, rel=1e-9, abs=1e-12)
    assert found.binding


@given(layer_traces(), latencies, per_byte, st.floats(0, 1), st.floats(0, 1), st.sampled_from(FIXED))
def test_a_better_network_is_never_slower(
    trace: LayerTrace, a: float, b: float, less_a: float, less_b: float, scheme: Scheme
) -> None:
    assert step_s(trace, line(a * less_a, b * less_b), scheme) <= step_s(trace, line(a, b), scheme) * (1 + 1e-9)


@given(layer_traces(data=True), lines, schemes, st.integers(min_value=1, max_value=64))
def test_speed_up_is_at_most_n(trace: LayerTrace, exchange: Exchange, scheme: Scheme, gpus: int) -> None:
    trace = replace(trace, read_s=0.0)
    if compute_s(trace) + trace.copy_s == 0:
        return
    single_s = predict_step(trace, alone, Overlap(scheme=scheme)).step_s
    assert gpus * single_s / predict_step(trace, exchange, Overlap(scheme=scheme)).step_s <= gpus * (1 + 1e-9)


@given(layer_traces(), lines)
def test_wfbp_exposes_at_least_the_first_and_at_most_all(trace: LayerTrace, exchange: Exchange) -> None:
    exposed = predict_step(trace, exchange, Overlap(scheme="wfbp")).split.exchange_s
    each = [exchange(layer.gradient_bytes) for layer in trace.layers]
    assert each[0] - 1e-9 <= exposed <= math.fsum(each) + 1e-9


@given(layer_traces(max_layers=15), lines)
def test_the_optimum_is_at_least_as_fast_as_every_all_reduce_scheme(trace: LayerTrace, exchange: Exchange) -> None:
    best = step_s(trace, exchange, "optimal")
    for scheme in ("none", "fused", "wfbp", "ddp", "mg-wfbp"):
        assert best <= step_s(trace, exchange, scheme) * (1 + 1e-9)


@given(layer_traces(), lines, schemes)
def test_half_the_bytes_are_never_slower_and_start_ups_stay(
    trace: LayerTrace, exchange: Exchange, scheme: Scheme
) -> None:
    whole = plan(trace, exchange, Overlap(scheme=scheme))
    half = plan(trace, exchange, Overlap(scheme=scheme, compression=FP16))
    reduced = sum(message.bytes for message in whole.messages if message.what != "all-gather")
    assert sum(message.bytes for message in half.messages if message.what != "all-gather") == near(reduced / 2)
    if scheme in FIXED:
        assert len(whole.messages) == len(half.messages)
        assert half.exchange_s <= whole.exchange_s + 1e-12


@pytest.mark.parametrize(
    ("scheme", "units"), [("zero1", 2), ("zero2", 2), ("shard-grad-op", 2), ("dear", 2), ("zero3", 3)]
)
def test_sharded_schemes_send_what_zero_says(scheme: Scheme, units: int) -> None:
    trace = even(layers=6)
    sent = plan(trace, line(0, 1e-9), Overlap(scheme=scheme, bucket_bytes=1_000_000)).messages
    assert sum(message.bytes for message in sent) == units * trace.gradient_bytes
    # A ring's reduce-scatter or all-gather moves half of what its all-reduce moves.
    assert sum(message.seconds for message in sent) == near(units / 2 * trace.gradient_bytes * 1e-9)


def test_accumulation_scatters_gradients_of_every_pass_only_where_they_are_sharded() -> None:
    trace, passes = even(layers=4), 3
    sent = {
        scheme: len(plan(trace, line(0, 1e-9), Overlap(scheme=scheme, bucket_bytes=1, accumulate=passes)).messages)
        for scheme in ("ddp", "zero1", "zero2", "zero3")
    }
    assert sent["ddp"] == 3  # two layers reach the first bucket's 1 MiB, then one each
    assert sent["zero1"] == 4 + 4
    assert sent["zero2"] == 4 + 4 * passes
    assert sent["zero3"] == 3 * 4 * passes


@given(layer_traces(), lines, st.integers(min_value=1, max_value=4))
def test_accumulated_passes_add_compute_and_no_exchange(trace: LayerTrace, exchange: Exchange, passes: int) -> None:
    one = predict_step(trace, exchange, Overlap(scheme="wfbp"))
    many = predict_step(trace, exchange, Overlap(scheme="wfbp", accumulate=passes))
    extra = (passes - 1) * (trace.forward_s + trace.backward_s)
    assert many.step_s == near(one.step_s + extra, rel=1e-9, abs=1e-12)


def even(layers: int = 8, size: int = 1_000_000, **extra: float) -> LayerTrace:
    return LayerTrace(
        layers=tuple(Layer(name=f"l{i}", forward_s=0.01, backward_s=0.02, gradient_bytes=size) for i in range(layers)),
        source="made up",
        **extra,
    )


@pytest.mark.parametrize(
    ("loading", "expected_s"),
    [
        (LoaderSetup(workers=0), 0.30 + 0.05 + 0.24),
        (LoaderSetup(workers=1), 0.30),
        (LoaderSetup(workers=2), 0.05 + 0.24),
        (LoaderSetup(workers=2, copy="engine"), 0.24),
        (LoaderSetup(workers=1, copy="reader"), 0.30 + 0.05),
        (LoaderSetup(workers=1, prefetch=1, copy="reader"), 0.30 + 0.05),
        (LoaderSetup(workers=4, storage_sharers=2), 0.60),
        (LoaderSetup(workers=2, link_sharers=4), 0.20 + 0.24),
        (LoaderSetup(workers=2, copy="engine", link_sharers=8), 0.40),
    ],
)
def test_loading(loading: LoaderSetup, expected_s: float) -> None:
    trace = even(read_s=0.30, copy_s=0.05)
    assert predict_step(trace, alone, Overlap(), loading).step_s == near(expected_s)


@given(layer_traces(data=True), lines, st.integers(1, 4), st.sampled_from(["inline", "engine", "reader"]), schemes)
def test_one_gpu_stands_for_equal_ones(
    trace: LayerTrace, exchange: Exchange, gpus: int, copy: str, scheme: Scheme
) -> None:
    loading = LoaderSetup(copy=copy, storage_sharers=gpus, link_sharers=1)  # type: ignore[arg-type]
    planned = plan(trace, exchange, Overlap(scheme=scheme))
    alike = steady_state(iteration_graph(trace, planned, loading, gpus=(1.0,) * gpus)).period_s
    if copy == "reader" and gpus > 1:  # the copies of different GPUs overlap with each other's reads
        assert alike <= steady_state(iteration_graph(trace, planned, loading)).period_s * (1 + 1e-9)
    else:
        assert alike == near(steady_state(iteration_graph(trace, planned, loading)).period_s, rel=1e-9, abs=1e-12)


def test_a_straggler_sets_the_pace() -> None:
    trace = even()
    slow = predict_step(trace, line(0, 1e-10), Overlap(), gpus=(1.0, 1.5, 1.0))
    alone_slow = predict_step(rescaled(trace, compute=1.5), line(0, 1e-10), Overlap())
    assert slow.step_s == near(alone_slow.step_s)


def test_more_workers_are_never_slower() -> None:
    trace = even(read_s=1.0)
    steps = [predict_step(trace, alone, None, LoaderSetup(workers=workers)).step_s for workers in range(1, 8)]
    assert steps == sorted(steps, reverse=True)
    assert steps[1] == near(0.5)


@given(layer_traces(data=True), lines, st.floats(1.0, 2.0))
def test_bounds_hold_the_prediction(trace: LayerTrace, exchange: Exchange, factor: float) -> None:
    found = predict_step(trace, exchange)
    low, high = found.bounds_s({NodeKind.EXCHANGE: (1 / factor, factor), NodeKind.BACKWARD: (1 / factor, factor)})
    assert low <= found.step_s * (1 + 1e-9)
    assert high >= found.step_s * (1 - 1e-9)


def test_the_binding_edge_is_named() -> None:
    trace = even()
    assert "compute" in predict_step(trace, alone).binding
    network = predict_step(trace, line(0, 1e-6), Overlap(scheme="wfbp")).binding
    assert "network: backward l7 → all-reduce l7; from there 8 of 8 messages" in network
    assert "reading" in predict_step(replace(trace, read_s=5.0), alone).binding


def test_measured_exchange_times_are_used_as_they_are() -> None:
    layers = tuple(replace(layer, exchange_s=0.05) for layer in even().layers)
    trace = LayerTrace(layers=layers, source="log")
    assert predict_step(trace, None, Overlap(scheme="none")).step_s == near(0.24 + 8 * 0.05)
    for overlap in (Overlap(scheme="ddp"), Overlap(scheme="wfbp", compression=FP16)):
        with pytest.raises(InputError, match="Use a known network"):
            predict_step(trace, None, overlap)


def test_what_cannot_be_predicted_says_so() -> None:
    with pytest.raises(InputError, match="'l7' of made up has no measured exchange"):
        predict_step(even(), None, Overlap(scheme="wfbp"))
    unknown = LayerTrace.of(
        [Layer(name="x", forward_s=0, backward_s=1, gradient_bytes=0, exchange_s=1.0)], source="log"
    )
    with pytest.raises(InputError, match="size of its gradient is not known"):
        predict_step(unknown, line(0, 1e-9))
    with pytest.raises(InputError, match="would take nan s"):
        predict_step(even(), lambda _: math.nan)
    with pytest.raises(InputError, match=r"would take -1\.0 s"):
        predict_step(
            even(), CollectivePrices(all_reduce=line(0, 0), all_gather=lambda _: -1.0), Overlap(scheme="zero3")
        )
    with pytest.raises(UnknownNameError, match="Did you mean wfbp"):
        Overlap(scheme="wfpb")  # type: ignore[arg-type]
    for wrong in ({"compression": 0.0}, {"compression": 2.0}, {"accumulate": 0}):
        with pytest.raises(InputError):
            Overlap(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="workers must be at least 0"):
        LoaderSetup(workers=-1)
    with pytest.raises(InputError, match="storage_sharers must be 1 or 3"):
        predict_step(even(), alone, None, LoaderSetup(storage_sharers=2), gpus=(1.0,) * 3)


def test_a_frozen_network_sends_nothing() -> None:
    trace = LayerTrace.of([Layer(name="x", forward_s=1, backward_s=1, gradient_bytes=0)], source="frozen")
    for scheme in SCHEMES:
        assert predict_step(trace, line(1, 1), Overlap(scheme=scheme)).step_s == near(2.0)  # type: ignore[arg-type]
