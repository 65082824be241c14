"""Instance types, the offers that price them in a region, and queries over these offers."""

import datetime as dt
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from stallwise.hardware.board import Board, usual_board
from stallwise.hardware.gpu import Confidence, Gpu, Link, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Limits of the instance type; a small volume delivers less. `None`: no source gives it."""

    block_bytes_per_s: float | None = None
    """Network block storage (EBS, managed disks), sustained, all volumes together."""
    block_burst_bytes_per_s: float | None = None
    block_iops: float | None = None
    local_bytes: float | None = None
    """Local disks included in the price; 0 means it has none."""
    local_optional_bytes: float | None = None
    """Local disks that can be added at a price."""
    local_read_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance type of one cloud. `None`: no source gives it."""

    cloud: str
    name: str
    gpu: Gpu
    gpu_count: int
    vcpus: int
    memory_bytes: int
    cpu_arch: str | None
    """`x86_64` or `arm64`: a training image must fit."""
    coremark_iter_per_s: float | None
    """CoreMark of the whole instance as measured by ec2instances.info."""
    network: Link | None
    gpu_link: Link | None
    """Between the GPUs of one machine; kind `single` where there is one GPU."""
    host_link: Link | None
    """Between each GPU and the host."""
    board: Board | None = None
    """What its GPUs share, where that is known; else see `board_of`."""
    storage: Storage
    retired_on: dt.date | None
    """The day it was withdrawn, or last seen in the price lists; `None`: on sale."""
    origin: Origin
    """For GPUs, vCPUs and memory."""
    network_storage_confidence: Confidence | None
    links_confidence: Confidence | None


def gpu_memory_bytes(instance: Instance) -> int:
    """Memory of all its GPUs together."""
    return instance.gpu.memory_bytes * instance.gpu_count


def gpu_link_bytes_per_s(instance: Instance) -> float | None:
    """Listed rate between GPUs, one direction: NVLink's, else that of the PCIe link to the host."""
    link = instance.gpu_link
    if link is None or link.kind == "single":
        return None
    if link.bytes_per_s is not None:
        return link.bytes_per_s
    return instance.host_link.bytes_per_s if instance.host_link and link.kind.startswith("pcie") else None


def board_of(instance: Instance) -> Board | None:
    """Return what its GPUs share: as listed, else as usual for the kind of their link; None where that is unknown."""
    if instance.board is not None:
        return instance.board
    link = instance.gpu_link
    if link is None:
        return None
    return usual_board(link.kind, instance.gpu, link.bytes_per_s, instance.gpu_count)


Market = Literal["on-demand", "spot"]
MARKETS: tuple[Market, ...] = get_args(Market)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One instance type at a price. A spot price says nothing about how often the machine is taken away."""

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
    """Conditions on an offer; `None` leaves one open. Names are those of the catalog (see `Catalog.query`)."""

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
    """Include instance types that are no longer sold."""


def matches(offer: Offer, query: Query) -> bool:
    """Whether the offer satisfies every condition of the query."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The best offer that matches once some conditions of the query are given up."""

    without: tuple[str, ...]
    """The conditions given up, as `Query` names them."""
    offer: Offer


def nearest(offers: Sequence[Offer], query: Query) -> tuple[Nearest, ...]:
    """Find the fewest conditions to give up so that an offer matches, each choice with its closest offer."""
    conditions = [f.name for f in fields(Query) if f.name != "retired" and getattr(query, f.name) is not None]
    if not query.retired:
        conditions.append("retired")
    # Another GPU is the last thing to offer.
    conditions.sort(key=lambda condition: condition == "gpus")
    for size in range(1, len(conditions) + 1):
        choices = [
            Nearest(without=without, offer=best)
            for without in itertools.combinations(conditions, size)
            if (best := _closest(offers, query, without)) is not None
        ]
        if choices:
            return tuple(choices)
    return ()


def _closest(offers: Sequence[Offer], query: Query, without: tuple[str, ...]) -> Offer | None:
    open_conditions = {condition: (True if condition == "retired" else None) for condition in without}
    relaxed = replace(query, **open_conditions)  # type: ignore[arg-type]

    def distance(offer: Offer) -> tuple[object, ...]:
        # A floor given up is missed by as little as possible; otherwise the cheapest is nearest.
        count = -offer.instance.gpu_count if "min_gpu_count" in without else 0
        memory = -offer.instance.gpu.memory_bytes if "min_gpu_memory_bytes" in without else 0
        return (count, memory, by_price(offer))

    return min((offer for offer in offers if matches(offer, relaxed)), key=distance, default=None)
