"""The laws of a recommendation, and what it says when there is none."""

import datetime as dt
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallwise.analysis.fleets import all_fleets, nodes_of, steps_of
from stallwise.analysis.job import JobModel
from stallwise.analysis.profile import GradientNoise
from stallwise.cloud.bids import bids_of, front, job_columns, plan_of, priced_offers, probability
from stallwise.cloud.options import FleetOption
from stallwise.cloud.recommend import Recommendation, recommend
from stallwise.cloud.request import RecommendRequest, SpotTerms, terms_of
from stallwise.errors import InputError, UnknownNameError
from stallwise.hardware.instance import Offer
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.step.epoch import BoundedStep, job_duration
from stallwise.sentences import Sentence
from stallwise.spot.lifetimes.models import Exponential
from stallwise.units import SECONDS_PER_HOUR
from tests.cloud.made import catalog, made_model

TODAY = dt.date(2026, 9, 1)
HOUR = 3600.0


@cache
def offers() -> tuple[Offer, ...]:
    """A tenth of the shipped offers: enough of every GPU."""
    return catalog().offers[::10]


@cache
def model() -> JobModel:
    return made_model(layers=6)


def ask(
    *, of: JobModel | None = None, among: tuple[Offer, ...] | None = None, samples: float = 2e7, **request: Any
) -> Recommendation:
    return recommend(
        of or model(), RecommendRequest(samples=samples, **request), offers() if among is None else among, TODAY
    )


def cost(found: Recommendation) -> float:
    return float("inf") if found.pick is None else found.pick.usd


@settings(max_examples=12)
@given(first=st.floats(0.3, 60.0), second=st.floats(0.3, 60.0), scale=st.booleans())
def test_a_tighter_deadline_never_costs_less(first: float, second: float, scale: bool) -> None:
    tight, loose = sorted((first, second))
    at = [ask(deadline_s=hours * HOUR, scale_batch=scale, max_nodes=8) for hours in (tight, loose)]
    assert cost(at[0]) >= cost(at[1]) * (1 - 1e-12)


