"""Bids: every fleet at the price of every offer it can be rented at, as columns; which keep the limits, and the best.

    time  = provision + start-up + first epoch (nothing in memory yet) + later epochs           (`step/epoch`)
    cost  = price · machines · (time - provision) + moving the data + keeping a copy of it

Times have the step's bounds. A limit is met with probability q when the q-quantile is within it; quantiles come from a
two-sided log-normal whose 10 % and 90 % points are the bounds of the step.

With a deadline the pick is the cheapest bid that keeps it, with a budget the fastest that keeps it, with both the
cheapest that keeps both; with neither the cheapest that is no slower than the job is where it runs now. Ties go to the
cheaper, the faster, the smaller fleet, then by name, so that a request always has the same answer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stallwise.analysis.fleets import Fleets, FleetSteps
from stallwise.analysis.job import JobModel
from stallwise.cloud.request import RecommendRequest
from stallwise.hardware.instance import Offer
from stallwise.hardware.prices import storage_usd_per_h, transfer_usd
from stallwise.model.step.epoch import TrainingPlan, job_s
from stallwise.model.step.prediction import Columns
from stallwise.model.step.setups import Numbers
from stallwise.units import SECONDS_PER_HOUR

Z80 = 1.2815515655446004
"""The 90 % point of the normal distribution: bounds of the step are 80 % bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedOffer:
    """An offer at the user's own price, with the costs of moving data to its region and keeping it there."""

    offer: Offer
    usd_per_h: float
    most_gpus: float
    moving_usd: float | None
    """Once; None: not known, counted as nothing."""
    keeping_usd_per_h: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bids:
    """Columns: a fleet at an offer's price. `job_s` counts from the order; low and high hold 80 %."""

    offers: tuple[PricedOffer, ...]
    fleets: Fleets
    steps: FleetSteps
    fleet: Numbers
    """Column of `fleets` and `steps`."""
    offer: Numbers
    fixed_s: float
    """Part of `job_s` that does not depend on the speed of a step."""
    provision_s: float
    job_s: Columns
    low_s: Columns
    high_s: Columns
    usd: Columns
    low_usd: Columns
    high_usd: Columns
    bound_s: Columns
    """Time that is kept with the confidence of the request; `bound_usd` likewise for the cost."""
    bound_usd: Columns

    def __len__(self) -> int:
        return len(self.fleet)

    @property
    def nodes(self) -> Numbers:
        """Number of machines of each bid."""
        return self.fleets.nodes[self.fleet]

    def take(self, chosen: npt.NDArray[np.bool_] | Numbers) -> "Bids":
        """Return the chosen bids only."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def spot(self) -> npt.NDArray[np.bool_]:
        """Which bids are on spot machines, which can be lost."""
        return np.array([one.offer.market == "spot" for one in self.offers] or [False])[self.offer]


COLUMNS = ("fleet", "offer", "job_s", "low_s", "high_s", "usd", "low_usd", "high_usd", "bound_s", "bound_usd")


def probability(value: float, mid: float, low: float, high: float) -> float:
    """Probability that a quantity, 80 % of which lies between `low` and `high`, stays within `value`."""
    if value <= 0 or not math.isfinite(mid):
        return 0.0
    bound = high if value >= mid else low
    if bound == mid:
        return 1.0 if value >= mid else 0.0
    sigma = abs(math.log(bound / mid)) / Z80
    return 0.5 * (1 + math.erf(math.log(value / mid) / sigma / math.sqrt(2)))


def z_of(confidence: float) -> float:
    """Quantile of the standard normal distribution at `confidence`."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(confidence)


def quantile(mid: Columns, low: Columns, high: Columns, confidence: float) -> Columns:
    """Value that is not exceeded with probability `confidence`, by column."""
    z = z_of(confidence)
    side = high if z >= 0 else low
    with np.errstate(divide="ignore", invalid="ignore"):
        values = mid * (side / mid) ** (abs(z) / Z80)
    return np.where(mid > 0, values, side)


