"""A recommendation from end to end: fleets, their speeds, prices, losses, the pick, the front and the reasons."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.analysis.fleets import LARGE_BATCH, NO_MEMORY, UNEVEN, Fleets, FleetSteps, all_fleets, nodes_of, steps_of
from stallwise.analysis.job import JobModel
from stallwise.cloud._explanation import (
    Alternative,
    alternatives,
    assumption_sentences,
    infeasibility,
    verdict,
    warning_sentences,
)
from stallwise.cloud.bids import BidChoice, Bids, PricedOffer, bids_of, choose, keeps, priced_offers
from stallwise.cloud.losses import SpotReplay, through_losses
from stallwise.cloud.options import FleetOption, OwnMachine, option_of, own_machines
from stallwise.cloud.request import RecommendRequest
from stallwise.errors import InputError
from stallwise.hardware.instance import Offer
from stallwise.hardware.prices import PriceAge, price_age
from stallwise.model.step.job import OwnLinks
from stallwise.sentences import Sentence

_CANDIDATES = 6
_FRONT = 12
"""Number of bids of the front that are reported in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BidPoint:
    """One bid in the chart of time and cost."""

    job_s: float
    usd: float
    gpu: str
    name: str
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonePrices:
    """Prices of the pick's instance type in all zones of the same market."""

    cheapest: Offer
    median_usd_per_h: float
    dearest: Offer
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """How many offers and fleets were considered, and how many were rejected for which reason."""

    offers: int
    types: int
    fleets: int
    no_room: int
    """Fleets whose GPUs are too small."""
    uneven: int
    """Fleets among which the batch cannot be shared evenly."""
    large_batch: int
    """Fleets whose global batch would grow beyond 8 times the measured one."""
    alone: int
    """Instance types of which no network is listed: judged as single machines."""
    unjudged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The fleet to rent, or the advice to stay, with alternatives and the reasons."""

    model: JobModel
    request: RecommendRequest
    own_machine: OwnMachine
    own_machine_tuned: OwnMachine | None
    """The same with more loader workers, where they help."""
    stay: OwnMachine | None
    """The run's own machine, where renting is not the answer."""
    pick: FleetOption | None
    front: tuple[FleetOption, ...]
    neighbours: tuple[Alternative, ...]
    candidates: tuple[FleetOption, ...]
    """The pick, then others of its number of machines and GPUs that keep the limits, each type once, cheapest first."""
    points: tuple[BidPoint, ...]
    zones: ZonePrices | None
    age: PriceAge | None
    search_counts: SearchCounts
    verdict: Sentence
    impossible: Sentence | None
    """Why nothing keeps the limits, by how much, and what would."""
    warnings: tuple[Sentence, ...]
    assumptions: tuple[Sentence, ...]


def recommend(
    model: JobModel, request: RecommendRequest, offers: Sequence[Offer], today: dt.date, own: OwnLinks | None = None
) -> Recommendation:
    """Recommend a fleet to rent, or to stay; `bids.choose` defines the best. `own`: the links of the run, if known."""
    priced = priced_offers(offers, request)
    instances = list(dict.fromkeys(one.offer.instance for one in priced))
    kinds, of_type, unjudged = nodes_of(model, instances, request.machines, request.own_record)
    if unjudged and not kinds:
        raise InputError(next(iter(unjudged.values())))
    fleets = all_fleets(kinds, model, max_nodes=request.max_nodes)
    steps = steps_of(model, fleets, request.settings)
    bids = bids_of(model, fleets, steps, of_type, priced, request)
    bids, replays, by_formula = through_losses(bids, request)
    as_is, better = own_machines(model, request, own)
    choice = choose(bids, request, (better or as_is).job_s)
    counts = _search_counts(priced, fleets, steps, of_type, unjudged)
    pick = None if choice.pick is None else option_of(model, bids, choice.pick, request, replays)
    stay = _stay(request, better or as_is, pick)
    not_rented = None if pick else infeasibility(model, request, bids, fleets, steps, priced)
    return Recommendation(
        model=model,
        request=request,
        own_machine=as_is,
        own_machine_tuned=better,
        stay=stay,
        pick=pick,
        front=tuple(option_of(model, bids, column, request, replays) for column in _spread_out(choice)),
        neighbours=() if pick is None else alternatives(model, bids, choice, request, replays, pick),
        candidates=_candidates(model, bids, choice, request, replays),
        points=(*_points(bids, choice), *_subsample(by_formula)),
        zones=None if pick is None else _zones(offers, pick),
        age=price_age([one.offer for one in priced], today) if priced else None,
        search_counts=counts,
        verdict=verdict(request, pick, stay, as_is, better),
        impossible=None if stay else not_rented,
        warnings=(
            *((not_rented,) if stay and not_rented else ()),
            *warning_sentences(model, request, pick, better or as_is, float(np.nanmin(bids.job_s, initial=np.inf))),
        ),
        assumptions=assumption_sentences(model, request, pick, counts.alone, counts.unjudged),
    )


