"""A job with less: laws of the curve, hand cases of knee, shares and choice."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.deflation import (
    RESOURCES,
    WORTH,
    DeflationResponse,
    NodeMemory,
    Pressure,
    Resource,
    ResourceFractions,
    deflate_or_lose,
    knee,
    parts_for,
    shares,
    speed_kept,
)
from stallwise.model.exchange.fabric import GLOO, Fabric, link_of_rate
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob
from stallwise.workload.layers import Layer, LayerTrace

TRACE = LayerTrace(
    layers=tuple(Layer(name=f"l{i}", forward_s=0.002, backward_s=0.006, gradient_bytes=1_000_000) for i in range(10)),
    source="made up",
    update_s=0.02,
)
COMPUTE_S = 0.1
JOB = MeasuredJob(
    name="job",
    trace=TRACE,
    overlap=Overlap(),
    gpus=1,
    samples=16,
    compute_factors=(0.9, 1.1),
    work=LoaderWork(prepare_s=0.06, blocked_s=0.02, workers=2),
    cold_blocked_s=0.5,
    cores_per_node=4,
)
ONE = DeflationResponse(job=JOB, fabric=None, cores=2.0, cpu_s=0.06)
FABRIC = Fabric(gpus_per_node=1, between=link_of_rate(1e9, 30e-6, "given"), algorithms=GLOO)
FOUR = replace(ONE, job=replace(JOB, gpus=4), fabric=FABRIC, _consumed={})
MEMORY = NodeMemory(bytes=100e9, used_bytes=20e9, dataset_bytes=60e9)
part = st.floats(min_value=0.01, max_value=1.0)


def test_the_step_is_the_larger_of_consuming_and_loading() -> None:
    # 0.06 core-seconds in 0.1 s: 0.6 of 2 cores, the knee is at 30 %.
    for kept, step_s, binds in ((1.0, 0.1, "consume"), (0.3, 0.1, "consume"), (0.15, 0.2, "cpu"), (0.03, 1.0, "cpu")):
        point = ONE.at(ResourceFractions(cpu=kept))
        assert point.step_s == pytest.approx(step_s)
        assert point.binds == binds or kept == 0.3
    curve = ONE.curve("cpu", (1.0, 0.15))
    assert curve.knee == pytest.approx(0.3 / 1.05, rel=1e-6)
    assert curve.slack == pytest.approx(1 - 0.3 / 1.05, rel=1e-6)
    assert curve.speed == pytest.approx((1.0, 0.5))


def test_workers_bind_where_storage_blocks_them() -> None:
    blocked = replace(ONE, job=replace(JOB, work=LoaderWork(prepare_s=0.06, blocked_s=0.34, workers=2)), _consumed={})
    assert blocked.at(ResourceFractions()).binds == "workers"
    assert blocked.at(ResourceFractions()).step_s == pytest.approx(0.2)
    assert blocked.at(ResourceFractions(bandwidth=0.5)).step_s == pytest.approx((0.06 + 0.68) / 2)


def test_without_a_worker_loading_and_consuming_take_turns() -> None:
    turns = replace(ONE, job=replace(JOB, work=LoaderWork(prepare_s=0.06, blocked_s=0.02, workers=0)), _consumed={})
    assert turns.at(ResourceFractions()).step_s == pytest.approx(0.18)
    assert turns.at(ResourceFractions(cpu=0.25)).step_s == pytest.approx(0.1 + 0.12 + 0.02)


def test_a_process_that_computes_on_cores_is_slowed_in_proportion() -> None:
    alone = DeflationResponse(job=replace(JOB, work=None), fabric=None, cores=1.0, process_s=COMPUTE_S)
    for kept in (1.0, 0.8, 0.5, 0.25):
        assert alone.at(ResourceFractions(cpu=kept)).step_s == pytest.approx(COMPUTE_S / kept)


def test_memory_acts_through_the_page_cache_and_kills_below_what_is_held() -> None:
    held = replace(ONE, memory=MEMORY, _consumed={})
    assert held.at(ResourceFractions(memory=0.8)).step_s == pytest.approx(0.1), "all of the data still fits"
    steps = [held.at(ResourceFractions(memory=kept)).step_s for kept in (0.8, 0.6, 0.4, 0.21)]
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx((0.06 + 0.5) / 2, rel=0.03), "next to nothing is cached"
    assert math.isinf(held.at(ResourceFractions(memory=0.19)).step_s)
    assert held.cooperative(ResourceFractions(memory=0.19))[0].binds == "memory"


def test_bandwidth_and_gpu_share_go_through_the_graph() -> None:
    assert FOUR.at(ResourceFractions(gpu=0.5)).step_s > 1.9 * COMPUTE_S
    assert FOUR.at(ResourceFractions(bandwidth=0.05)).step_s > FOUR.at(ResourceFractions()).step_s * 1.5


def test_what_a_run_says_nothing_about_is_refused() -> None:
    assert ONE.resources == ("cpu", "bandwidth", "gpu")
    with pytest.raises(InputError, match=r"says nothing about memory.*size of the dataset"):
        ONE.curve("memory", (1.0,))


@given(st.sampled_from(RESOURCES), part, part)
def test_less_is_never_faster_and_bounds_hold_it(resource: Resource, one: float, other: float) -> None:
    response = replace(FOUR, memory=MEMORY, process_s=0.01, _consumed=FOUR._consumed)
    less, more = (response.at(replace(ResourceFractions(), **{resource: kept})) for kept in sorted((one, other)))
    assert less.step_s >= more.step_s * (1 - 1e-9)
    for point in (less, more):
        assert point.low_s <= point.step_s * (1 + 1e-9)
        assert point.high_s >= point.step_s * (1 - 1e-9)


@given(st.sampled_from(RESOURCES), st.floats(min_value=0.05, max_value=1.0), st.sampled_from([0.0, 0.01, 0.08]))
def test_helping_is_never_slower_and_keeps_the_batch(resource: Resource, kept: float, process_s: float) -> None:
    response = replace(FOUR, memory=MEMORY, process_s=process_s, _consumed=FOUR._consumed)
    left = replace(ResourceFractions(), **{resource: kept})
    bare_s = response.at(left).step_s
    point, parts = response.cooperative(left)
    assert sum(parts) == pytest.approx(4)
    assert parts[-1] <= parts[0]
    assert point.step_s == bare_s if parts == (1.0,) * 4 else point.step_s <= (1 - WORTH) * bare_s


def test_the_exchange_is_slow_for_all_ranks_where_it_is_for_one() -> None:
    """With 5 % of one rank's bandwidth the exchange is what takes the time, and no part of a batch shortens it."""
    left = ResourceFractions(bandwidth=0.05)
    point, parts = FOUR.cooperative(left)
    assert (point.step_s, parts) == (FOUR.at(left).step_s, (1.0,) * 4)
    assert FOUR.at(ResourceFractions(), 1.0, 0.05).step_s == pytest.approx(FOUR.at(left).step_s), (
        "its loader binds nowhere"
    )


