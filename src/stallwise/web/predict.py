"""What the sliders are answered with: the same functions as `stallwise whatif` and `stallwise recommend` call.

On the run's own machines and on rented ones the step is that of `Analysis.on`; what a rented fleet costs is worked out
in `cloud/` as in a recommendation, alone instead of with all others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stallwise.analysis.fleets import NO_MEMORY, UNEVEN, Fleets, steps_of
from stallwise.analysis.job import JobModel
from stallwise.analysis.prediction import Prediction, fleet_of
from stallwise.analysis.target import Target
from stallwise.cloud.bids import bids_of, priced_offers
from stallwise.cloud.handover import skypilot_yaml
from stallwise.cloud.losses import through_losses
from stallwise.cloud.options import FleetOption, option_of
from stallwise.cloud.recommend import Recommendation, recommend
from stallwise.cloud.request import RecommendRequest, SpotTerms
from stallwise.errors import InputError
from stallwise.hardware.instance import Instance
from stallwise.hardware.prices import current_date
from stallwise.model.step.epoch import JobDuration, TrainingPlan
from stallwise.model.step.job import OwnLinks
from stallwise.report.format import show_probability, show_seconds, show_usd_bounds
from stallwise.report.views.recommend import show_age, show_own_machine, show_request
from stallwise.run.manifest import JobRecord
from stallwise.sentences import Sentence
from stallwise.units import BITS_PER_BYTE
from stallwise.web._forms import SliderPositions, query_integer, query_number, shell_command
from stallwise.web.runs import OpenRun

QUICK_REPLAYS = 300
"""Of a spot fleet while a slider moves: 3 % of the command line's, which leaves room below 100 ms on a laptop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RentTerms:
    """How rented machines begin and are lost, as the command line takes it."""

    provision_s: float
    startup_s: float
    assumptions: tuple[Sentence, ...]
    losses: Callable[[OpenRun, float], SpotTerms]
    """The spot terms of a run at a mean life in hours."""


def predict_own(
    opened: OpenRun, positions: SliderPositions, *, curve: bool = False
) -> tuple[Prediction, JobDuration | None]:
    """On the run's own machines: the prediction, and the job where its samples are known."""
    job = opened.analysis
    prediction = job.on(own_target(opened, positions), curve=None if curve else False)
    if positions.samples is None or prediction.setup.global_batch is None:
        return prediction, None
    return prediction, prediction.whole(
        TrainingPlan(samples=positions.samples, batch=prediction.setup.global_batch, cold_first=False)
    )


def own_target(opened: OpenRun, positions: SliderPositions) -> Target:
    """The target at the positions of the sliders, on the run's own machines."""
    return Target(
        nodes=positions.nodes,
        gpus_per_node=positions.used,
        network_bytes_per_s=_rate(positions.network_gbit),
        link_bytes_per_s=_rate(positions.link_gbit),
        global_batch=opened.analysis.model().global_batch if positions.keep_batch else None,
        workers=positions.workers,
        cached=positions.cache,
    )


def _rate(gbit: float | None) -> float | None:
    return None if gbit is None else gbit * 1e9 / BITS_PER_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedFleet:
    """The fleet at the positions of the sliders."""

    model: JobModel
    request: RecommendRequest
    option: FleetOption


def predict_rented(opened: OpenRun, positions: SliderPositions, terms: RentTerms) -> RentedFleet:
    """On rented machines: the cheapest offer of the instance type; an `InputError` where it cannot be."""
    if positions.samples is None:
        raise InputError("Say how many samples the job has: time and cost of rented machines are those of a job.")
    instance = _instance(opened, positions)
    request = request_of(opened, positions, terms)
    offers = opened.offers_of(instance)
    priced = priced_offers(offers, request)
    if not priced:
        market = "spot" if positions.spot else "on-demand"
        raise InputError(f"The catalog lists no {market} price of {instance.name}.")
    model = opened.analysis.model()
    target = Target(
        instance=instance,
        nodes=positions.nodes or 1,
        gpus_per_node=min(positions.used or instance.gpu_count, instance.gpu_count),
        network_bytes_per_s=_rate(positions.network_gbit),
        link_bytes_per_s=_rate(positions.link_gbit),
    )
    kind, fleet = fleet_of(model, target, OwnLinks())
    # What is rented is the whole machine, however many of its GPUs are used.
    fleet = replace(fleet, kinds=(replace(kind, gpus=instance.gpu_count),), count=None)
    steps = steps_of(model, fleet, replace(request.settings, cached=positions.cache))
    _check_fits(int(steps.why_not[0]), model, fleet)
    of_type = {(instance.cloud, instance.name): 0}
    bids, replays, _ = through_losses(bids_of(model, fleet, steps, of_type, priced, request), request)
    finished = np.isfinite(bids.job_s) & np.isfinite(bids.usd)
    if not finished.any():
        raise InputError("Machines that live so briefly never finish this job. Give them longer, or rent others.")
    best = int(np.argmin(np.where(finished, bids.usd, np.inf)))
    return RentedFleet(model=model, request=request, option=option_of(model, bids, best, request, replays))


