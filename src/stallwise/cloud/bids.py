"""Fleets joined with offers: what the job takes and costs on each, in columns.

    time  = provision + start-up + first epoch (nothing in memory yet) + later epochs           (`model/epoch`)
    cost  = price · machines · (time - provision) + moving the data + keeping a copy of it

Times have the step's bounds. A limit is met with probability q when the q-quantile is within it; quantiles come from a
two-sided log-normal whose 10 % and 90 % points are the bounds of the step.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stallwise.cloud.fleets import Fleets, Numbers
from stallwise.cloud.speed import Speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.hardware.moving import keeping_usd_per_h, moving_usd
from stallwise.hardware.offer import Offer
from stallwise.model.epoch import Plan
from stallwise.model.steps import Columns
from stallwise.units import SECONDS_PER_HOUR

Z80 = 1.2815515655446004
"""The 90 % point of the normal distribution: bounds of the step are 80 % bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """An offer at the user's own price, with what its region adds."""

    offer: Offer
    usd_per_h: float
    most_gpus: float
    moving_usd: float | None
    """Once; None: not known, counted as nothing."""
    keeping_usd_per_h: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bids:
    """Columns: a fleet at an offer's price. `job_s` counts from the order; low and high hold 80 %."""

    offers: tuple[Priced, ...]
    fleets: Fleets
    speeds: Speeds
    fleet: Numbers
    """Column of `fleets` and `speeds`."""
    offer: Numbers
    fixed_s: float
    """Of `job_s`, what no step's speed changes."""
    provision_s: float
    job_s: Columns
    low_s: Columns
    high_s: Columns
    usd: Columns
    low_usd: Columns
    high_usd: Columns
    sure_s: Columns
    """Kept with the probability asked for."""
    sure_usd: Columns

    def __len__(self) -> int:
        return len(self.fleet)

    @property
    def nodes(self) -> Numbers:
        """Machines of each."""
        return self.fleets.nodes[self.fleet]

    def take(self, chosen: npt.NDArray[np.bool_] | Numbers) -> "Bids":
        """Only those."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in COLUMNS})

    @property
    def spot(self) -> npt.NDArray[np.bool_]:
        """Which can be lost."""
        return np.array([one.offer.market == "spot" for one in self.offers] or [False])[self.offer]


COLUMNS = ("fleet", "offer", "job_s", "low_s", "high_s", "usd", "low_usd", "high_usd", "sure_s", "sure_usd")


def probability(value: float, mid: float, low: float, high: float) -> float:
    """That a quantity of which `low` and `high` hold 80 % stays within `value`."""
    if value <= 0 or not math.isfinite(mid):
        return 0.0
    bound = high if value >= mid else low
    if bound == mid:
        return 1.0 if value >= mid else 0.0
    sigma = abs(math.log(bound / mid)) / Z80
    return 0.5 * (1 + math.erf(math.log(value / mid) / sigma / math.sqrt(2)))


def z_of(sure: float) -> float:
    """The `sure` point of the normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(sure)


def quantile(mid: Columns, low: Columns, high: Columns, sure: float) -> Columns:
    """What is kept with probability `sure`."""
    z = z_of(sure)
    side = high if z >= 0 else low
    with np.errstate(divide="ignore", invalid="ignore"):
        found = mid * (side / mid) ** (abs(z) / Z80)
    return np.where(mid > 0, found, side)


def priced_offers(offers: Iterable[Offer], wish: Wish) -> list[Priced]:
    """Offers the wish allows, at the user's prices."""
    data_bytes = wish.data_bytes or 0.0
    found = []
    for offer in offers:
        if not _allowed(offer, wish):
            continue
        moving = keeping = 0.0 if wish.data_in is None else None
        if wish.data_in is not None:
            place = (offer.instance.cloud, offer.region)
            moving = moving_usd(data_bytes, wish.data_in, place)
            keeping = 0.0 if place == wish.data_in else keeping_usd_per_h(data_bytes, place[0])
        found.append(
            Priced(
                offer=offer,
                usd_per_h=wish.terms.usd_per_h(offer),
                most_gpus=wish.terms.most_gpus(offer),
                moving_usd=moving,
                keeping_usd_per_h=keeping,
            )
        )
    return _undominated(found)


def _allowed(offer: Offer, wish: Wish) -> bool:
    instance = offer.instance
    market = wish.on_demand if offer.market == "on-demand" else wish.spot is not None
    return (
        market
        and (wish.retired or instance.retired_on is None)
        and (wish.arm or instance.cpu_arch != "arm64")
        and (wish.clouds is None or instance.cloud in wish.clouds)
        and (wish.regions is None or offer.region in wish.regions)
        and (wish.gpus is None or instance.gpu.name in wish.gpus)
        and (wish.instances is None or instance.name in wish.instances)
    )


