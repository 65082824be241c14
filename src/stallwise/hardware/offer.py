"""Offers: an instance type in a region at a price; and the question which of them will do."""

from dataclasses import dataclass
from typing import Literal, get_args

from stallwise.hardware.instance import Instance
from stallwise.hardware.origin import Origin

Market = Literal["on-demand", "spot"]
MARKETS: tuple[Market, ...] = get_args(Market)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One thing one can rent. A spot price says nothing about how often the machine is taken away."""

    instance: Instance
    region: str
    zone: str | None
    """`None` where the price holds for the whole region."""
    market: Market
    usd_per_h: float
    origin: Origin

    @property
    def usd_per_gpu_h(self) -> float:
        """Price per GPU and hour."""
        return self.usd_per_h / self.instance.gpu_count

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """What makes it one offer: cloud, instance, region, zone, market."""
        return (self.instance.cloud, self.instance.name, self.region, self.zone or "", self.market)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What one looks for; `None` leaves a side open. Names are those of the catalog (see `Catalog.query`)."""

    gpus: frozenset[str] | None = None
    cloud: str | None = None
    region: str | None = None
    instance: str | None = None
    market: Market | None = None
    max_usd_per_h: float | None = None
    min_gpu_count: int | None = None
    min_gpu_memory_bytes: float | None = None
    """Of one GPU."""
    retired: bool = False
    """Also what is no longer sold."""


def matches(offer: Offer, query: Query) -> bool:
    """Whether the offer satisfies every side of the query."""
    instance = offer.instance
    return (
        (query.gpus is None or instance.gpu.name in query.gpus)
        and (query.cloud is None or instance.cloud == query.cloud)
        and (query.region is None or offer.region == query.region)
        and (query.instance is None or instance.name == query.instance)
        and (query.market is None or offer.market == query.market)
        and (query.max_usd_per_h is None or offer.usd_per_h <= query.max_usd_per_h)
        and (query.min_gpu_count is None or instance.gpu_count >= query.min_gpu_count)
        and (query.min_gpu_memory_bytes is None or instance.gpu.memory_bytes >= query.min_gpu_memory_bytes)
        and (query.retired or instance.retired_on is None)
    )


def by_price(offer: Offer) -> tuple[float, float, tuple[str, str, str, str, str]]:
    """Sort key: cheapest machine first; ties by price per GPU, then by name so that answers are stable."""
    return (offer.usd_per_h, offer.usd_per_gpu_h, offer.key)


def by_gpu_price(offer: Offer) -> tuple[float, float, tuple[str, str, str, str, str]]:
    """Sort key: cheapest GPU first."""
    return (offer.usd_per_gpu_h, offer.usd_per_h, offer.key)
