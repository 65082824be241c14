"""Macro features: the closed form is the graph's, the fit finds what was put in, and families are really held out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.exchange.macro import (
    MacroFeatures,
    MacroFit,
    MeasuredStall,
    family_errors,
    fit_macro,
    held_out,
)
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.prediction import predict_step
from stallwise.workload.families import NETWORKS, network
from stallwise.workload.layers import Layer, LayerTrace
from tests.model.traces import latencies, line, per_byte, seconds, sizes

near = pytest.approx
TRUE = MacroFit(constant_s=1e-3, per_tensor_s=20e-6, per_layer_s=50e-6, per_bucket_s=4e-4, per_byte_s=1e-8)


def even_stall_s(layers: int, backward_s: float, exchange_s: float) -> float:
    """Exposed exchange of an even network, in closed form; `exchange_s` is the sum of its `layers` messages."""
    return max(exchange_s / layers, exchange_s - backward_s * (layers - 1) / layers)


@given(st.integers(1, 40), seconds, sizes, latencies, per_byte)
def test_the_closed_form_is_the_graphs(layers: int, backward_s: float, size: int, a: float, b: float) -> None:
    layer = Layer(name="", forward_s=0.001, backward_s=backward_s, gradient_bytes=size)
    trace = LayerTrace(layers=(layer,) * layers, source="even")
    exposed = predict_step(trace, line(a, b), Overlap(scheme="wfbp")).split.exchange_s
    total = layers * (a + b * size)
    assert even_stall_s(layers, layers * backward_s, total) == near(exposed, rel=1e-6, abs=1e-9)


@given(st.integers(1, 40), seconds, latencies, per_byte, st.integers(1, 10))
def test_more_tensors_or_bytes_never_stall_less(layers: int, backward_s: float, a: float, b: float, more: int) -> None:
    one = even_stall_s(layers, backward_s, layers * a + 1e6 * b)
    assert even_stall_s(layers, backward_s, (layers + more) * a + 1e6 * b) >= one
    assert even_stall_s(layers, backward_s, layers * a + more * 1e6 * b) >= one


def _buckets(sizes_bytes: list[int]) -> tuple[int, ...]:
    found = [0]
    for size in sizes_bytes[::-1]:
        if found[-1] >= (65_536 if len(found) == 1 else 1_638_400):
            found.append(0)
        found[-1] += size
    return tuple(found)


def seen(truth: MacroFit) -> list[MeasuredStall]:
    """Every network as it would be under `truth`, at 1/16 of its size."""
    found = []
    for name in NETWORKS:
        made = network(name)
        sizes_bytes = [max(1, tensor.elements // 16) * 4 for tensor in made.tensors]
        buckets = _buckets(sizes_bytes)
        features = MacroFeatures(
            tensors=len(sizes_bytes),
            layers=made.layers,
            bucket_bytes=buckets,
            bucket_ready=tuple((place + 1) / len(buckets) for place in range(len(buckets))),
            bucket_tensors=tuple(len(sizes_bytes) * (place + 1) // len(buckets) for place in range(len(buckets))),
            bucket_layers=tuple(made.layers * (place + 1) // len(buckets) for place in range(len(buckets))),
            backward_s=made.macs * 2 * 8 / 5e12,
        )
        found.append(
            MeasuredStall(
                network=name, family=made.family, features=features, stall_s=truth.stall_s(features), step_s=0.1
            )
        )
    return found


@pytest.mark.parametrize("per_byte_s", [2e-8, 1e-8, 1e-9])
def test_the_fit_finds_what_was_put_in(per_byte_s: float) -> None:
    """Slow links are busy all the time; on the fast one only the last bucket of most networks shows."""
    truth = MacroFit(constant_s=1e-3, per_tensor_s=20e-6, per_layer_s=50e-6, per_bucket_s=4e-4, per_byte_s=per_byte_s)
    made = seen(truth)
    fit = fit_macro(made)
    for one in made:
        assert fit.stall_s(one.features) == near(one.stall_s, rel=0.02), one.network
    assert fit.per_byte_s == near(per_byte_s, rel=0.05)


def test_a_layer_costs_where_it_delays_the_bucket_that_binds() -> None:
    """Ten layers of a second each; the first bucket leaves after one, the second after all."""
    fit = MacroFit(constant_s=0.0, per_tensor_s=0.0, per_layer_s=1e-2, per_bucket_s=0.0, per_byte_s=1e-3)
    for first_s, expected_s in ((2.0, 20 + 10 * 1e-2), (50.0, 50 + 20 - 9 + 1e-2)):
        features = MacroFeatures(
            tensors=10,
            layers=10,
            bucket_bytes=(round(1000 * first_s), 20_000),
            bucket_ready=(0.1, 1.0),
            bucket_tensors=(1, 10),
            bucket_layers=(1, 10),
            backward_s=10.0,
        )
        assert fit.stall_s(features) == near(expected_s)


def test_families_are_held_out() -> None:
    """A family that is unlike its features spoils the prediction of others, not the agreement with itself."""
    made = seen(TRUE)
    assert max(family_errors(held_out(made)).values()) < 0.05
    odd = [
        MeasuredStall(network=s.network, family=s.family, features=s.features, stall_s=3 * s.stall_s, step_s=s.step_s)
        if s.family == "vgg"
        else s
        for s in made
    ]
    errors = family_errors(held_out(odd))
    assert errors["vgg"] == near(2 / 3, abs=0.1)
    assert set(errors) == {s.family for s in made}


def test_too_few_networks_are_not_fitted() -> None:
    with pytest.raises(InputError, match="too few"):
        fit_macro(seen(TRUE)[:3])
