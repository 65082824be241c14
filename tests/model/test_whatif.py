"""Questions about a job: laws that hold for any job, and jobs whose answer is known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.fabric import GLOO, Fabric, link_of_rate
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.job import MeasuredJob, own_links, s_per_byte_for
from stallwise.model.step.prediction import predict_step
from stallwise.model.step.whatif import POWERS_OF_TWO, SetupChange, scaling, speedup, what_if
from stallwise.workload.layers import Layer, LayerTrace
from tests.model.traces import layer_traces

TRACE = LayerTrace(
    layers=tuple(Layer(name=f"l{i}", forward_s=0.002, backward_s=0.004, gradient_bytes=4_000_000) for i in range(10)),
    source="made up",
    update_s=0.01,
)
COMPUTE_S = 10 * 0.006 + 0.01
JOB = MeasuredJob(
    name="job", trace=TRACE, overlap=Overlap(), gpus=1, samples=32, compute_factors=(0.9, 1.1), backend="gloo"
)
LOADED = replace(JOB, work=LoaderWork(prepare_s=0.2, blocked_s=0.1, workers=2), cores_per_node=8, cold_blocked_s=0.5)


def network(bytes_per_s: float, latency_s: float = 30e-6, **factors: float) -> Fabric:
    return Fabric(gpus_per_node=1, between=link_of_rate(bytes_per_s, latency_s, "given", **factors), algorithms=GLOO)


def test_nothing_changed_on_one_gpu_is_its_compute() -> None:
    found = what_if(JOB, SetupChange(), None, 1)
    assert found.step_s == pytest.approx(COMPUTE_S)
    assert (found.low_s, found.high_s) == pytest.approx((0.9 * COMPUTE_S, 1.1 * COMPUTE_S))
    assert found.samples_per_s == pytest.approx(32 / COMPUTE_S)
    assert (found.binds, found.efficiency) == ("compute", 1.0)


@settings(max_examples=40, deadline=None)
@given(layer_traces(max_layers=6), st.sampled_from([2, 3, 8, 64]), st.floats(min_value=1e7, max_value=1e11))
def test_the_laws_of_any_job(trace: LayerTrace, gpus: int, rate: float) -> None:
    job = replace(JOB, trace=trace)
    if not trace.forward_s + trace.backward_s:
        return
    found = what_if(job, SetupChange(), network(rate, low=0.8, high=1.5), gpus)
    faster = what_if(job, SetupChange(), network(2 * rate), gpus)
    assert faster.step_s <= found.step_s * (1 + 1e-9)
    assert found.low_s <= found.step_s * (1 + 1e-9)
    assert found.step_s <= found.high_s * (1 + 1e-9)
    assert found.split.step_s == pytest.approx(found.step_s)
    assert found.efficiency <= 1 + 1e-9, "no speed-up beyond N"
    assert what_if(job, SetupChange(compute_speed=2), network(rate), gpus).step_s <= found.step_s * (1 + 1e-9)
    optimal = what_if(job, SetupChange(overlap=Overlap(scheme="optimal")), network(rate), gpus)
    assert optimal.step_s <= found.step_s * (1 + 1e-9)


def test_the_curve_starts_at_one_gpu_and_loses_efficiency() -> None:
    points = scaling(JOB, SetupChange(), network(1.25e9))
    assert [point.gpus for point in points] == list(POWERS_OF_TWO)
    assert points[0].step_s == pytest.approx(COMPUTE_S)
    losses = [point.efficiency for point in points]
    assert losses == sorted(losses, reverse=True)
    assert {points[0].binds, points[-1].binds} == {"compute", "exchange"}


def test_fp16_exchanges_what_a_network_twice_as_fast_does() -> None:
    half = what_if(JOB, SetupChange(overlap=Overlap(scheme="fused", compression=0.5)), network(1e9, 0.0), 8)
    twice = what_if(JOB, SetupChange(overlap=Overlap(scheme="fused")), network(2e9, 0.0), 8)
    assert half.step_s == pytest.approx(twice.step_s)
    assert half.split.exchange_s == pytest.approx(2 * 7 / 8 * 40e6 / 2e9)


def test_accumulating_exchanges_once_for_more_samples() -> None:
    once = what_if(JOB, SetupChange(overlap=Overlap(scheme="fused")), network(1e9, 0.0), 8)
    thrice = what_if(JOB, SetupChange(overlap=Overlap(scheme="fused", accumulate=3)), network(1e9, 0.0), 8)
    assert thrice.step_s == pytest.approx(3 * 0.06 + 0.01 + once.split.exchange_s)
    assert thrice.samples_per_s == pytest.approx(3 * 8 * 32 / thrice.step_s)
    assert speedup(thrice, once) == pytest.approx(3 * once.step_s / thrice.step_s)


def test_a_run_that_accumulates_reads_a_batch_per_pass() -> None:
    """The loader's work is that of a step; it is shared by the passes it was measured over."""
    job = replace(LOADED, overlap=Overlap(accumulate=4), work=LoaderWork(prepare_s=0.8, blocked_s=0.0, workers=0))
    found = what_if(job, SetupChange(), None, 1)
    assert found.step_s == pytest.approx(4 * 0.06 + 0.01 + 0.8)
    fewer = what_if(job, SetupChange(overlap=Overlap(accumulate=1)), None, 1)
    assert fewer.step_s == pytest.approx(0.06 + 0.01 + 0.2)