@pytest.mark.parametrize("cores", [2.0, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2, 0.1])
def test_prediction_and_actuator_deal_the_same_parts(cores: float) -> None:
    """Where all of a step grows with the batch, speeds say all there is: those of `deflate`, cores left over used."""
    job = replace(JOB, trace=replace(TRACE, update_s=0.0), gpus=2)
    at_once = replace(FABRIC, between=link_of_rate(1e15, 0.0, "given"))
    two = DeflationResponse(job=job, fabric=at_once, cores=2.0, cpu_s=0.048)
    whole_s = two.at(ResourceFractions()).step_s
    _, parts = two.cooperative(ResourceFractions(cpu=cores / two.cores))
    dealt = parts_for(32, (1.0, min(1.0, cores / (two.cpu_s / whole_s))))
    assert tuple(round(16 * part) for part in parts) == dealt


@given(st.floats(min_value=0, max_value=0.99), part)
def test_speed_is_flat_to_the_knee_then_linear(slack: float, kept: float) -> None:
    speed = speed_kept(slack, kept)
    assert speed == 1.0 if kept >= 1 - slack else speed == pytest.approx(kept / (1 - slack))
    assert speed >= kept - 1e-12


def test_speed_refuses_what_is_no_part() -> None:
    with pytest.raises(InputError, match="kept is a fraction"):
        speed_kept(0.5, 1.5)
    with pytest.raises(InputError, match="kept of gpu"):
        ResourceFractions(gpu=0.0)


