"""The best buckets: never slower than the job's own in the model, the optimum where it is worth it, own where not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.buckets.best import WORTHWHILE, best_buckets
from stallwise.errors import InputError
from stallwise.model.fabric import Fabric, link_of_rate
from stallwise.model.overlap import Overlap
from stallwise.model.sparse import Sparse
from stallwise.model.whatif import Change, Job
from stallwise.workload.layers import Layer, LayerTrace
from tests.model.traces import layer_traces


def fabric(bytes_per_s: float, latency_s: float = 1e-4) -> Fabric:
    return Fabric(gpus_per_node=1, between=link_of_rate(bytes_per_s, latency_s, "given"), algorithms=("ring",))


def job(trace: LayerTrace) -> Job:
    return Job(name="train.py", trace=trace, overlap=Overlap(), gpus=2)


@given(layer_traces(), st.floats(1e7, 1e11))
def test_never_slower_and_every_parameter_once(trace: LayerTrace, rate: float) -> None:
    trace = replace(trace, update_s=0.001)
    best = best_buckets(job(trace), Change(), fabric(rate), 2)
    assert best.planned.step_s <= best.own.step_s * (1 + 1e-9)
    names = [name for bucket in best.plan.buckets for name in bucket.parameters]
    assert names == [layer.name for layer in trace.layers[::-1]]
    assert best.plan.bytes == trace.gradient_bytes
    assert best.worthwhile == (best.gain >= WORTHWHILE)


def even(layers: int, size: int) -> LayerTrace:
    layer = [
        Layer(
            name=f"_orig_mod.module.block._checkpoint_wrapped_module.p{i}",
            forward_s=0.01,
            backward_s=0.02,
            gradient_bytes=size,
        )
        for i in range(layers)
    ]
    return LayerTrace(layers=tuple(layer), source="made up")


def test_a_network_in_one_large_bucket_gains() -> None:
    """Ten layers of 2 MB: torch sends one of them, then waits for the other nine. Cut, all but the last hide."""
    best = best_buckets(job(even(10, 2_000_000)), Change(), fabric(125e6), 2)
    assert best.own_buckets == 2
    assert best.own.step_s == pytest.approx(0.3 + 9 * 0.016, rel=0.01)
    assert best.planned.step_s == pytest.approx(0.3 + 0.016, rel=0.02)
    assert best.worthwhile
    assert best.plan.buckets[0].parameters[0] == "block.p9", "as the bare module calls it"


def test_where_nothing_is_to_be_gained_buckets_stay() -> None:
    best = best_buckets(job(even(10, 2_000_000)), Change(), fabric(1e12, 0.0), 2)
    assert not best.worthwhile
    assert len(best.plan.buckets) == best.own_buckets == 2


def test_what_has_no_buckets_is_said() -> None:
    with pytest.raises(InputError, match="no link between them"):
        best_buckets(job(even(2, 10)), Change(), None, 2)
    with pytest.raises(InputError, match="zero3"):
        best_buckets(job(even(2, 10)), Change(overlap=Overlap(scheme="zero3")), fabric(1e9), 2)
    for overlap in (Overlap(sparse=Sparse(kind="topk", density=0.01)), Overlap(through="servers")):
        with pytest.raises(InputError, match="all-reduces of whole gradients"):
            best_buckets(job(even(2, 10)), Change(overlap=overlap), fabric(1e9), 2)