def test_a_larger_batch_scales_compute_and_loading() -> None:
    found = what_if(
        replace(LOADED, work=LoaderWork(prepare_s=0.05, blocked_s=0.0, workers=0)), SetupChange(batch=2), None, 1
    )
    assert found.step_s == pytest.approx(2 * (0.06 + 0.05) + 0.01), "the update does not grow"
    assert found.samples_per_s == pytest.approx(64 / found.step_s)


@pytest.mark.parametrize(
    ("change", "step_s"),
    [
        (SetupChange(), 0.15),  # (0.2 + 0.1) / 2 workers
        (SetupChange(workers=4), 0.075),
        (SetupChange(workers=0), COMPUTE_S + 0.3),
        (SetupChange(workers=8), COMPUTE_S),
        (SetupChange(storage_speed=2), 0.125),
        (SetupChange(cached=1.0), 0.15),
        (SetupChange(cached=0.0), 0.35),  # (0.2 + 0.5) / 2
        (SetupChange(cached=0.5, storage_speed=2), (0.2 + 0.05 + 0.125) / 2),
        (SetupChange(compute_speed=2), 0.15),
    ],
)
def test_the_data_path(change: SetupChange, step_s: float) -> None:
    assert what_if(LOADED, change, None, 1).step_s == pytest.approx(step_s)


def test_workers_that_outnumber_the_cores_prepare_slower_than_measured() -> None:
    crowded = what_if(LOADED, SetupChange(workers=16), None, 1)
    assert crowded.step_s == pytest.approx(max(COMPUTE_S, (0.2 * 16 / 8 + 0.1) / 16))
    few = replace(LOADED, cores_per_node=1)
    assert what_if(few, SetupChange(), None, 1).step_s == pytest.approx(0.15), "the run's own waiting is in its times"
    assert what_if(few, SetupChange(workers=4), None, 1).step_s == pytest.approx((0.2 * 2 + 0.1) / 4)


def test_gpus_of_a_node_share_its_cores() -> None:
    fabric = Fabric(gpus_per_node=8, inside=link_of_rate(1e12, 0.0, "given"))
    step_s = what_if(LOADED, SetupChange(), fabric, 8).step_s
    assert step_s == pytest.approx((0.2 * 2 + 0.1 * 8) / 2, rel=0.01)  # and its storage, eight ways


def test_a_job_that_storage_limits_gains_nothing_from_more_gpus_on_its_node() -> None:
    fabric = Fabric(gpus_per_node=8, inside=link_of_rate(1e12, 0.0, "given"), between=link_of_rate(1e12, 0.0, "given"))
    stored = replace(LOADED, work=replace(LOADED.work, prepare_s=0.0, blocked_s=100 * LOADED.work.blocked_s))
    one, eight = (what_if(stored, SetupChange(), fabric, gpus) for gpus in (1, 8))
    assert eight.step_s == pytest.approx(8 * one.step_s, rel=0.01)
    spread = what_if(stored, SetupChange(), replace(fabric, gpus_per_node=1), 8)
    assert spread.step_s == pytest.approx(one.step_s, rel=0.01)


def test_what_the_run_does_not_know_is_said() -> None:
    with pytest.raises(InputError, match="No loader was seen"):
        what_if(JOB, SetupChange(workers=2), None, 1)
    with pytest.raises(InputError, match="No loader was seen"):
        what_if(JOB, SetupChange(storage_speed=2), None, 1)
    with pytest.raises(InputError, match="no cold phase"):
        what_if(replace(LOADED, cold_blocked_s=None), SetupChange(cached=0.8), None, 1)
    with pytest.raises(InputError, match="no link between them is known"):
        what_if(JOB, SetupChange(), None, 2)


# The links of a run, from the run itself.