def priced_offers(offers: Iterable[Offer], request: RecommendRequest) -> list[PricedOffer]:
    """Return the offers that the request allows, at the user's prices."""
    data_bytes = request.data_bytes or 0.0
    priced = []
    for offer in offers:
        if not _allowed(offer, request):
            continue
        moving = keeping = 0.0 if request.data_in is None else None
        if request.data_in is not None:
            place = (offer.instance.cloud, offer.region)
            moving = transfer_usd(data_bytes, request.data_in, place)
            keeping = 0.0 if place == request.data_in else storage_usd_per_h(data_bytes, place[0])
        priced.append(
            PricedOffer(
                offer=offer,
                usd_per_h=request.terms.usd_per_h(offer),
                most_gpus=request.terms.most_gpus(offer),
                moving_usd=moving,
                keeping_usd_per_h=keeping,
            )
        )
    return _undominated(priced)


def _allowed(offer: Offer, request: RecommendRequest) -> bool:
    instance = offer.instance
    market = request.on_demand if offer.market == "on-demand" else request.spot is not None
    return (
        market
        and (request.retired or instance.retired_on is None)
        and (request.arm or instance.cpu_arch != "arm64")
        and (request.clouds is None or instance.cloud in request.clouds)
        and (request.regions is None or offer.region in request.regions)
        and (request.gpus is None or instance.gpu.name in request.gpus)
        and (request.instances is None or instance.name in request.instances)
    )


def _undominated(offers: Sequence[PricedOffer]) -> list[PricedOffer]:
    """Keep the cheapest of offers that differ in price alone: speed does not depend on the region."""
    best: dict[tuple[object, ...], PricedOffer] = {}
    for one in offers:
        instance = one.offer.instance
        key = (
            instance.cloud, instance.name, one.offer.market, one.moving_usd, one.keeping_usd_per_h, one.most_gpus,
        )  # fmt: skip
        if key not in best or (one.usd_per_h, one.offer.key) < (best[key].usd_per_h, best[key].offer.key):
            best[key] = one
    return list(best.values())


def job_columns(steps_s: Columns, cold_s: Columns, batch: Columns, request: RecommendRequest) -> Columns:
    """Seconds of the whole job after start-up, by column."""
    # As many steps as with a batch that much smaller.
    batch = batch / request.samples_factor(batch)
    return job_s(steps_s, cold_s, batch, replace(plan_of(request, 1.0), startup_s=0.0))


def plan_of(request: RecommendRequest, batch: float) -> TrainingPlan:
    """The training plan of the request for one fleet with a global batch of `batch` samples."""
    return TrainingPlan(
        samples=request.samples,
        batch=float(batch / request.samples_factor(np.array([batch]))[0]),
        epochs=request.epochs,
        cold_first=request.cold_first,
        startup_s=request.provision_s + request.startup_s,
        evaluation_s=request.evaluation_s,
        checkpoint_s=request.checkpoint_s,
        checkpoint_every_s=request.checkpoint_every_s,
    )


def bids_of(
    model: JobModel,
    fleets: Fleets,
    steps: FleetSteps,
    of_type: dict[tuple[str, str], int],
    offers: Sequence[PricedOffer],
    request: RecommendRequest,
) -> Bids:
    """Return every fleet at every price it can be rented at, without those that do not fit."""
    by_kind: dict[int, list[int]] = {}
    for number, one in enumerate(offers):
        instance = one.offer.instance
        kind = of_type.get((instance.cloud, instance.name))
        if kind is not None:
            by_kind.setdefault(kind, []).append(number)
    columns, numbers = [], []
    for kind, having in by_kind.items():
        mine = np.flatnonzero((fleets.kind == kind) & steps.fits)
        for number in having:
            # A quota counts GPUs that are rented, used or not.
            rented = fleets.nodes[mine] * fleets.kinds[kind].gpus
            within = mine[rented <= offers[number].most_gpus]
            columns.append(within)
            numbers.append(np.full(len(within), number, dtype=np.int64))
    column = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    offer = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
    return _billed(model, fleets, steps, tuple(offers), column, offer, request)


