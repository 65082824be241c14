"""Nothing matches: which side of the query is to blame, and what is there without it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from stallwise.hardware.offer import Offer, Query, by_price, matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """What matches once some sides of the query are given up: the best such offer."""

    without: tuple[str, ...]
    """The sides given up, as `Query` names them."""
    offer: Offer


def nearest(offers: Sequence[Offer], query: Query) -> tuple[Nearest, ...]:
    """The fewest sides to give up so that something matches, each choice with the offer closest to it."""
    given = [f.name for f in fields(Query) if f.name != "retired" and getattr(query, f.name) is not None]
    if not query.retired:
        given.append("retired")
    # Another GPU is the last thing to offer.
    given.sort(key=lambda side: side == "gpus")
    for size in range(1, len(given) + 1):
        found = [
            Nearest(without=without, offer=best)
            for without in itertools.combinations(given, size)
            if (best := _closest(offers, query, without)) is not None
        ]
        if found:
            return tuple(found)
    return ()


def _closest(offers: Sequence[Offer], query: Query, without: tuple[str, ...]) -> Offer | None:
    open_sides = {side: (True if side == "retired" else None) for side in without}
    relaxed = replace(query, **open_sides)  # type: ignore[arg-type]

    def distance(offer: Offer) -> tuple[object, ...]:
        # A floor given up is missed by as little as possible; otherwise the cheapest is nearest.
        count = -offer.instance.gpu_count if "min_gpu_count" in without else 0
        memory = -offer.instance.gpu.memory_bytes if "min_gpu_memory_bytes" in without else 0
        return (count, memory, by_price(offer))

    return min((offer for offer in offers if matches(offer, relaxed)), key=distance, default=None)