def _measured(job: MeasuredJob, fabric: Fabric, gpus: int, spread: float = 0.1) -> MeasuredJob:
    """The job as a profile would show it on that fabric."""
    exposed = what_if(job, SetupChange(), fabric, gpus).split.exchange_s
    share = Share(exposed, (1 - spread) * exposed, (1 + spread) * exposed)
    nodes = gpus > fabric.gpus_per_node
    return replace(
        job,
        gpus=gpus,
        gpus_per_node=min(gpus, fabric.gpus_per_node),
        inside=None if nodes else share,
        between=share if nodes else None,
    )


@settings(max_examples=25, deadline=None)
@given(st.floats(min_value=1e8, max_value=2e9), st.sampled_from([2, 4, 7]))
def test_calibration_finds_the_rate_that_made_the_stall(rate: float, gpus: int) -> None:
    job = _measured(JOB, network(rate, 0.0), gpus)
    found = own_links(job)
    assert found.caveat is None
    assert found.between is not None
    assert found.between.bytes_per_s == pytest.approx(rate, rel=1e-3)
    assert found.between.low < 1 < found.between.high
    again = what_if(job, SetupChange(), Fabric(gpus_per_node=1, between=found.between, algorithms=GLOO), gpus)
    assert again.split.exchange_s == pytest.approx(job.between.s, rel=1e-2)


def test_calibration_separates_a_latency_that_is_known() -> None:
    job = _measured(JOB, network(1e9, 1e-4), 4)
    found = own_links(job, latency_s=1e-4)
    assert found.between is not None
    assert found.between.bytes_per_s == pytest.approx(1e9, rel=1e-3)


def test_a_stall_within_noise_leaves_a_bound_only() -> None:
    job = replace(JOB, gpus=2, gpus_per_node=2, inside=Share(0.0, 0.0, 0.02))
    found = own_links(job)
    assert found.caveat is not None
    assert "lower bound" in found.caveat
    fabric = Fabric(gpus_per_node=2, inside=found.inside, algorithms=GLOO)
    answer = what_if(replace(job, compute_factors=(1.0, 1.0)), SetupChange(), fabric, 2)
    assert answer.step_s == pytest.approx(COMPUTE_S, rel=1e-3)
    assert answer.high_s == pytest.approx(COMPUTE_S + 0.02, rel=1e-3)


def test_two_tiers_are_told_apart_where_the_profile_does() -> None:
    fast, slow = link_of_rate(4e8, 0.0, "given"), link_of_rate(2e8, 0.0, "given")
    fabric = Fabric(gpus_per_node=2, inside=fast, between=slow, algorithms=GLOO)
    inside = what_if(JOB, SetupChange(), fabric, 2).split.exchange_s
    more = what_if(JOB, SetupChange(), fabric, 4).split.exchange_s - inside
    shares = {
        "inside": Share(inside, 0.9 * inside, 1.1 * inside),
        "between": Share(more, 0.9 * more, 1.1 * more),
    }
    found = own_links(replace(JOB, gpus=4, gpus_per_node=2, **shares))
    assert found.inside is not None
    assert found.between is not None
    assert found.inside.bytes_per_s == pytest.approx(4e8, rel=1e-3)
    assert found.between.bytes_per_s == pytest.approx(2e8, rel=1e-3)
    assert not found.merged


def test_copies_of_gradients_take_the_same_in_columns_and_in_the_graph() -> None:
    plain = network(1e9)
    copied = replace(plain, copy_s_per_byte=1e-9)
    priced = [fabric.prices(4).all_reduce(1e7) for fabric in (plain, copied)]
    assert priced[1] - priced[0] == pytest.approx(1e-2)
    for gpus in (1, 4):
        in_columns = [what_if(JOB, SetupChange(), fabric, gpus).step_s for fabric in (plain, copied)]
        graph = [predict_step(TRACE, fabric.prices(gpus), Overlap()).step_s for fabric in (plain, copied)]
        assert in_columns[1] - in_columns[0] == pytest.approx(graph[1] - graph[0], abs=1e-9)
        assert (graph[1] > graph[0]) == (gpus > 1)


def test_one_process_and_unmeasured_exchange_have_no_links_of_their_own() -> None:
    assert own_links(JOB).between is None
    assert own_links(replace(JOB, gpus=4)).inside is None


def test_bisection_finds_a_root_far_from_its_guess() -> None:
    assert s_per_byte_for(lambda x: max(0.0, 3e6 * x - 1), 0.5, 1e-12) == pytest.approx(5e-7, rel=1e-3)
    assert s_per_byte_for(lambda x: 1 + x, 0.5, 1e-9) == 0.0
