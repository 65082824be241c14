"""A recommendation from end to end: fleets, their speeds, prices, losses, the pick, the front and the reasons."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stallwise.cloud.bids import Bids, Priced, bids_of, priced_offers
from stallwise.cloud.choose import Choice, choose, keeps
from stallwise.cloud.explain import Neighbour, neighbours
from stallwise.cloud.fleets import Fleets, fleets_of, shapes_of
from stallwise.cloud.home import Home, home_of
from stallwise.cloud.losses import Replayed, through_losses
from stallwise.cloud.options import Option, option_of
from stallwise.cloud.speed import Speeds, speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.cloud.words import assumptions_words, impossible_words, verdict_words, warnings_words
from stallwise.hardware.offer import Offer
from stallwise.hardware.prices import PriceAge, price_age

_CANDIDATES = 6
_FRONT = 12
"""Of the front, as many are written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One bid in a picture."""

    job_s: float
    usd: float
    gpu: str
    name: str
    spot: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """What the pick's instance type costs elsewhere in the same market: the place is worth more than the moment."""

    cheapest: Offer
    median_usd_per_h: float
    dearest: Offer
    places: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How many were looked at, and what fell out."""

    offers: int
    types: int
    fleets: int
    no_room: int
    """Fleets whose GPUs are too small."""
    uneven: int
    """Fleets that the batch cannot be shared among evenly."""
    alone: int
    """Instance types of which no network is listed: judged as single machines."""
    unjudged: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer."""

    subject: Subject
    wish: Wish
    home: Home
    home_better: Home | None
    stay: Home | None
    """The run's own machine, where renting is not the answer."""
    pick: Option | None
    front: tuple[Option, ...]
    neighbours: tuple[Neighbour, ...]
    candidates: tuple[Option, ...]
    """The pick, then others of its number of machines and GPUs that keep the limits, each type once, cheapest first."""
    points: tuple[Point, ...]
    zones: Zones | None
    age: PriceAge | None
    judged: Judged
    verdict: str
    impossible: str | None
    """Why nothing keeps the limits, by how much, and what would do."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]


def recommend(subject: Subject, wish: Wish, offers: Sequence[Offer], today: dt.date) -> Recommendation:
    """The fleet to rent, or to stay; see `choose` for what counts as best."""
    priced = priced_offers(offers, wish)
    instances = list(dict.fromkeys(one.offer.instance for one in priced))
    shapes, of_type, unjudged = shapes_of(subject, instances, wish.machines, wish.here)
    fleets = fleets_of(shapes, subject, max_nodes=wish.max_nodes)
    found = speeds(subject, fleets, scale_batch=wish.scale_batch, workers=wish.workers, data_bytes=wish.data_bytes)
    bids = bids_of(subject, fleets, found, of_type, priced, wish)
    bids, replays, by_formula = through_losses(bids, wish)
    as_is, better = home_of(subject, wish)
    choice = choose(bids, wish, (better or as_is).job_s)
    judged = _judged(priced, fleets, found, of_type, unjudged)
    pick = None if choice.pick is None else option_of(subject, bids, choice.pick, wish, replays)
    impossible = None if pick else impossible_words(subject, wish, bids, fleets, found, priced)
    stay = _stay(wish, better or as_is, pick)
    return Recommendation(
        subject=subject,
        wish=wish,
        home=as_is,
        home_better=better,
        stay=stay,
        pick=pick,
        front=tuple(option_of(subject, bids, column, wish, replays) for column in _spread_out(choice)),
        neighbours=() if pick is None else neighbours(subject, bids, choice, wish, replays, pick),
        candidates=_candidates(subject, bids, choice, wish, replays),
        points=(*_points(bids, choice), *_some(by_formula)),
        zones=None if pick is None else _zones(offers, pick),
        age=price_age([one.offer for one in priced], today) if priced else None,
        judged=judged,
        verdict=verdict_words(wish, pick, stay, as_is, better),
        impossible=impossible,
        warnings=warnings_words(subject, wish, pick, better or as_is, float(np.nanmin(bids.job_s, initial=np.inf))),
        assumptions=assumptions_words(subject, wish, pick, judged.alone, judged.unjudged),
    )


def _spread_out(choice: Choice) -> list[int]:
    """The pick and a dozen of the front, evenly."""
    if len(choice.front) <= _FRONT:
        return list(choice.front)
    places = np.unique(np.linspace(0, len(choice.front) - 1, _FRONT).round().astype(int)).tolist()
    columns = {choice.front[place] for place in places}
    if choice.pick in choice.front:
        columns.add(choice.pick)
    return [column for column in choice.front if column in columns]


def _candidates(
    subject: Subject, bids: Bids, choice: Choice, wish: Wish, replays: Mapping[int, Replayed]
) -> tuple[Option, ...]:
    if choice.pick is None:
        return ()
    used, pick = bids.fleets.used[bids.fleet], choice.pick
    alike = keeps(bids, wish) & (bids.nodes == bids.nodes[pick]) & (used == used[pick])
    columns = np.flatnonzero(alike)
    best: dict[tuple[str, str, str], int] = {}
    for column in [pick, *columns[np.argsort(bids.usd[columns], kind="stable")].tolist()]:
        offer = bids.offers[int(bids.offer[column])].offer
        best.setdefault((offer.instance.cloud, offer.instance.name, offer.market), column)
        if len(best) == _CANDIDATES:
            break
    return tuple(option_of(subject, bids, column, wish, replays) for column in best.values())


def _judged(
    priced: Sequence[Priced],
    fleets: Fleets,
    found: Speeds,
    of_type: dict[tuple[str, str], int],
    unjudged: dict[str, str],
) -> Judged:
    alone = sum(1 for shape in of_type.values() if not fleets.shapes[shape].networked)
    return Judged(
        offers=len(priced),
        types=len(of_type),
        fleets=len(fleets),
        no_room=int((found.why_not == 1).sum()),
        uneven=int((found.why_not == 2).sum()),
        alone=alone,
        unjudged=tuple(sorted(unjudged)),
    )


def _points(bids: Bids, choice: Choice, most: int = 600) -> tuple[Point, ...]:
    """For each instance type and market its quickest and cheapest fleets, the front, the pick."""
    good = np.flatnonzero(np.isfinite(bids.usd) & np.isfinite(bids.job_s))
    groups = bids.offer[good] * 10_000 + bids.fleets.used[bids.fleet[good]]
    order = good[np.lexsort((bids.usd[good], groups))]
    firsts = order[np.unique(groups[np.lexsort((bids.usd[good], groups))], return_index=True)[1]]
    shown = dict.fromkeys([*choice.front, *([choice.pick] if choice.pick is not None else []), *firsts.tolist()])
    step = max(1, len(good) // most)
    shown |= dict.fromkeys(good[::step].tolist())
    return tuple(_point(bids, column) for column in list(shown)[: 2 * most])


def _some(bids: Bids, most: int = 400) -> tuple[Point, ...]:
    """Every so many."""
    return tuple(_point(bids, column) for column in range(0, len(bids), max(1, len(bids) // most)))


def _point(bids: Bids, column: int) -> Point:
    offer = bids.offers[int(bids.offer[column])].offer
    nodes = int(bids.fleets.nodes[bids.fleet[column]])
    return Point(
        job_s=float(bids.job_s[column]),
        usd=float(bids.usd[column]),
        gpu=offer.instance.gpu.name,
        name=f"{nodes} × {offer.instance.name}",
        spot=offer.market == "spot",
    )


def _zones(offers: Iterable[Offer], pick: Option) -> Zones | None:
    alike = [offer for offer in offers if offer.instance == pick.offer.instance and offer.market == pick.offer.market]
    if len(alike) < 2:
        return None
    ordered = sorted(alike, key=lambda offer: (offer.usd_per_h, offer.key))
    return Zones(
        cheapest=ordered[0],
        median_usd_per_h=float(np.median([offer.usd_per_h for offer in ordered])),
        dearest=ordered[-1],
        places=len(ordered),
    )


def _stay(wish: Wish, home: Home, pick: Option | None) -> Home | None:
    """`home`, with the loader workers that help, where that is the answer: it keeps the limits, and renting is not
    known to be better.

    What it costs is often not known. Then it counts as paid for, and the answer names the price above which renting
    would pay; without limits only where more loader workers help, or nothing rented is as quick.
    """
    if not home.meets(wish):
        return None
    if pick is None:
        return home if wish.limited else None
    quicker = home.job_s <= pick.job_s
    if home.usd is not None:
        # Within a budget the quickest is asked for, else the cheapest.
        fastest = wish.budget_usd is not None and wish.deadline_s is None
        return home if (quicker if fastest else home.usd <= pick.usd) else None
    if wish.deadline_s is not None:
        return home
    return home if quicker or (not wish.limited and home.more_workers is not None) else None
