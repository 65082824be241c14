"""Entries of the hardware catalog: terminal and JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from stallwise.hardware.board import Board
from stallwise.hardware.gpu import PRECISIONS, Gpu, Link, peak_flop_per_s
from stallwise.hardware.imports import CatalogImport
from stallwise.hardware.instance import Instance, Nearest, Offer
from stallwise.hardware.prices import PriceAge
from stallwise.report.format import plural, show_bytes, show_memory, show_number, show_rate
from stallwise.report.view import Facts, Notes, Paragraph, PartColumn, TablePart, View, facts, number, table, view
from stallwise.units import BITS_PER_BYTE, GB, TERA

_UNKNOWN = "?"
_LABEL = 29  # the longest label and a gap
_PRECISION_PRIORITY = {"bf16": 0, "fp32": 2, "tf32": 3, "fp16": 3}
"""Which rates go first where the screen is narrow; those not named go before."""


def draw_gpus(gpus: Sequence[Gpu]) -> View:
    """One line per GPU: memory, dense rates, links, power."""
    columns = (
        PartColumn("GPU"),
        number("memory"),
        number("GB/s", 1),
        *(number(precision, _PRECISION_PRIORITY.get(precision, 4)) for precision in PRECISIONS),
        number("fabric", 2),
        PartColumn("host link", priority=5),
        number("W", 6),
    )
    rows = (
        (
            gpu.name,
            show_memory(gpu.memory_bytes),
            _number(gpu.memory_bytes_per_s, GB),
            *(_number(peak_flop_per_s(gpu, precision), TERA) for precision in PRECISIONS),
            _number(gpu.infinity_fabric_bytes_per_s or gpu.nvlink_bytes_per_s, GB),
            _link(gpu.host_link),
            _number(gpu.tdp_w),
        )
        for gpu in gpus
    )
    units = "Dense rates in Tflop/s; fabric in GB/s per GPU and direction, 0: none; ?: unknown."
    return view("", table(columns, rows, note=f"{plural(len(gpus), 'GPU')}. {units}"))


def draw_instances(instances: Sequence[Instance]) -> View:
    """One line per instance type: what decides a training job."""
    columns = (
        PartColumn("cloud", priority=1),
        PartColumn("instance"),
        PartColumn("GPUs"),
        number("vCPUs", 2),
        number("RAM", 3),
        number("Gb/s", 4),
        PartColumn("GPU link", priority=5),
        PartColumn("PCIe", priority=6),
    )
    rows = (
        (
            instance.cloud,
            instance.name,
            _gpus(instance),
            str(instance.vcpus),
            show_memory(instance.memory_bytes),
            _gbit(instance.network.bytes_per_s if instance.network else None),
            instance.gpu_link.kind if instance.gpu_link else _UNKNOWN,
            _link(instance.host_link).removeprefix("PCIe "),
        )
        for instance in instances
    )
    note = f"{plural(len(instances), 'instance type')}. Gb/s: sustained network; ?: unknown."
    return view("", table(columns, rows, note=note))


def draw_offers(offers: Sequence[Offer], count: int, age: PriceAge | None, hint: str = "") -> View:
    """One line per offer, then how many match (with a hint where not all are shown) and how old the prices are."""
    return view("", _offers(offers, count, age, hint))


def _offers(offers: Sequence[Offer], count: int, age: PriceAge | None, hint: str = "", title: str = "") -> TablePart:
    columns = (
        number("$/h"),
        number("$/GPU-h", 3),
        "market",
        "GPUs",
        PartColumn("cloud", priority=2),
        "instance",
        PartColumn("where", priority=1),
        PartColumn("confidence", priority=4),
    )
    rows = (
        (
            f"{offer.usd_per_h:,.2f}",
            f"{offer.usd_per_gpu_h:,.2f}",
            offer.market,
            _gpus(offer.instance),
            offer.instance.cloud,
            offer.instance.name,
            show_place(offer),
            offer.origin.confidence,
        )
        for offer in offers
    )
    shown = plural(count, "offer") if len(offers) == count else f"{len(offers)} of {count:,} offers{hint}"
    return table(columns, rows, title, note=f"{shown}. {_age(age)}")


def draw_facts(
    gpus: Sequence[Gpu],
    instances: Sequence[Instance],
    offers: Sequence[Offer],
    age: PriceAge | None,
    sources: Mapping[str, str],
) -> View:
    """Everything known about some GPUs or instance types, where it comes from, and what it costs."""
    parts = [_gpu_facts(gpu) for gpu in gpus] + [_instance_facts(instance) for instance in instances]
    origins = Notes("sources", tuple(f"{key}: {text}" for key, text in sources.items()))
    if offers:
        return view("", *parts, origins, _offers(offers, len(offers), age, title="Cheapest offers"))
    return view("", *parts, origins, Paragraph("No offer in the catalog."))


def draw_imported(done: CatalogImport) -> View:
    """What an import did, and what it passed over."""
    skipped = sorted(done.skipped.items(), key=lambda s: (-s[1], s[0]))
    lines = [
        f"Imported {plural(done.offers, 'offer')}, {plural(done.instances, 'instance type')} and "
        f"{plural(done.gpus, 'GPU')} from {plural(len(done.files), 'file')}.",
        *(f"  passed over {plural(n, 'row')}: {why}" for why, n in skipped),
        f"They are kept in {done.folder}.",
    ]
    return view("", *map(Paragraph, lines))


def show_place(offer: Offer) -> str:
    """Region and zone; a zone that names its region stands alone."""
    if offer.zone is None:
        return offer.region
    return offer.zone if offer.zone.startswith(offer.region) else f"{offer.region} {offer.zone}"


def offer_words(offer: Offer) -> str:
    """One offer in a sentence."""
    instance = offer.instance
    return (
        f"{instance.name} ({_gpus(instance)}, {instance.cloud} {show_place(offer)}) "
        f"at ${offer.usd_per_h:.2f}/h {offer.market}"
    )


def _gpu_facts(gpu: Gpu) -> Facts:
    rows = [
        ("family", gpu.family),
        (
            "architecture",
            f"{gpu.architecture or _UNKNOWN}, compute capability {gpu.compute_capability or _UNKNOWN}",
        ),
        ("year", str(gpu.year or _UNKNOWN)),
        ("memory", f"{show_memory(gpu.memory_bytes)} at {_optional(gpu.memory_bytes_per_s, show_rate)}"),
        *((f"{p}, dense", _tflops(peak_flop_per_s(gpu, p))) for p in PRECISIONS),
        ("NVLink, one direction", _nvlink(gpu)),
        ("Infinity Fabric, one direction", _fabric(gpu)),
        ("host link", _link_rate(gpu.host_link)),
        ("power", _optional(gpu.tdp_w, lambda w: f"{w:.0f} W")),
        ("multiprocessors", str(gpu.sm_count or _UNKNOWN)),
        ("note", gpu.note),
        ("listed", f"{gpu.origin.as_of}, confidence {gpu.origin.confidence}, {' '.join(gpu.origin.sources)}"),
    ]
    return _facts(gpu.name, rows)


def _instance_facts(instance: Instance) -> Facts:
    network, disks, origin = instance.network, instance.storage, instance.origin
    burst = network.burst_bytes_per_s if network else None
    peak = f", {_gbit(burst)} Gb/s for a while" if network and burst and burst != network.bytes_per_s else ""
    optional = f" (up to {show_bytes(disks.local_optional_bytes)} at a price)" if disks.local_optional_bytes else ""
    rows = [
        ("GPUs", f"{_gpus(instance)}, {show_memory(instance.gpu.memory_bytes)} each"),
        ("vCPUs", f"{instance.vcpus}, {instance.cpu_arch or _UNKNOWN}"),
        ("RAM", show_memory(instance.memory_bytes)),
        ("CoreMark", _optional(instance.coremark_iter_per_s, lambda n: f"{n:,.0f} iterations/s, all vCPUs")),
        ("between GPUs, one direction", _link_rate(instance.gpu_link)),
        ("host link per GPU", _link_rate(instance.host_link)),
        *((("GPUs share", _board(instance.board)),) if instance.board else ()),
        ("network", f"{network.kind}, {_gbit(network.bytes_per_s)} Gb/s{peak}" if network else _UNKNOWN),
        ("block storage", _optional(disks.block_bytes_per_s, show_rate)),
        ("block storage IOPS", _optional(disks.block_iops, lambda n: f"{n:,.0f}")),
        ("local disk", _optional(disks.local_bytes, show_bytes, zero="none included") + optional),
        ("local disk read", _optional(disks.local_read_bytes_per_s, show_rate)),
        ("no longer sold since", str(instance.retired_on or "")),
        ("listed", f"{origin.as_of}, confidence {origin.confidence}, {' '.join(origin.sources)}"),
        ("confidence network, storage", instance.network_storage_confidence or _UNKNOWN),
        ("confidence links", instance.links_confidence or _UNKNOWN),
    ]
    return _facts(f"{instance.cloud} {instance.name}", rows)


def _facts(title: str, rows: Iterable[tuple[str, str]]) -> Facts:
    return facts(((name, value) for name, value in rows if value), title, label_width=_LABEL)


def _gpus(instance: Instance) -> str:
    return f"{instance.gpu_count} × {instance.gpu.name}"


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return _UNKNOWN
    # Four digits, as data sheets give them.
    return f"{value / unit:,.4g}" if 1e-4 <= value / unit < 1e4 else show_number(value / unit)


def _gbit(bytes_per_s: float | None) -> str:
    return _number(bytes_per_s, GB / BITS_PER_BYTE)


def _tflops(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate / TERA:.4g} Tflop/s"


def _optional(value: float | None, show: Callable[[float], str], zero: str | None = None) -> str:
    if value is None:
        return _UNKNOWN
    return zero if zero and value == 0 else show(value)


def _link(link: Link | None) -> str:
    if link is None:
        return _UNKNOWN
    return f"PCIe {link.generation} x{link.lanes}" if link.kind == "pcie" and link.lanes else link.kind


def _link_rate(link: Link | None) -> str:
    if link is None or link.kind == "single":
        return "one GPU" if link else _UNKNOWN
    rates = {True: ", lanes as observed", False: ", lanes as supported", None: ""}[link.observed]
    rate = f", {show_rate(link.bytes_per_s)}" if link.bytes_per_s is not None else ""
    return f"{_link(link)}{rate}{rates}"


def _board(board: Board) -> str:
    """What the GPUs of a listed board share."""
    nvlink = ", ".join(f"{show_rate(rate)} among {count}" for count, rate in board.nvlink)
    parts = [
        *([f"NVLink, one direction: {nvlink}"] if nvlink else []),
        *([f"peer access over PCIe among {board.peer_gpus}"] if board.peer_gpus > 1 else []),
        *([f"{board.switch_gpus} behind an up-link of {_link(board.uplink)}"] if board.uplink else []),
    ]
    note = f" ({board.note})" if board.note else ""
    return f"{'; '.join(parts)}{note}"


def _nvlink(gpu: Gpu) -> str:
    bridge = f", bridge between {gpu.nvlink_bridge_gpus} cards" if gpu.nvlink_bridge_gpus else ""
    return _optional(gpu.nvlink_bytes_per_s, show_rate, zero="none") + bridge


def _fabric(gpu: Gpu) -> str:
    return show_rate(gpu.infinity_fabric_bytes_per_s) if gpu.infinity_fabric_bytes_per_s else ""


def _age(age: PriceAge | None) -> str:
    if age is None:
        return "Last prices of types that are no longer sold."
    same = age.oldest_as_of == age.newest_as_of
    span = f"{age.oldest_as_of}" if same else f"{age.oldest_as_of} to {age.newest_as_of}"
    return f"Listed prices of {span}; the oldest is {age.age_days} days old."


def gpu_record(gpu: Gpu) -> dict[str, Any]:
    """One GPU; keys as the fields of `Gpu`."""
    return _flat_origin(msgspec.to_builtins(gpu))


def instance_record(instance: Instance) -> dict[str, Any]:
    """One instance type; keys as the fields of `Instance`, its GPU by name."""
    return _flat_origin(msgspec.to_builtins(instance)) | {
        "gpu": instance.gpu.name,
        "gpu_memory_bytes": instance.gpu.memory_bytes,
    }


def offer_record(offer: Offer) -> dict[str, Any]:
    """One offer with what identifies its machine."""
    instance = offer.instance
    return {
        "cloud": instance.cloud,
        "instance": instance.name,
        "gpu": instance.gpu.name,
        "gpu_count": instance.gpu_count,
        "gpu_memory_bytes": instance.gpu.memory_bytes,
        "vcpus": instance.vcpus,
        "memory_bytes": instance.memory_bytes,
        "region": offer.region,
        "zone": offer.zone,
        "market": offer.market,
        "usd_per_h": offer.usd_per_h,
        "usd_per_gpu_h": offer.usd_per_gpu_h,
        "retired_on": instance.retired_on,
        "as_of": offer.origin.as_of,
        "sources": offer.origin.sources,
        "confidence": offer.origin.confidence,
    }


def offers_document(
    offers: Sequence[Offer], count: int, age: PriceAge | None, nearest: Sequence[Nearest]
) -> dict[str, Any]:
    """Offers, how many match in all, how old their prices are, and what is near where none matches."""
    return {
        "offers": [offer_record(offer) for offer in offers],
        "count": count,
        **_age_keys(age),
        "nearest": [{"without": near.without, "offer": offer_record(near.offer)} for near in nearest],
    }


def facts_document(
    gpus: Sequence[Gpu],
    instances: Sequence[Instance],
    offers: Sequence[Offer],
    age: PriceAge | None,
    sources: Mapping[str, str],
) -> dict[str, Any]:
    """All facts about some GPUs or instance types, with their cheapest offers."""
    return {
        "gpus": [gpu_record(gpu) for gpu in gpus],
        "instances": [instance_record(instance) for instance in instances],
        "offers": [offer_record(offer) for offer in offers],
        **_age_keys(age),
        "sources": sources,
    }


def _flat_origin(record: dict[str, Any]) -> dict[str, Any]:
    origin: dict[str, Any] = record.pop("origin")
    return record | origin


def _age_keys(age: PriceAge | None) -> dict[str, Any]:
    return {
        "oldest_as_of": age.oldest_as_of if age else None,
        "newest_as_of": age.newest_as_of if age else None,
        "age_days": age.age_days if age else None,
    }