def test_a_tighter_deadline_never_costs_less_on_spot() -> None:
    spot = SpotTerms(life=Exponential(20 * HOUR), name="made", save_s=10, provision_s=90, restart_s=60, replays=300)
    costs = [
        cost(ask(deadline_s=hours * HOUR, spot=spot, max_nodes=4, provision_s=90, startup_s=60))
        for hours in (2, 4, 8, 16, 32)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < cost(ask(deadline_s=32 * HOUR, max_nodes=4))  # spot is cheaper than none


@settings(max_examples=12)
@given(data=st.data(), hours=st.floats(0.5, 40.0))
def test_a_superset_of_offers_never_costs_more(data: st.DataObject, hours: float) -> None:
    some = data.draw(st.lists(st.sampled_from(offers()), min_size=1, max_size=60, unique_by=lambda o: o.key))
    more = [*some, *data.draw(st.lists(st.sampled_from(offers()), max_size=60))]
    few, many = (ask(among=tuple(these), deadline_s=hours * HOUR, max_nodes=8) for these in (some, more))
    assert cost(many) <= cost(few) * (1 + 1e-12)
    budget = [ask(among=tuple(these), budget_usd=200.0, max_nodes=8) for these in (some, more)]
    if budget[0].pick is not None:
        assert budget[1].pick is not None
        assert budget[1].pick.job_s <= budget[0].pick.job_s * (1 + 1e-12)


@settings(max_examples=10)
@given(prepare=st.floats(0.0, 4.0), hours=st.floats(1.0, 60.0))
def test_removing_a_stall_never_slows_nor_costs(prepare: float, hours: float) -> None:
    stalled = made_model(layers=6, prepare_s=prepare)
    freed = replace(stalled, job=replace(stalled.job, work=LoaderWork(prepare_s=0.0, blocked_s=0.0, workers=2)))
    with_stall, without = (ask(of=one, deadline_s=hours * HOUR, max_nodes=4) for one in (stalled, freed))
    assert cost(without) <= cost(with_stall) * (1 + 1e-9)
    budget = [ask(of=one, budget_usd=300.0, max_nodes=4).pick for one in (stalled, freed)]
    if budget[0] is not None:
        assert budget[1] is not None
        assert budget[1].job_s <= budget[0].job_s * (1 + 1e-9)


@settings(max_examples=10)
@given(
    hours=st.floats(2.0, 100.0),
    provision=st.floats(0.0, 900.0),
    startup=st.floats(0.0, 900.0),
    data_gb=st.floats(0.0, 2000.0),
)
def test_cost_is_price_times_time_times_machines_and_named_extras(
    hours: float, provision: float, startup: float, data_gb: float
) -> None:
    found = ask(
        deadline_s=hours * HOUR, provision_s=provision, startup_s=startup, data_in=("aws", "us-east-1"),
        data_bytes=data_gb * 1e9, max_nodes=8,
    )  # fmt: skip
    for option in [*found.front, *(one.option for one in found.neighbours), *([found.pick] if found.pick else [])]:
        _adds_up(option, provision)


def _adds_up(option: FleetOption, provision_s: float) -> None:
    rent = option.usd_per_h * option.nodes * (option.job_s - provision_s) / SECONDS_PER_HOUR
    assert option.usd == pytest.approx(rent + (option.moving_usd or 0.0) + (option.keeping_usd or 0.0), rel=1e-9)
    assert option.low_s <= option.job_s <= option.high_s
    assert option.low_usd <= option.usd <= option.high_usd


def test_the_front_is_what_nothing_beats() -> None:
    rng = np.random.default_rng(0)
    time_s, usd = rng.lognormal(size=(2, 500))
    found = front(time_s, usd)
    for i in range(500):
        beaten = bool(((time_s <= time_s[i]) & (usd <= usd[i]) & ((time_s < time_s[i]) | (usd < usd[i]))).any())
        assert (i in found) == (not beaten)


def test_columns_of_the_job_are_the_epoch_model() -> None:
    request = RecommendRequest(
        samples=1e6, epochs=3.5, evaluation_s=40, checkpoint_s=5, checkpoint_every_s=600, startup_s=30
    )
    step, cold, batch = 0.12, 0.2, 513.0
    columns = job_columns(np.array([step]), np.array([cold]), np.array([batch]), request)
    truth = job_duration(BoundedStep(s=step, low_s=step, high_s=step, cold_s=cold), plan_of(request, batch))
    assert columns[0] + 30 == pytest.approx(truth.job_s, rel=1e-12)


def test_probability_is_that_of_the_bounds() -> None:
    assert probability(10.0, 10.0, 5.0, 30.0) == pytest.approx(0.5)
    assert probability(30.0, 10.0, 5.0, 30.0) == pytest.approx(0.9, abs=1e-6)
    assert probability(5.0, 10.0, 5.0, 30.0) == pytest.approx(0.1, abs=1e-6)
    assert probability(9.9, 10.0, 10.0, 10.0) == 0.0
    assert probability(10.0, 10.0, 10.0, 10.0) == 1.0


def test_the_pick_keeps_the_deadline_as_surely_as_asked() -> None:
    for confidence in (0.6, 0.9, 0.99):
        found = ask(deadline_s=20 * HOUR, confidence=confidence)
        assert found.pick is not None
        assert found.pick.in_time is not None
        assert found.pick.in_time >= confidence - 1e-9


def test_every_neighbour_says_why_with_figures() -> None:
    found = ask(deadline_s=20 * HOUR)
    assert len(found.neighbours) >= 4
    for neighbour in found.neighbours:
        assert any(c.isdigit() for c in neighbour.why)
        assert neighbour.option.name
    big = ask(
        of=made_model(gradient_mb=1000, layers=12, compute_s=0.4), among=catalog().offers, samples=3e7,
        instances=frozenset({"g5.12xlarge"}), deadline_s=20 * HOUR, scale_batch=True,
    )  # fmt: skip
    said = [one.why for one in big.neighbours]
    assert any(re.search(r"network stall \d+ %: 40 Gb/s for 1\.\d+ GB of gradients", why) for why in said), said


def test_where_nothing_is_as_quick_the_answer_is_to_stay() -> None:
    """Without limits, and with only a slower GPU to rent."""
    slow = tuple(one for one in catalog().offers if one.instance.name == "g4dn.xlarge" and one.market == "on-demand")
    found = ask(among=slow, of=made_model(layers=6, prepare_s=0.01), max_nodes=1)
    assert found.pick is not None
    assert found.pick.job_s > found.own_machine.job_s
    assert found.stay is not None
    assert found.verdict.startswith("Stay where you are and nothing has to change")
    assert any("as quick as the run's own machine" in words for words in found.warnings)


def test_stay_and_raise_num_workers() -> None:
    """Compute leaves the loader far behind, cores are idle, and more workers make the deadline."""
    slow = made_model(prepare_s=0.8)  # two workers: 0.4 s a step, eight cores for four GPUs
    slow = replace(slow, job=replace(slow.job, cores_per_node=32, step=replace_step(slow, 0.405)))
    as_is = slow.global_batch / 0.405
    samples = 1e7
    deadline = 0.7 * samples / as_is
    found = ask(of=slow, samples=samples, deadline_s=deadline)
    assert found.stay is not None
    assert found.stay.more_workers is not None
    assert found.stay.more_workers > 2
    assert "raise num_workers from 2 to" in found.verdict
    assert "pays only if your machine costs more than" in found.verdict
    dear = ask(of=slow, samples=samples, deadline_s=deadline, own_usd_per_h=1000.0)
    assert dear.stay is None
    assert dear.pick is not None


def replace_step(of: JobModel, step_s: float) -> Any:
    return replace(of.job.step, s=step_s, low_s=0.99 * step_s, high_s=1.01 * step_s)  # type: ignore[type-var]


def not_rented(found: Recommendation) -> Sentence:
    """Why nothing is rented: a warning where the job may stay where it is, else why it is impossible."""
    assert (found.impossible is None) == (found.stay is not None)
    return found.impossible or next(one for one in found.warnings if one.code.startswith("impossible"))


def test_nothing_fits_the_memory() -> None:
    found = ask(of=made_model(parameters=60e9, gpu="RTX3090"), deadline_s=20 * HOUR)
    assert found.pick is None
    why = not_rented(found)
    assert "No offer fits the memory" in why
    assert "GiB" in why
    assert "What would do" in why


def test_an_impossible_deadline_says_by_how_much_and_what_would_do() -> None:
    found = ask(deadline_s=20.0)
    assert found.pick is None
    assert found.impossible is not None
    assert "more than the deadline" in found.impossible
    assert "a global batch that may grow further" in found.impossible
    minutes = int(found.impossible.split("a deadline of ")[1].split("min")[0])
    assert ask(deadline_s=60.0 * minutes).pick is not None


def test_an_impossible_budget_says_what_would_do() -> None:
    found = ask(budget_usd=0.01)
    assert found.pick is None
    needed = float(not_rented(found).split("a budget of ")[1].split("usd")[0])
    assert ask(budget_usd=needed).pick is not None


def test_scaling_the_batch_warns() -> None:
    found = ask(deadline_s=1.0 * HOUR, scale_batch=True, samples=2e8)
    assert found.pick is not None
    assert found.pick.batch > model().global_batch
    assert any("epochs the same accuracy takes" in words for words in found.warnings)
    assert not ask(deadline_s=40 * HOUR).warnings


def test_larger_batches_take_more_samples_where_the_noise_is_known() -> None:
    batch = model().global_batch
    noise = GradientNoise(samples=4 * batch, low=3 * batch, high=5 * batch, batch=batch)
    scaled = RecommendRequest(samples=2e8, scale_batch=True, noise=noise)
    # Steps fall as 1 + B_noise/B: of 1 + 4, 1 + 4/12 are left, at 12 times the samples each.
    assert scaled.samples_factor(np.array([batch, 12 * batch])) == pytest.approx([1.0, 12 * (4 / 3) / 5])
    assert replace(scaled, scale_batch=False).samples_factor(np.array([12 * batch])) == pytest.approx([1.0])
    unbounded = GradientNoise(samples=math.inf, low=3 * batch, high=math.inf, batch=batch)
    assert replace(scaled, noise=unbounded).samples_factor(np.array([3 * batch])) == pytest.approx([1.5])
    asked = {"deadline_s": 1.0 * HOUR, "scale_batch": True, "samples": 2e8, "among": catalog().offers[::3]}
    without, with_noise = ask(**asked), ask(**asked, noise=noise)
    assert without.pick is not None
    if with_noise.pick is not None:
        assert with_noise.pick.usd > without.pick.usd
        assert any("By the gradient noise scale" in words for words in with_noise.warnings)
    else:
        assert with_noise.impossible is not None


def test_data_in_a_region_draws_the_pick_there() -> None:
    far = ask(deadline_s=40 * HOUR, data_in=("aws", "us-east-1"), data_bytes=5e13)
    assert far.pick is not None
    assert (far.pick.offer.instance.cloud, far.pick.offer.region) == ("aws", "us-east-1")
    assert far.pick.moving_usd == 0.0


def test_discounts_and_quotas() -> None:
    plain = ask(deadline_s=20 * HOUR)
    assert plain.pick is not None
    instance = plain.pick.offer.instance
    half = terms_of(catalog(), [f"{instance.cloud}/{instance.name}=50%"])
    cheaper = ask(deadline_s=20 * HOUR, terms=half)
    assert cheaper.pick is not None
    assert cheaper.pick.usd <= 0.5 * plain.pick.usd * (1 + 1e-9)
    none = terms_of(catalog(), quotas=[f"{instance.gpu.name}=0"])
    without = ask(deadline_s=20 * HOUR, terms=none)
    assert without.pick is not None
    assert without.pick.offer.instance.gpu != instance.gpu
    with pytest.raises(UnknownNameError, match=r"p4d\.24xlarge"):
        terms_of(catalog(), ["aws/p4d.24xlarg=10%"])
    with pytest.raises(InputError, match="whole number"):
        terms_of(catalog(), quotas=["aws=many"])


def test_spot_is_exactly_spot_plan() -> None:
    from stallwise.spot.plan.planner import evaluate, judge_outcomes

    spot = SpotTerms(life=Exponential(12 * HOUR), name="made", save_s=10, provision_s=90, restart_s=60, replays=500)
    found = ask(among=catalog().offers, deadline_s=20 * HOUR, spot=spot, on_demand=False, provision_s=90, startup_s=60)
    assert found.pick is not None
    assert found.pick.spot is not None
    replay = found.pick.spot
    again = judge_outcomes(evaluate(replay.spot_request, replay.interval_s), replay.spot_request)
    assert again == replay.result
    assert found.pick.job_s == pytest.approx(again.finish_s.mean)
    assert found.pick.usd == pytest.approx(again.cost_usd.mean)
    assert found.zones is not None
    assert found.zones.cheapest.usd_per_h <= found.zones.median_usd_per_h <= found.zones.dearest.usd_per_h


def test_bids_leave_out_what_does_not_fit() -> None:
    one = made_model(parameters=3e9, gpu="RTX3090")
    request = RecommendRequest(samples=1e6)
    priced = priced_offers(offers(), request)
    instances = list(dict.fromkeys(o.offer.instance for o in priced))
    kinds, of_type, _ = nodes_of(one, instances)
    fleets = all_fleets(kinds, one, max_nodes=2)
    found = steps_of(one, fleets, request.settings)
    bids = bids_of(one, fleets, found, of_type, priced, request)
    assert not found.fits.all()
    assert found.fits[bids.fleet].all()
    assert np.isfinite(bids.usd).all()