def test_the_knee_of_a_step_that_never_grows_is_zero() -> None:
    assert knee(lambda _: 1.0) == pytest.approx(0, abs=1e-9)


@given(st.lists(st.floats(min_value=0.01, max_value=1.0), min_size=1, max_size=6), st.integers(0, 60))
def test_shares_are_exact_and_the_best_there_are(speeds: list[float], more: int) -> None:
    total = len(speeds) + more
    found = shares(total, speeds)
    assert sum(found) == total
    assert min(found) >= 1
    longest = max(count / speed for count, speed in zip(found, speeds, strict=True))
    for giver in range(len(speeds)):
        for taker in range(len(speeds)):
            if giver != taker and found[giver] > 1:
                moved = list(found)
                moved[giver], moved[taker] = moved[giver] - 1, moved[taker] + 1
                other = max(count / speed for count, speed in zip(moved, speeds, strict=True))
                assert other >= longest * (1 - 1e-9), "moving one sample would end sooner"


@given(st.integers(1, 8), st.integers(1, 20), st.floats(min_value=0.05, max_value=1.0))
def test_equal_speeds_get_equal_shares(ranks: int, batch: int, speed: float) -> None:
    assert shares(ranks * batch, [speed] * ranks) == (batch,) * ranks


def test_shares_by_hand_and_under_a_limit() -> None:
    assert shares(32, [1.0, 0.5]) == (22, 10)
    assert shares(12, [1.0, 1.0, 0.1]) == (6, 5, 1)
    assert shares(32, [1.0, 0.25], most=20) == (20, 12)
    with pytest.raises(InputError, match="cannot be divided"):
        shares(32, [1.0, 1.0], most=15)
    with pytest.raises(InputError, match="cannot be divided"):
        shares(1, [1.0, 1.0])


def test_parts_differ_only_where_it_pays() -> None:
    assert shares(32, [1.0, 16 / 17]) == (17, 15), "which end no sooner than 16 and 16"
    assert parts_for(32, [1.0, 16 / 17]) == (16, 16)
    assert parts_for(32, [1.0, 0.90]) == (16, 16), "17 against 17.8: 4 %"
    assert parts_for(32, [1.0, 0.88]) == (17, 15), "17 against 18.2: 6 %"
    assert parts_for(32, [1.0, 0.5]) == shares(32, [1.0, 0.5])
    assert parts_for(32, [0.5, 0.5]) == (16, 16)
    assert parts_for(32, [1.0, 0.25], most=16) == (16, 16)


def test_memory_of_no_data_is_refused() -> None:
    with pytest.raises(InputError, match="more than 0 bytes"):
        replace(MEMORY, dataset_bytes=0.0)


def test_the_choice_by_hand() -> None:
    # Reference: for what one rank had and no slack, deflating gains exactly T_o/n and what would be done again.
    pressure = Pressure(lasts_s=600, restart_s=180, again_s=30)
    found = deflate_or_lose(1 - 1 / 4, 4, pressure)
    assert found.lose_s - found.deflate_s == pytest.approx(180 / 4 + 30)
    assert math.isinf(found.break_even_s)
    slow = deflate_or_lose(0.5, 4, pressure)
    assert slow.break_even_s == pytest.approx((45 + 30) / 0.25)
    assert not slow.deflate
    assert deflate_or_lose(0.5, 4, replace(pressure, lasts_s=299)).deflate
    assert deflate_or_lose(1.0, 4, pressure).deflate_s == 0


@given(part, st.integers(1, 16), st.floats(0, 1e4), st.floats(0, 1e3))
def test_the_choice_turns_at_break_even(speed: float, ranks: int, lasts_s: float, restart_s: float) -> None:
    found = deflate_or_lose(speed, ranks, Pressure(lasts_s=lasts_s, restart_s=restart_s))
    if abs(lasts_s - found.break_even_s) > 1e-6 * (1 + lasts_s):
        assert found.deflate == (lasts_s < found.break_even_s) or found.deflate_s == found.lose_s
