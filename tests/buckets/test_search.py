"""The best buckets: never slower than the job's own in the model, the optimum where it is worth it, own where not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stallwise.buckets import BucketPlan, GradientBucket, planned_ddp, read_plan
from stallwise.buckets.search import WORTHWHILE, BestBuckets, best_buckets
from stallwise.errors import InputError
from stallwise.model.exchange.collectives import Sparse
from stallwise.model.exchange.fabric import Fabric, link_of_rate
from stallwise.model.exchange.merge import MIB
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob
from stallwise.model.step.whatif import SetupChange, changed_setups
from stallwise.run.reader import Run
from stallwise.workload.layers import Layer, LayerTrace
from tests.conftest import Cli
from tests.model.traces import layer_traces
from tests.record.jobs import plain_ranks


def fabric(bytes_per_s: float, latency_s: float = 1e-4) -> Fabric:
    return Fabric(gpus_per_node=1, between=link_of_rate(bytes_per_s, latency_s, "given"), algorithms=("ring",))


def best_of(measured: MeasuredJob, change: SetupChange, links: Fabric | None) -> BestBuckets:
    """On two GPUs."""
    return best_buckets(measured, changed_setups(measured, change, links, (2,)))


def job(trace: LayerTrace) -> MeasuredJob:
    return MeasuredJob(name="train.py", trace=trace, overlap=Overlap(), gpus=2)


@given(layer_traces(), st.floats(1e7, 1e11))
def test_never_slower_and_every_parameter_once(trace: LayerTrace, rate: float) -> None:
    trace = replace(trace, update_s=0.001)
    best = best_of(job(trace), SetupChange(), fabric(rate))
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
    best = best_of(job(even(10, 2_000_000)), SetupChange(), fabric(125e6))
    assert best.own_buckets == 2
    assert best.own.step_s == pytest.approx(0.3 + 9 * 0.016, rel=0.01)
    assert best.planned.step_s == pytest.approx(0.3 + 0.016, rel=0.02)
    assert best.worthwhile
    assert best.plan.buckets[0].parameters[0] == "block.p9", "as the bare module calls it"


def test_where_nothing_is_to_be_gained_buckets_stay() -> None:
    best = best_of(job(even(10, 2_000_000)), SetupChange(), fabric(1e12, 0.0))
    assert not best.worthwhile
    assert len(best.plan.buckets) == best.own_buckets == 2


def test_what_has_no_buckets_is_said() -> None:
    with pytest.raises(InputError, match="no link between them"):
        best_of(job(even(2, 10)), SetupChange(), None)
    with pytest.raises(InputError, match="zero3"):
        best_of(job(even(2, 10)), SetupChange(overlap=Overlap(scheme="zero3")), fabric(1e9))
    for overlap in (Overlap(sparse=Sparse(kind="topk", density=0.01)), Overlap(through="servers")):
        with pytest.raises(InputError, match="all-reduces of whole gradients"):
            best_of(job(even(2, 10)), SetupChange(overlap=overlap), fabric(1e9))


SCRIPT = str(Path(__file__).with_name("traced_job.py"))


def test_a_plan_from_a_trace_is_carried_out(ask: Cli, tmp_path: Path) -> None:
    """Recorded by torch.profiler on two gloo ranks with buckets of 1 MiB, planned for a slow network, run again."""
    plain_ranks(2, SCRIPT, "trace", str(tmp_path / "traces"))
    ask("trace", "import", "traces", "-o", "run", "--gpus-per-node", "1")
    model = Run.open(tmp_path / "run").manifest.model
    assert model is not None
    assert (model.first_bucket_bytes, model.bucket_cap_bytes) == (MIB, MIB)
    assert len(model.bucket_bytes) == 4
    asked = ("whatif", "run", "--network", "100mbit", "--latency", "10ms", "--best-buckets", "plan.json", "--json")
    found = json.loads(ask(*asked).stdout)["best_buckets"]
    assert found["own_buckets"] == 4
    # A message that takes 20 ms before its first byte is worth waiting for.
    assert found["worthwhile"]
    planned = read_plan(tmp_path / "plan.json")
    assert len(planned.buckets) < 4
    assert planned.bytes == model.gradient_bytes
    assert not planned.named
    done = json.loads(plain_ranks(2, SCRIPT, "plan", str(tmp_path / "plan.json")))
    assert done == {"way": "limits", "real_bytes": [bucket.bytes for bucket in planned.buckets], "as_planned": True}


@pytest.mark.parametrize(
    ("name", "buckets", "shapes"),
    [("hta/resnet50_ddp_2xA100_rank0", 5, False), ("tracelens/resnet18_ddp_8xMI300X_rank0", 2, True)],
)
def test_real_jobs(ask: Cli, shared_data: Path, tmp_path: Path, name: str, buckets: int, shapes: bool) -> None:
    ask("trace", "import", str(shared_data / "kineto" / f"{name}.json.gz"), "-o", "run", "--gpus-per-node", "1")
    model = Run.open(tmp_path / "run").manifest.model
    assert model is not None
    assert (model.first_bucket_bytes, model.bucket_cap_bytes) == (MIB, 25 * MIB)
    asked = ("whatif", "run", "--network", "10gbit", "--latency", "10ms", "--best-buckets", "plan.json")
    said = ask(*asked, "--no-curve").stdout
    assert f"{buckets} as they are" in said
    assert ("could be joined, not cut" in said) != shapes
    assert read_plan(tmp_path / "plan.json").bytes == model.gradient_bytes


def test_a_plan_without_names_is_for_limits_and_for_as_many_bytes() -> None:
    plan = BucketPlan(
        source="t.json", gpus=2, buckets=(GradientBucket(parameters=("bucket 0",), bytes=24),), named=False
    )
    with pytest.raises(InputError, match="has 24 bytes of gradients, this one 8"):
        planned_ddp(nn.Linear(1, 1), plan)
    with pytest.raises(InputError, match="has no names of parameters"):
        planned_ddp(nn.Linear(2, 2), plan, way="hook")