def _undominated(offers: Sequence[Priced]) -> list[Priced]:
    """Of offers that differ in their price alone, the cheapest: speed does not depend on the region."""
    best: dict[tuple[object, ...], Priced] = {}
    for one in offers:
        instance = one.offer.instance
        key = (
            instance.cloud, instance.name, one.offer.market, one.moving_usd, one.keeping_usd_per_h, one.most_gpus,
        )  # fmt: skip
        if key not in best or (one.usd_per_h, one.offer.key) < (best[key].usd_per_h, best[key].offer.key):
            best[key] = one
    return list(best.values())


def job_columns(steps_s: Columns, cold_s: Columns, batch: Columns, wish: Wish) -> Columns:
    """Seconds of the whole job after start-up; `model.epoch` in columns."""
    steps = np.ceil(wish.samples / batch - 1e-9)
    first = min(1.0, wish.epochs)
    return first * _epoch(steps * np.maximum(steps_s, cold_s), wish) + (wish.epochs - first) * _epoch(
        steps * steps_s, wish
    )


def _epoch(running_s: Columns, wish: Wish) -> Columns:
    if wish.checkpoint_every_s is None:
        return running_s + wish.checkpoint_s + wish.evaluation_s
    return running_s * (1 + wish.checkpoint_s / wish.checkpoint_every_s) + wish.evaluation_s


def plan_of(wish: Wish, batch: float) -> Plan:
    """The same as `model.epoch` takes it, for one fleet."""
    return Plan(
        samples=wish.samples,
        batch=batch,
        epochs=wish.epochs,
        startup_s=wish.provision_s + wish.startup_s,
        evaluation_s=wish.evaluation_s,
        checkpoint_s=wish.checkpoint_s,
        checkpoint_every_s=wish.checkpoint_every_s,
    )


def bids_of(
    subject: Subject,
    fleets: Fleets,
    found: Speeds,
    of_type: dict[tuple[str, str], int],
    offers: Sequence[Priced],
    wish: Wish,
) -> Bids:
    """Every fleet at every price it can be had at, those that do not fit left out."""
    by_shape: dict[int, list[int]] = {}
    for number, one in enumerate(offers):
        instance = one.offer.instance
        shape = of_type.get((instance.cloud, instance.name))
        if shape is not None:
            by_shape.setdefault(shape, []).append(number)
    columns, numbers = [], []
    for shape, having in by_shape.items():
        mine = np.flatnonzero((fleets.shape == shape) & found.fits)
        for number in having:
            # A quota is on what is rented, used or not.
            rented = fleets.nodes[mine] * fleets.shapes[shape].instance.gpu_count
            within = mine[rented <= offers[number].most_gpus]
            columns.append(within)
            numbers.append(np.full(len(within), number, dtype=np.int64))
    column = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    offer = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
    return _billed(subject, fleets, found, tuple(offers), column, offer, wish)


def _billed(
    subject: Subject,
    fleets: Fleets,
    found: Speeds,
    offers: tuple[Priced, ...],
    column: Numbers,
    offer: Numbers,
    wish: Wish,
) -> Bids:
    batch = subject.samples * found.batch * fleets.gpus
    fixed_s = wish.provision_s + wish.startup_s
    ratio = found.cold_s / found.step_s
    lost = np.array([one.offer.market == "spot" for one in offers] or [False])[offer]
    bare = replace(wish, checkpoint_s=0.0)  # on machines that may vanish, spot/plan decides how often to save
    mid, low, high = (
        fixed_s + np.where(lost, *(job_columns(step, step * ratio, batch, one)[column] for one in (bare, wish)))
        for step in (found.step_s, found.low_s, found.high_s)
    )
    price = np.array([one.usd_per_h for one in offers] or [0.0])[offer] * fleets.nodes[column]
    price = price + np.array([one.keeping_usd_per_h or 0.0 for one in offers] or [0.0])[offer]
    once = np.array([one.moving_usd or 0.0 for one in offers] or [0.0])[offer]
    usd, low_usd, high_usd = ((time - wish.provision_s) / SECONDS_PER_HOUR * price + once for time in (mid, low, high))
    return Bids(
        offers=offers,
        fleets=fleets,
        speeds=found,
        fleet=column,
        offer=offer,
        fixed_s=fixed_s,
        provision_s=wish.provision_s,
        job_s=mid,
        low_s=low,
        high_s=high,
        usd=usd,
        low_usd=low_usd,
        high_usd=high_usd,
        sure_s=fixed_s + quantile(mid - fixed_s, low - fixed_s, high - fixed_s, wish.sure),
        sure_usd=quantile(usd, low_usd, high_usd, wish.sure),
    )