def request_of(opened: OpenRun, positions: SliderPositions, terms: RentTerms) -> RecommendRequest:
    """The request of a recommendation that is limited to this instance type."""
    instance = _instance(opened, positions)
    return RecommendRequest(
        samples=positions.samples or 1.0,
        cold_first=False,
        clouds=frozenset({instance.cloud}),
        instances=frozenset({instance.name}),
        max_nodes=positions.nodes or 1,
        retired=True,
        arm=True,
        on_demand=not positions.spot,
        spot=_spot(opened, positions, terms) if positions.spot else None,
        global_batch=opened.analysis.model().global_batch if positions.keep_batch else None,
        scale_batch=True,
        noise=opened.analysis.noise,
        workers=positions.workers,
        provision_s=terms.provision_s,
        startup_s=terms.startup_s,
        assumptions=terms.assumptions,
    )


def _spot(opened: OpenRun, positions: SliderPositions, terms: RentTerms) -> SpotTerms:
    """Spot terms as the command line has them; with fewer replays while a slider moves."""
    spot = terms.losses(opened, positions.mean_life_h)
    return replace(spot, replays=min(spot.replays, QUICK_REPLAYS)) if positions.quick else spot


def _instance(opened: OpenRun, positions: SliderPositions) -> Instance:
    cloud, _, name = (positions.instance or "").partition("/")
    return opened.catalog.instance(name, cloud)


def _check_fits(why_not: int, model: JobModel, fleet: Fleets) -> None:
    gpu = fleet.kinds[0].gpu
    if why_not == NO_MEMORY and gpu is not None:
        raise InputError(f"The job does not fit into the memory of {gpu.name}.")
    if why_not == UNEVEN:
        raise InputError(
            f"A batch of {model.global_batch:g} cannot be shared evenly among {int(fleet.gpus[0])} GPUs. Keep each "
            "GPU's batch instead, or take another number."
        )


_READ_FROM = ("trace", "layer file")


@dataclass(frozen=True, slots=True, kw_only=True)
class RentForm:
    """The form that asks what to rent."""

    samples: float
    deadline_h: float | None = None
    budget_usd: float | None = None
    cloud: str | None = None
    gpu: str | None = None
    max_nodes: int = 64
    spot: bool = False
    mean_life_h: float = 12.0
    scale_batch: bool = False

    def words(self, run: str) -> list[str]:
        """The words of the `stallwise recommend` command for this form."""
        words = ["stallwise", "recommend", run, "--samples", f"{self.samples:.15g}"]
        words += [] if self.deadline_h is None else ["--deadline", f"{self.deadline_h:.15g}h"]
        words += [] if self.budget_usd is None else ["--budget", f"{self.budget_usd:.15g}usd"]
        for option, value in (("--clouds", self.cloud), ("--gpu", self.gpu)):
            words += [] if value is None else [option, value]
        words += [] if self.max_nodes == 64 else ["--max-nodes", str(self.max_nodes)]
        words += ["--spot", "--mean-life", f"{self.mean_life_h:g}h"] if self.spot else []
        return [*words, "--scale-batch"] if self.scale_batch else words


def rent_form_of(query: Mapping[str, str]) -> RentForm:
    """The form read from a query."""
    samples = query_number(query, "samples", 1.0, 1e18)
    if samples is None:
        raise InputError("Say how many samples the job has.")
    return RentForm(
        samples=samples,
        deadline_h=query_number(query, "deadline_h", 1e-6, 1e6),
        budget_usd=query_number(query, "budget_usd", 1e-6, 1e12),
        cloud=query.get("cloud") or None,
        gpu=query.get("gpu") or None,
        max_nodes=query_integer(query, "max_nodes", 1, 1024) or 64,
        spot=query.get("spot") == "1",
        mean_life_h=query_number(query, "mean_life_h", 1e-2, 1e5) or 12.0,
        scale_batch=query.get("batch") == "scaled",
    )


