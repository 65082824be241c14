"""The catalog's answers as tables. `?` stands for what no source gives."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stallwise.hardware.gpu import PRECISIONS, Gpu, peak_flop_per_s
from stallwise.hardware.imports import Imported
from stallwise.hardware.instance import Instance
from stallwise.hardware.link import Link
from stallwise.hardware.offer import Offer
from stallwise.hardware.prices import PriceAge
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_memory, show_rate
from stallwise.units import BITS_PER_BYTE, GB, TERA

_UNKNOWN = "?"


def draw_gpus(gpus: Sequence[Gpu]) -> RenderableType:
    """One line per GPU: memory, dense rates, links, power."""
    made = table(
        "GPU",
        ("memory", "right"),
        ("GB/s", "right"),
        *((precision, "right") for precision in PRECISIONS),
        ("NVLink", "right"),
        "host link",
        ("W", "right"),
    )
    for gpu in gpus:
        made.add_row(
            gpu.name,
            show_memory(gpu.memory_bytes),
            _number(gpu.memory_bytes_per_s, GB),
            *(_number(peak_flop_per_s(gpu, precision), TERA) for precision in PRECISIONS),
            _number(gpu.nvlink_bytes_per_s, GB),
            _link(gpu.host_link),
            _number(gpu.tdp_w),
        )
    units = "Dense rates in Tflop/s; NVLink in GB/s per GPU and direction, 0: none; ?: unknown."
    return Group(made, _caption(f"{_count(len(gpus), 'GPU')}. {units}"))


def draw_instances(instances: Sequence[Instance]) -> RenderableType:
    """One line per instance type: what decides a training job."""
    made = table(
        "cloud",
        "instance",
        "GPUs",
        ("vCPUs", "right"),
        ("RAM", "right"),
        ("Gb/s", "right"),
        "GPU link",
        "PCIe",
    )
    for instance in instances:
        network = instance.network
        made.add_row(
            instance.cloud,
            instance.name,
            _gpus(instance),
            str(instance.vcpus),
            show_memory(instance.memory_bytes),
            _gbit(network.bytes_per_s if network else None),
            instance.gpu_link.kind if instance.gpu_link else _UNKNOWN,
            _link(instance.host_link).removeprefix("PCIe "),
        )
    return Group(made, _caption(f"{_count(len(instances), 'instance type')}. Gb/s: sustained network; ?: unknown."))


def draw_offers(offers: Sequence[Offer], count: int, age: PriceAge | None) -> RenderableType:
    """One line per offer, then how many match and how old the prices are."""
    made = table(
        ("$/h", "right"),
        ("$/GPU h", "right"),
        "market",
        "GPUs",
        "cloud",
        "instance",
        "where",
        "sure",
    )
    for offer in offers:
        made.add_row(
            f"{offer.usd_per_h:.2f}",
            f"{offer.usd_per_gpu_h:.2f}",
            offer.market,
            _gpus(offer.instance),
            offer.instance.cloud,
            offer.instance.name,
            place(offer),
            offer.origin.confidence,
        )
    cut = f"{len(offers)} of {count} offers; --limit 0 shows all"
    shown = _count(count, "offer") if len(offers) == count else cut
    return Group(made, _caption(f"{shown}."), _age(age))


def draw_facts(
    gpus: Sequence[Gpu],
    instances: Sequence[Instance],
    offers: Sequence[Offer],
    age: PriceAge | None,
    sources: Mapping[str, str],
) -> RenderableType:
    """Everything known about some GPUs or instance types, where it comes from, and what it costs."""
    parts: list[RenderableType] = [_gpu_facts(gpu) for gpu in gpus]
    parts += [_instance_facts(instance) for instance in instances]
    parts += [_caption(f"{key}: {text}") for key, text in sources.items()]
    if offers:
        parts += [Text("\nCheapest offers", style="bold"), draw_offers(offers, len(offers), age)]
    else:
        parts.append(Text("\nNo offer in the catalog."))
    return Group(*parts)


def draw_imported(done: Imported) -> RenderableType:
    """What an import did, and what it passed over."""
    lines = [
        f"Imported {_count(done.offers, 'offer')}, {_count(done.instances, 'instance type')} and "
        f"{_count(done.gpus, 'GPU')} from {_count(len(done.files), 'file')}.",
        *(
            f"  passed over {_count(n, 'row')}: {why}"
            for why, n in sorted(done.skipped.items(), key=lambda s: (-s[1], s[0]))
        ),
        f"They are kept in {done.folder}.",
    ]
    return Text("\n".join(lines))


def place(offer: Offer) -> str:
    """Region and zone; a zone that names its region stands alone."""
    if offer.zone is None:
        return offer.region
    return offer.zone if offer.zone.startswith(offer.region) else f"{offer.region} {offer.zone}"


def offer_words(offer: Offer) -> str:
    """One offer in a sentence."""
    instance = offer.instance
    return (
        f"{instance.name} ({_gpus(instance)}, {instance.cloud} {place(offer)}) "
        f"at ${offer.usd_per_h:.2f}/h {offer.market}"
    )


def _gpu_facts(gpu: Gpu) -> Table:
    facts = [
        ("family", gpu.family),
        (
            "architecture",
            f"{gpu.architecture or _UNKNOWN}, compute capability {gpu.compute_capability or _UNKNOWN}",
        ),
        ("year", str(gpu.year or _UNKNOWN)),
        ("memory", f"{show_memory(gpu.memory_bytes)} at {_optional(gpu.memory_bytes_per_s, show_rate)}"),
        *((f"{p}, dense", _tflops(peak_flop_per_s(gpu, p))) for p in PRECISIONS),
        ("NVLink, one direction", _nvlink(gpu)),
        ("host link", _link_rate(gpu.host_link)),
        ("power", _optional(gpu.tdp_w, lambda w: f"{w:.0f} W")),
        ("multiprocessors", str(gpu.sm_count or _UNKNOWN)),
        ("note", gpu.note),
        ("listed", f"{gpu.origin.as_of}, confidence {gpu.origin.confidence}, {' '.join(gpu.origin.sources)}"),
    ]
    return _facts(gpu.name, facts)


def _instance_facts(instance: Instance) -> Table:
    network, disks, origin = instance.network, instance.storage, instance.origin
    burst = network.burst_bytes_per_s if network else None
    peak = f", {_gbit(burst)} Gb/s for a while" if network and burst and burst != network.bytes_per_s else ""
    optional = f" (up to {show_bytes(disks.local_optional_bytes)} at a price)" if disks.local_optional_bytes else ""
    facts = [
        ("GPUs", f"{_gpus(instance)}, {show_memory(instance.gpu.memory_bytes)} each"),
        ("vCPUs", f"{instance.vcpus}, {instance.cpu_arch or _UNKNOWN}"),
        ("RAM", show_memory(instance.memory_bytes)),
        ("CoreMark", _optional(instance.coremark_iter_per_s, lambda n: f"{n:,.0f} iterations/s, all vCPUs")),
        ("between GPUs, one direction", _link_rate(instance.gpu_link)),
        ("host link per GPU", _link_rate(instance.host_link)),
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
    return _facts(f"{instance.cloud} {instance.name}", facts)


def _facts(title: str, facts: Iterable[tuple[str, str]]) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column()
    for name, value in facts:
        if value:
            made.add_row(name, value)
    return made


def _gpus(instance: Instance) -> str:
    return f"{instance.gpu_count} × {instance.gpu.name}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _number(value: float | None, unit: float = 1.0) -> str:
    return _UNKNOWN if value is None else f"{value / unit:.4g}"


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
    seen = {True: ", lanes as observed", False: ", lanes as supported", None: ""}[link.observed]
    rate = f", {show_rate(link.bytes_per_s)}" if link.bytes_per_s is not None else ""
    return f"{_link(link)}{rate}{seen}"


def _nvlink(gpu: Gpu) -> str:
    bridge = f", bridge between {gpu.nvlink_bridge_gpus} cards" if gpu.nvlink_bridge_gpus else ""
    return _optional(gpu.nvlink_bytes_per_s, show_rate, zero="none") + bridge


def _caption(text: str) -> Text:
    return Text(text, style="dim")


def _age(age: PriceAge | None) -> Text:
    if age is None:
        return _caption("Last prices of types that are no longer sold.")
    span = (
        f"{age.oldest_as_of}" if age.oldest_as_of == age.newest_as_of else f"{age.oldest_as_of} to {age.newest_as_of}"
    )
    return _caption(f"Listed prices of {span}; the oldest is {age.age_days} days old.")
