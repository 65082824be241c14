"""Laws of the compute models: faster hardware is never slower, parts add up, unknown names change nothing."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.analysis.compute import device_of
from stallwise.hardware.catalog import SHIPPED, Catalog
from stallwise.model.compute import cluster_job, image, known_jobs, llm
from stallwise.model.compute.roofline import (
    ComputeDemand,
    Device,
    attainable_flop_per_s,
    bounded_step_s,
    correction,
    crossed,
    shares,
    smooth_minimum,
    step_s,
)
from stallwise.model.compute.transfer import BEST_FRACTION, StepWork, log_s, reach, step_parts
from stallwise.workload.shapes import LANGUAGE_MODELS, TOTALS

PER_JOULE = {"matrix:": 8e11, "vector:": 8e10}
LLM = {
    **PER_JOULE, "attained:": 0.87, "fraction": 0.95, "narrow_width": 40.0, "attention": 1.0, "softmax": 7.0,
    "elementwise": 0.7, "vocabulary": 4.0, "start_s": 1e-4, "backward": 2.3, "experts": 1.3, "fused_softmax": 0.3,
    "fused_elementwise": 0.5,
}  # fmt: skip
TRANSFER = {**PER_JOULE, "fraction": 0.8, "matrix_fraction": 0.35, "moved": 3.0, "kernel_s": 1e-5}
CARD = Device(
    name="card", architecture="", matrix_flop_per_s=1e14, vector_flop_per_s=2e13, memory_bytes_per_s=1e12,
    memory_bytes=24e9, tdp_w=300.0,
)  # fmt: skip
WORK = StepWork(flop=1e12, activation_bytes=1e9, parameters=25e6, kernels=1000)
positive = st.floats(1e-3, 1e3)


@given(positive, positive)
def test_the_smooth_minimum_is_below_both_and_near_the_smaller(one: float, other: float) -> None:
    found = smooth_minimum(one, other)
    assert found <= min(one, other) * (1 + 1e-9)
    assert found >= min(one, other) * 2**-0.125 * (1 - 1e-9)


def transferred_s(
    measured_s: float, work: StepWork, source: Device, target: Device, constants: Mapping[str, float]
) -> float:
    """`measured_s` of compute on `source`, on `target`."""
    ratio = math.exp(log_s(work, target, constants) - log_s(work, source, constants))
    return bounded_step_s(measured_s * ratio, work.flop, target, BEST_FRACTION)


def test_power_binds_a_card_with_little_of_it() -> None:
    assert attainable_flop_per_s(30e12, 72, 133e9) == pytest.approx(9.6e12, rel=0.02)
    assert attainable_flop_per_s(14e12, 250, 133e9) == pytest.approx(14e12, rel=0.02)


@given(
    st.dictionaries(st.sampled_from("abcd"), positive, min_size=1), st.dictionaries(st.sampled_from("abcd"), positive)
)
def test_shares_add_up(seconds: dict[str, float], coefficients: dict[str, float]) -> None:
    found = shares(ComputeDemand(seconds=seconds), coefficients)
    assert math.fsum(found.values()) == pytest.approx(1.0)
    assert step_s(ComputeDemand(seconds=seconds), coefficients) > 0


def test_a_prediction_never_beats_the_best_ever_attained() -> None:
    assert bounded_step_s(1e-6, 1e12, CARD, 0.9) == pytest.approx(1e12 / 0.9e14)
    assert bounded_step_s(1.0, 1e12, CARD, 0.9) == 1.0


def test_a_feature_without_a_weight_changes_nothing() -> None:
    assert correction({"a": 2.0}, {"a": 1.0, "net=unheard of": 5.0}) == 2.0
    assert crossed(("x", "y"), {"v": 3.0}) == {"x×v": 3.0, "y×v": 3.0}


@given(st.floats(1.0, 8.0), st.floats(1.0, 8.0))
def test_a_better_gpu_is_never_slower(faster: float, wider: float) -> None:
    better = replace(
        CARD, name="better", matrix_flop_per_s=1e14 * faster, memory_bytes_per_s=1e12 * wider, tdp_w=300 * faster
    )
    assert transferred_s(1.0, WORK, CARD, better, TRANSFER) <= 1.0 + 1e-9
    language = llm.LlmSetup(device=CARD, model=LANGUAGE_MODELS["gpt2_large"], sequence=512, batch=4, training=True)
    assert llm.step_s(replace(language, device=better), LLM) <= llm.step_s(language, LLM) * (1 + 1e-9)


def test_a_step_stays_itself_on_its_own_gpu_and_scales_with_what_was_measured() -> None:
    assert transferred_s(0.2, WORK, CARD, CARD, TRANSFER) == pytest.approx(0.2)
    other = replace(CARD, memory_bytes_per_s=2e12)
    once = transferred_s(0.1, WORK, CARD, other, TRANSFER)
    assert transferred_s(0.2, WORK, CARD, other, TRANSFER) == pytest.approx(2 * once)


def test_no_gpu_is_taken_beyond_its_peak() -> None:
    other = replace(CARD, memory_bytes_per_s=1e16)
    hungry = replace(WORK, activation_bytes=1e12)
    assert transferred_s(0.02, hungry, CARD, other, TRANSFER) == pytest.approx(1e12 / 0.95e14)


def test_a_tiny_step_is_bound_by_starting_kernels() -> None:
    tiny = step_parts(replace(WORK, flop=1e6, activation_bytes=1e3, parameters=1e3), CARD, TRANSFER)
    assert tiny.start_s == pytest.approx(0.01)
    assert tiny.whole_s == pytest.approx(tiny.start_s, rel=1e-3)


@pytest.mark.parametrize("model", ["bert_large", "gpt3_xl", "switchxl4"])
def test_a_longer_batch_takes_longer_and_a_training_step_more_than_a_pass(model: str) -> None:
    def seconds(batch: float, *, training: bool) -> float:
        setup = llm.LlmSetup(device=CARD, model=LANGUAGE_MODELS[model], sequence=512, batch=batch, training=training)
        return llm.step_s(setup, LLM)

    assert seconds(1, training=False) < seconds(2, training=False) < seconds(2, training=True)
    # Backward, and dropout in both.
    assert 1 + LLM["backward"] < seconds(2, training=True) / seconds(2, training=False) < 1.3 * (1 + LLM["backward"])


def test_attention_that_is_not_dropped_is_not_paid_for() -> None:
    drops = llm.forward_pass(LANGUAGE_MODELS["bert_large"], 512, 8)
    keeps = llm.forward_pass(replace(LANGUAGE_MODELS["bert_large"], drops_attention=False), 512, 8)
    assert drops.dropout_bytes - keeps.dropout_bytes == pytest.approx(9 / 4 * drops.softmax_bytes)
    dropped = {name: getattr(drops, name) for name in ("dropout_bytes", "scores_dropout_bytes")}
    assert replace(keeps, **dropped) == drops


def test_four_gpus_share_the_work() -> None:
    alone = llm.LlmSetup(
        device=replace(CARD, link_bytes_per_s=3e11), model=LANGUAGE_MODELS["gpt2_large"], sequence=1024, batch=4,
        training=True,
    )  # fmt: skip
    whole = llm.step_s(alone, LLM)
    for option in ("dp4", "tp4"):
        assert whole / 4 < llm.step_s(replace(alone, option=option), LLM) < whole
    # One micro-batch goes through the stages one after the other; many keep them all busy.
    assert llm.step_s(replace(alone, option="pp4_1"), LLM) == pytest.approx(whole)
    assert llm.step_s(replace(alone, option="pp4_16"), LLM) < 0.35 * whole


def test_several_gpus_never_do_more_than_their_number() -> None:
    setup = known_jobs.ScalingSetup(
        device=CARD, network="resnet50", precision="amp", software="", gpus=8, bridged=False
    )
    assert known_jobs.log_efficiency(setup, {"doublings": 9.0}) == known_jobs.MOST_LOG_EFFICIENCY
    assert known_jobs.log_efficiency(replace(setup, gpus=1), {"several": -1.0}) == 0.0
    assert known_jobs.log_efficiency(setup, {"doublings": -0.1}) == pytest.approx(-0.3)


EXCHANGE = {
    "attained:peer": 0.5, "attained:nvlink": 0.5, "crowding:peer": 0.2, "exposed_crowding": 0.3, "hidden": 1.5,
    "usual_batch:resnet50|amp": 4.0,
}  # fmt: skip


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_what_is_left_falls_with_the_exchange(gpus: int) -> None:
    setup = known_jobs.ScalingSetup(
        device=CARD, network="resnet50", precision="amp", software="", gpus=gpus, bridged=False, samples_per_s=1000.0,
        batch=64.0,
    )  # fmt: skip
    found = known_jobs.log_efficiency(setup, EXCHANGE)
    assert found < 0
    # A longer step, a faster link or fewer GPUs leave more.
    assert known_jobs.log_efficiency(replace(setup, batch=256.0), EXCHANGE) > found
    linked = replace(setup, device=replace(CARD, link_bytes_per_s=3e11))
    assert known_jobs.log_efficiency(linked, EXCHANGE) > found
    assert gpus == 2 or known_jobs.log_efficiency(replace(setup, gpus=2), EXCHANGE) > found
    # Without a batch, the usual one for the memory; without a speed nothing is taken off.
    usual = 4.0 * CARD.memory_bytes / 2**30
    unknown = known_jobs.log_efficiency(replace(setup, batch=None), EXCHANGE)
    assert unknown == pytest.approx(known_jobs.log_efficiency(replace(setup, batch=usual), EXCHANGE))
    assert known_jobs.log_efficiency(replace(setup, samples_per_s=None), EXCHANGE) == 0.0


def test_an_exchange_that_takes_as_long_as_the_compute_halves_the_speed_when_it_hides_behind_nothing() -> None:
    ratio_1 = {"attained:peer": 1.0, "hidden": 1.0}
    setup = known_jobs.ScalingSetup(
        device=replace(CARD, host_bytes_per_s=1e9), network="resnet50", precision="amp", software="", gpus=2,
        bridged=False, samples_per_s=1e9 / (4e6 * 25.6), batch=1.0,
    )  # fmt: skip
    assert math.exp(known_jobs.log_efficiency(setup, ratio_1)) == pytest.approx(0.5)


def test_links_are_told_apart() -> None:
    setup = known_jobs.ScalingSetup(device=CARD, network="", precision="", software="", gpus=2, bridged=False)
    assert known_jobs.link_kind(setup) == "pcie"
    assert known_jobs.link_kind(replace(setup, device=replace(CARD, consumer=True))) == "shared pcie"
    assert known_jobs.link_kind(replace(setup, bridged=True)) == "bridge"
    assert known_jobs.link_kind(replace(setup, device=replace(CARD, link_bytes_per_s=3e11))) == "nvlink"


def test_the_narrowest_hop_of_bridged_cards_is_pcie_beyond_a_pair() -> None:
    card = replace(CARD, link_bytes_per_s=5e10, bridge=True)
    setup = known_jobs.ScalingSetup(device=card, network="", precision="", software="", gpus=2, bridged=True)
    assert known_jobs.narrowest_link(setup) == ("bridge", 5e10)
    assert known_jobs.narrowest_link(replace(setup, gpus=4)) == ("peer", card.host_bytes_per_s)
    consumer = replace(setup, gpus=4, device=replace(card, consumer=True))
    assert known_jobs.narrowest_link(consumer) == ("host", card.host_bytes_per_s)


def test_a_cluster_job_by_totals_grows_with_its_batch() -> None:
    setup = cluster_job.ClusterJobSetup(
        device=CARD, job="ResNet-50", totals=TOTALS["ResNet-50"], batch=16, gpus=1, placement="packed", table=""
    )
    assert cluster_job.log_step_s(setup) < cluster_job.log_step_s(replace(setup, batch=64))
    doubled = cluster_job.log_offset(replace(setup, gpus=2)) - cluster_job.log_offset(setup)
    assert doubled == pytest.approx(math.log(2))


def test_a_cluster_job_spread_over_a_network_exchanges_at_its_rate() -> None:
    setup = cluster_job.ClusterJobSetup(
        device=CARD, job="Transformer", totals=TOTALS["Transformer"], batch=64, gpus=2, placement="spread", table=""
    )
    gradients_s = 4 * TOTALS["Transformer"].parameters / 2e9
    rates = {"rate:spread": 2e9, "rate:packed": 2e10, "hidden": 1.0}
    one = -math.log(gradients_s)  # a step that takes as long as the exchange
    assert cluster_job.log_efficiency(setup, rates, one) == pytest.approx(math.log(0.5))
    assert cluster_job.log_efficiency(replace(setup, placement="packed"), rates, one) > math.log(0.9)
    own = {**rates, "rate:spread|card": 2e10}
    assert cluster_job.log_efficiency(setup, own, one) > math.log(0.9)
    assert cluster_job.log_efficiency(replace(setup, totals=None), rates, one) == 0.0


def test_a_gpus_own_effect_adds_to_that_of_its_architecture() -> None:
    other = replace(CARD, name="other", architecture="new")
    plain = transferred_s(0.1, WORK, CARD, other, TRANSFER)
    slower = transferred_s(0.1, WORK, CARD, other, {**TRANSFER, "effect:matrix:new": 0.2})
    assert slower == pytest.approx(plain * math.exp(0.2))
    own = transferred_s(0.1, WORK, CARD, other, {**TRANSFER, "effect:matrix:new": 0.2, "gpu:matrix:other": 0.1})
    assert own == pytest.approx(plain * math.exp(0.3))
    sloped = transferred_s(0.1, WORK, CARD, replace(other, tdp_w=2 * CARD.tdp_w), {**TRANSFER, "slope:tdp": -0.1})
    assert sloped == pytest.approx(plain * 2**-0.1, rel=1e-3)  # more power raises the roof by next to nothing here


def test_like_gpus_are_near() -> None:
    old, new = replace(CARD, year=2017), replace(CARD, year=2023)
    assert reach(old, replace(old, year=2020)) == "near"
    assert reach(old, new) == reach(new, old) == "far"
    assert reach(old, replace(old, matrix_flop_per_s=old.vector_flop_per_s)) == "far"
    assert reach(old, replace(old, year=None)) == "near"


def test_every_listed_gpu_is_a_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert SHIPPED.is_dir()
    for gpu in Catalog(tmp_path_factory.mktemp("nobody")).gpus.values():
        for precision in ("amp", "fp32", "ieee", "bf16"):
            device = device_of(gpu, precision)
            assert device.matrix_flop_per_s >= device.vector_flop_per_s
            assert math.isfinite(known_jobs.roof(device, 1.0))


def test_an_image_takes_longer_at_a_smaller_batch() -> None:
    setup = image.ImageSetup(
        device=CARD, network="net", family="net", branch="net", is_counted=True, macs={"conv": 4e9, "depthwise": 1e8},
        narrow_macs=1e8, elements={"conv": 1e7, "batch_norm": 1e7}, kernels=170, tensors=160, parameters=25e6,
        batch=256, image_size=224, training=True,
    )  # fmt: skip
    large = image.log_image_s(setup, PER_JOULE, {"nchw": {}}, {})
    assert image.log_image_s(replace(setup, batch=1), PER_JOULE, {"nchw": {}}, {}) > large
    assert image.log_image_s(replace(setup, training=False), PER_JOULE, {"nchw": {}}, {}) < large