def recommend_from_page(opened: OpenRun, form: RentForm, terms: RentTerms) -> Recommendation:
    """The recommendation that the command would give."""
    catalog = opened.catalog
    request = RecommendRequest(
        samples=form.samples,
        cold_first=False,
        deadline_s=None if form.deadline_h is None else 3600 * form.deadline_h,
        budget_usd=form.budget_usd,
        clouds=None if form.cloud is None else frozenset({form.cloud}),
        gpus=None if form.gpu is None else catalog.gpu_names(form.gpu),
        max_nodes=form.max_nodes,
        spot=terms.losses(opened, form.mean_life_h) if form.spot else None,
        scale_batch=form.scale_batch,
        noise=opened.analysis.noise if form.scale_batch else None,
        provision_s=terms.provision_s,
        startup_s=terms.startup_s,
        assumptions=terms.assumptions,
    )
    return recommend(opened.analysis.model(), request, catalog.offers, current_date(), opened.analysis.links)


def recommend_document(recommendation: Recommendation, run: str, form: RentForm) -> dict[str, Any]:
    """The answer, the front and the points of the picture."""
    own = (recommendation.own_machine, recommendation.own_machine_tuned)
    return {
        "asked": show_request(recommendation),
        "verdict": recommendation.verdict,
        "impossible": recommendation.impossible,
        "now": [show_own_machine(machine) for machine in own if machine is not None],
        "prices": show_age(recommendation),
        "pick": None if recommendation.pick is None else _front_place(recommendation),
        "front": [_row(option) for option in recommendation.front],
        "points": [[one.job_s, one.usd, one.spot, one.name] for one in recommendation.points if one.usd > 0],
        "deadline_s": recommendation.request.deadline_s,
        "budget_usd": recommendation.request.budget_usd,
        "lost": [
            {"fleet": one.option.name, "time": show_seconds(one.option.job_s), "cost": f"${one.option.usd:,.2f}",
             "why": one.why}
            for one in recommendation.neighbours
        ],
        "warnings": list(recommendation.warnings),
        "assumed": list(recommendation.assumptions),
        "command": shell_command(form.words(run)),
    }  # fmt: skip


def _row(option: FleetOption) -> dict[str, Any]:
    offer = option.offer
    return {
        "fleet": option.name,
        "gpus": f"{option.gpus} × {offer.instance.gpu.name}",
        "where": f"{offer.instance.cloud} {offer.zone or offer.region}",
        "time_s": option.job_s,
        "usd": option.usd,
        "time": show_seconds(option.job_s),
        "cost": f"${option.usd:,.2f}",
        "bounds": show_usd_bounds(option.low_usd, option.high_usd),
        "binds": "storage" if option.storage_bound else option.answer.binds,
        "in_limits": show_probability(option.in_limits),
        "instance": f"{offer.instance.cloud}/{offer.instance.name}",
        "nodes": option.nodes,
        "used": option.used,
        "spot": offer.market == "spot",
    }


def _front_place(recommendation: Recommendation) -> dict[str, Any]:
    """The pick, and where in the front it stands."""
    pick = recommendation.pick
    assert pick is not None  # noqa: S101 - the caller has checked
    place = next(
        (i for i, one in enumerate(recommendation.front) if one.name == pick.name and one.offer == pick.offer), None
    )
    return _row(pick) | {"place": place}


def skypilot(recommendation: Recommendation, job: JobRecord, place: int | None) -> str:
    """The task of the pick, as the command writes it; of another fleet of the front where `place` names one."""
    return skypilot_yaml(recommendation if place is None else pick_from_front(recommendation, place), launch_words(job))


def pick_from_front(recommendation: Recommendation, place: int) -> Recommendation:
    """The recommendation with a fleet of the front as its pick, and no other candidate."""
    if not 0 <= place < len(recommendation.front):
        raise InputError(f"The front has {len(recommendation.front)} fleets; there is none at place {place}.")
    return with_pick(recommendation, recommendation.front[place])


def with_pick(recommendation: Recommendation, option: FleetOption) -> Recommendation:
    """The same with another pick, which a person has chosen."""
    chosen = Sentence("rent", f"{option.name}, chosen on the page.", time_s=option.job_s, usd=option.usd)
    return replace(recommendation, pick=option, candidates=(option,), verdict=chosen)


def skypilot_of(opened: OpenRun, option: FleetOption, request: RecommendRequest) -> str:
    """The SkyPilot task of one fleet, whatever the recommendation."""
    alone = recommend(opened.analysis.model(), request, [option.offer], current_date(), opened.analysis.links)
    return skypilot_yaml(with_pick(alone, option), launch_words(opened.run.manifest.job))


def launch_words(job: JobRecord) -> list[str]:
    """What torchrun is to run; a run that was read from another tool's file does not say it."""
    if job.launcher in _READ_FROM:
        return ["train.py"]
    return [*(["-m"] if job.module else []), job.script, *job.arguments]