def _billed(
    model: JobModel,
    fleets: Fleets,
    steps: FleetSteps,
    offers: tuple[PricedOffer, ...],
    column: Numbers,
    offer: Numbers,
    request: RecommendRequest,
) -> Bids:
    batch = model.samples * steps.batch * fleets.gpus
    fixed_s = request.provision_s + request.startup_s
    ratio = steps.cold_s / steps.step_s
    lost = np.array([one.offer.market == "spot" for one in offers] or [False])[offer]
    bare = replace(request, checkpoint_s=0.0)  # on machines that may vanish, spot/plan decides how often to save
    mid, low, high = (
        fixed_s + np.where(lost, *(job_columns(step, step * ratio, batch, one)[column] for one in (bare, request)))
        for step in (steps.step_s, steps.low_s, steps.high_s)
    )
    price = np.array([one.usd_per_h for one in offers] or [0.0])[offer] * fleets.nodes[column]
    price = price + np.array([one.keeping_usd_per_h or 0.0 for one in offers] or [0.0])[offer]
    once = np.array([one.moving_usd or 0.0 for one in offers] or [0.0])[offer]
    usd, low_usd, high_usd = (
        (time - request.provision_s) / SECONDS_PER_HOUR * price + once for time in (mid, low, high)
    )
    return Bids(
        offers=offers,
        fleets=fleets,
        steps=steps,
        fleet=column,
        offer=offer,
        fixed_s=fixed_s,
        provision_s=request.provision_s,
        job_s=mid,
        low_s=low,
        high_s=high,
        usd=usd,
        low_usd=low_usd,
        high_usd=high_usd,
        bound_s=fixed_s + quantile(mid - fixed_s, low - fixed_s, high - fixed_s, request.confidence),
        bound_usd=quantile(usd, low_usd, high_usd, request.confidence),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BidChoice:
    """Columns of the bids: the pick (None: nothing keeps the limits), and the Pareto front ordered by time."""

    pick: int | None
    front: tuple[int, ...]


def choose(bids: Bids, request: RecommendRequest, now_s: float | None) -> BidChoice:
    """Choose the pick among `bids`; `now_s` is the job's time where it runs now."""
    good = keeps(bids, request)
    if not request.limited and now_s is not None and (good & (bids.job_s <= now_s)).any():
        good &= bids.job_s <= now_s
    fastest = request.budget_usd is not None and request.deadline_s is None
    return BidChoice(
        pick=_first(bids, np.flatnonzero(good), quickest=fastest),
        front=tuple(front(bids.job_s, bids.usd).tolist()),
    )


def keeps(bids: Bids, request: RecommendRequest) -> npt.NDArray[np.bool_]:
    """Which bids keep the limits with the confidence of the request."""
    good = np.isfinite(bids.job_s) & np.isfinite(bids.usd)
    if request.deadline_s is not None:
        good &= bids.bound_s <= request.deadline_s
    if request.budget_usd is not None:
        good &= bids.bound_usd <= request.budget_usd
    return good


def _first(bids: Bids, columns: Numbers, *, quickest: bool) -> int | None:
    if not len(columns):
        return None
    first, second = (bids.job_s, bids.usd) if quickest else (bids.usd, bids.job_s)
    order = np.lexsort((bids.nodes[columns], second[columns], first[columns]))
    best = columns[order]
    alike = best[(first[best] == first[best[0]]) & (second[best] == second[best[0]])]
    return int(min(alike.tolist(), key=lambda column: (int(bids.nodes[column]), _name(bids, column))))


def _name(bids: Bids, column: int) -> tuple[str, ...]:
    return bids.offers[int(bids.offer[column])].offer.key


def front(time_s: Columns, usd: Columns) -> Numbers:
    """The Pareto front of time and cost: columns that no other beats in both, fastest first."""
    order = np.lexsort((usd, time_s))
    order = order[np.isfinite(time_s[order]) & np.isfinite(usd[order])]
    cheapest = np.minimum.accumulate(usd[order]) if len(order) else usd[order]
    better = np.ones(len(order), dtype=bool)
    better[1:] = usd[order][1:] < cheapest[:-1]
    columns: Numbers = order[better]
    return columns