def _spread_out(choice: BidChoice) -> list[int]:
    """The pick and a dozen bids of the front, evenly spaced."""
    if len(choice.front) <= _FRONT:
        return list(choice.front)
    places = np.unique(np.linspace(0, len(choice.front) - 1, _FRONT).round().astype(int)).tolist()
    columns = {choice.front[place] for place in places}
    if choice.pick in choice.front:
        columns.add(choice.pick)
    return [column for column in choice.front if column in columns]


def _candidates(
    model: JobModel, bids: Bids, choice: BidChoice, request: RecommendRequest, replays: Mapping[int, SpotReplay]
) -> tuple[FleetOption, ...]:
    if choice.pick is None:
        return ()
    used, pick = bids.fleets.used[bids.fleet], choice.pick
    alike = keeps(bids, request) & (bids.nodes == bids.nodes[pick]) & (used == used[pick])
    columns = np.flatnonzero(alike)
    best: dict[tuple[str, str, str], int] = {}
    for column in [pick, *columns[np.argsort(bids.usd[columns], kind="stable")].tolist()]:
        offer = bids.offers[int(bids.offer[column])].offer
        best.setdefault((offer.instance.cloud, offer.instance.name, offer.market), column)
        if len(best) == _CANDIDATES:
            break
    return tuple(option_of(model, bids, column, request, replays) for column in best.values())


def _search_counts(
    priced: Sequence[PricedOffer],
    fleets: Fleets,
    steps: FleetSteps,
    of_type: dict[tuple[str, str], int],
    unjudged: Mapping[str, str],
) -> SearchCounts:
    alone = sum(1 for kind in of_type.values() if not fleets.kinds[kind].networked)
    return SearchCounts(
        offers=len(priced),
        types=len(of_type),
        fleets=len(fleets),
        no_room=int((steps.why_not == NO_MEMORY).sum()),
        uneven=int((steps.why_not == UNEVEN).sum()),
        large_batch=int((steps.why_not == LARGE_BATCH).sum()),
        alone=alone,
        unjudged=tuple(sorted(unjudged)),
    )


def _points(bids: Bids, choice: BidChoice, most: int = 600) -> tuple[BidPoint, ...]:
    """The front, the pick, and for each instance type and market its fastest and cheapest fleets."""
    good = np.flatnonzero(np.isfinite(bids.usd) & np.isfinite(bids.job_s))
    groups = bids.offer[good] * 10_000 + bids.fleets.used[bids.fleet[good]]
    order = good[np.lexsort((bids.usd[good], groups))]
    firsts = order[np.unique(groups[np.lexsort((bids.usd[good], groups))], return_index=True)[1]]
    shown = dict.fromkeys([*choice.front, *([choice.pick] if choice.pick is not None else []), *firsts.tolist()])
    step = max(1, len(good) // most)
    shown |= dict.fromkeys(good[::step].tolist())
    return tuple(_point(bids, column) for column in list(shown)[: 2 * most])


def _subsample(bids: Bids, most: int = 400) -> tuple[BidPoint, ...]:
    """At most about `most` bids, evenly spaced."""
    return tuple(_point(bids, column) for column in range(0, len(bids), max(1, len(bids) // most)))


def _point(bids: Bids, column: int) -> BidPoint:
    offer = bids.offers[int(bids.offer[column])].offer
    nodes = int(bids.fleets.nodes[bids.fleet[column]])
    return BidPoint(
        job_s=float(bids.job_s[column]),
        usd=float(bids.usd[column]),
        gpu=offer.instance.gpu.name,
        name=f"{nodes} × {offer.instance.name}",
        spot=offer.market == "spot",
    )


def _zones(offers: Iterable[Offer], pick: FleetOption) -> ZonePrices | None:
    alike = [offer for offer in offers if offer.instance == pick.offer.instance and offer.market == pick.offer.market]
    if len(alike) < 2:
        return None
    ordered = sorted(alike, key=lambda offer: (offer.usd_per_h, offer.key))
    return ZonePrices(
        cheapest=ordered[0],
        median_usd_per_h=float(np.median([offer.usd_per_h for offer in ordered])),
        dearest=ordered[-1],
        places=len(ordered),
    )


def _stay(request: RecommendRequest, own: OwnMachine, pick: FleetOption | None) -> OwnMachine | None:
    """The run's own machine, with the loader workers that help, where staying is the answer: it keeps the limits, and
    renting is not known to be better.

    Its cost is often unknown. Then it counts as paid for, and the answer names the price above which renting would pay;
    without limits only where more loader workers help, or nothing rented is as fast.
    """
    if not own.meets(request):
        return None
    if pick is None:
        return own if request.limited else None
    quicker = own.job_s <= pick.job_s
    if own.usd is not None:
        # Within a budget the fastest is requested, otherwise the cheapest.
        fastest = request.budget_usd is not None and request.deadline_s is None
        return own if (quicker if fastest else own.usd <= pick.usd) else None
    if request.deadline_s is not None:
        return own
    return own if quicker or (not request.limited and own.more_workers is not None) else None
