"""The catalog's own tables: one row per GPU, instance type or offer, in the units vendors use.

Each kind of row is read by `*_from` and written by `*_cells`; reading what was written gives the same object.
"""

import csv
import datetime as dt
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from stallwise.errors import nearest_names
from stallwise.hardware.gpu import PRECISIONS, Gpu, peak_flop_per_s
from stallwise.hardware.instance import Instance
from stallwise.hardware.link import PCIE_GENERATIONS, Link, pcie
from stallwise.hardware.offer import MARKETS, Market, Offer
from stallwise.hardware.origin import CONFIDENCES, Confidence, Origin
from stallwise.hardware.rows import Row, show_number
from stallwise.hardware.storage import Storage
from stallwise.units import GB, GIB, MB, TERA, gbit_per_s

_ORIGIN = ("as_of", "source", "confidence")
_GBIT = gbit_per_s(1)
_GPU_LINKS = ("single", "pcie", "pcie-p2p", "nvlink-bridge", "nvlink-mesh", "nvlink-switch")

GPU_COLUMNS = (
    *("gpu", "family", "architecture", "compute_capability", "year"),
    *(f"{precision}_tflops" for precision in PRECISIONS),
    *("memory_gib", "memory_gb_per_s", "nvlink_gb_per_s", "nvlink_bridge_gpus"),
    *("pcie_generation", "pcie_lanes", "c2c_gb_per_s", "tdp_w", "sm_count", *_ORIGIN, "note"),
)
GPU_REQUIRED = ("gpu", "memory_gib")

INSTANCE_COLUMNS = (
    *("cloud", "instance", "gpu", "gpu_count", "vcpus", "memory_gib", "cpu_arch", "coremark_iter_per_s"),
    *("network", "network_gbit_per_s", "network_burst_gbit_per_s"),
    *("block_mb_per_s", "block_burst_mb_per_s", "block_iops"),
    *("local_disk_gb", "local_disk_optional_gb", "local_read_mb_per_s"),
    *("gpu_link", "gpu_link_gb_per_s", "pcie_generation", "pcie_lanes", "pcie_observed", "retired_on"),
    *(*_ORIGIN, "confidence_network_storage", "confidence_links"),
)
INSTANCE_REQUIRED = ("cloud", "instance", "gpu", "gpu_count", "vcpus", "memory_gib")

OFFER_COLUMNS = ("cloud", "instance", "region", "zone", "market", "usd_per_h", *_ORIGIN)
OFFER_REQUIRED = ("cloud", "instance", "region", "market", "usd_per_h")

COLUMNS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "gpus": (GPU_REQUIRED, GPU_COLUMNS),
    "instances": (INSTANCE_REQUIRED, INSTANCE_COLUMNS),
    "offers": (OFFER_REQUIRED, OFFER_COLUMNS),
}
"""The columns each table must have, and those it may have."""


def gpu_from(row: Row, today: dt.date) -> Gpu:
    """Read one row of the GPU table."""
    name = row.name("gpu")
    c2c = row.scaled("c2c_gb_per_s", GB)
    year = row.count("year")
    return Gpu(
        name=name,
        family=row.text("family", name),
        architecture=row.text("architecture") or None,
        compute_capability=row.text("compute_capability") or None,
        year=year,
        memory_bytes=round(row.required_number("memory_gib") * GIB),
        memory_bytes_per_s=row.scaled("memory_gb_per_s", GB),
        fp32_flop_per_s=row.scaled("fp32_tflops", TERA),
        tf32_flop_per_s=row.scaled("tf32_tflops", TERA),
        fp16_flop_per_s=row.scaled("fp16_tflops", TERA),
        bf16_flop_per_s=row.scaled("bf16_tflops", TERA),
        fp8_flop_per_s=row.scaled("fp8_tflops", TERA),
        nvlink_bytes_per_s=row.scaled("nvlink_gb_per_s", GB, zero=True),
        nvlink_bridge_gpus=row.count("nvlink_bridge_gpus"),
        host_link=_pcie_from(row, None) or (Link(kind="nvlink-c2c", bytes_per_s=c2c) if c2c else None),
        tdp_w=row.number("tdp_w"),
        sm_count=row.count("sm_count"),
        origin=_origin_from(row, today),
        note=row.text("note"),
    )


def gpu_cells(gpu: Gpu) -> dict[str, str]:
    """Write one row of the GPU table."""
    link = gpu.host_link
    c2c = link.bytes_per_s if link and link.kind == "nvlink-c2c" else None
    return {
        "gpu": gpu.name,
        "family": gpu.family,
        "architecture": gpu.architecture or "",
        "compute_capability": gpu.compute_capability or "",
        "year": show_number(gpu.year),
        **{f"{p}_tflops": show_number(peak_flop_per_s(gpu, p), TERA) for p in PRECISIONS},
        "memory_gib": show_number(gpu.memory_bytes, GIB),
        "memory_gb_per_s": show_number(gpu.memory_bytes_per_s, GB),
        "nvlink_gb_per_s": show_number(gpu.nvlink_bytes_per_s, GB),
        "nvlink_bridge_gpus": show_number(gpu.nvlink_bridge_gpus),
        "pcie_generation": show_number(link.generation if link else None),
        "pcie_lanes": show_number(link.lanes if link else None),
        "c2c_gb_per_s": show_number(c2c, GB),
        "tdp_w": show_number(gpu.tdp_w),
        "sm_count": show_number(gpu.sm_count),
        **_origin_cells(gpu.origin),
        "note": gpu.note,
    }


def instance_from(row: Row, gpus: Mapping[str, Gpu], today: dt.date) -> Instance:
    """Read one row of the instance table; its GPU must be among `gpus`."""
    gpu = gpus.get(row.name("gpu"))
    if gpu is None:
        near = nearest_names(row.name("gpu"), gpus)
        hint = f" such as {' or '.join(near)}" if near else ""
        raise row.error("gpu", f"the name of a GPU in the catalog{hint}")
    observed = {"yes": True, "no": False, "": None}[row.choice("pcie_observed", ("yes", "no"), default="")]
    return Instance(
        cloud=row.name("cloud"),
        name=row.name("instance"),
        gpu=gpu,
        gpu_count=row.required_count("gpu_count"),
        vcpus=row.required_count("vcpus"),
        memory_bytes=round(row.required_number("memory_gib") * GIB),
        cpu_arch=row.choice("cpu_arch", ("x86_64", "arm64"), default="") or None,
        coremark_iter_per_s=row.number("coremark_iter_per_s"),
        network=_network_from(row),
        gpu_link=_gpu_link_from(row),
        # A GPU with its own link to the CPU has it in every machine; PCIe lanes depend on the machine.
        host_link=_pcie_from(row, observed) or _c2c_of(gpu),
        storage=Storage(
            block_bytes_per_s=row.scaled("block_mb_per_s", MB),
            block_burst_bytes_per_s=row.scaled("block_burst_mb_per_s", MB),
            block_iops=row.number("block_iops"),
            local_bytes=row.scaled("local_disk_gb", GB, zero=True),
            local_optional_bytes=row.scaled("local_disk_optional_gb", GB),
            local_read_bytes_per_s=row.scaled("local_read_mb_per_s", MB),
        ),
        retired_on=row.date("retired_on"),
        origin=_origin_from(row, today),
        network_storage_confidence=_confidence_from(row, "confidence_network_storage"),
        links_confidence=_confidence_from(row, "confidence_links"),
    )


def instance_cells(instance: Instance) -> dict[str, str]:
    """Write one row of the instance table."""
    network, gpu_link, host, disks = instance.network, instance.gpu_link, instance.host_link, instance.storage
    observed = {True: "yes", False: "no", None: ""}[host.observed if host else None]
    return {
        "cloud": instance.cloud,
        "instance": instance.name,
        "gpu": instance.gpu.name,
        "gpu_count": show_number(instance.gpu_count),
        "vcpus": show_number(instance.vcpus),
        "memory_gib": show_number(instance.memory_bytes, GIB),
        "cpu_arch": instance.cpu_arch or "",
        "coremark_iter_per_s": show_number(instance.coremark_iter_per_s),
        "network": network.kind if network else "",
        "network_gbit_per_s": show_number(network.bytes_per_s if network else None, _GBIT),
        "network_burst_gbit_per_s": show_number(network.burst_bytes_per_s if network else None, _GBIT),
        "block_mb_per_s": show_number(disks.block_bytes_per_s, MB),
        "block_burst_mb_per_s": show_number(disks.block_burst_bytes_per_s, MB),
        "block_iops": show_number(disks.block_iops),
        "local_disk_gb": show_number(disks.local_bytes, GB),
        "local_disk_optional_gb": show_number(disks.local_optional_bytes, GB),
        "local_read_mb_per_s": show_number(disks.local_read_bytes_per_s, MB),
        "gpu_link": gpu_link.kind if gpu_link else "",
        "gpu_link_gb_per_s": show_number(gpu_link.bytes_per_s if gpu_link else None, GB),
        "pcie_generation": show_number(host.generation if host else None),
        "pcie_lanes": show_number(host.lanes if host else None),
        "pcie_observed": observed,
        "retired_on": str(instance.retired_on or ""),
        **_origin_cells(instance.origin),
        "confidence_network_storage": instance.network_storage_confidence or "",
        "confidence_links": instance.links_confidence or "",
    }


def offer_from(row: Row, instances: Mapping[tuple[str, str], Instance], today: dt.date) -> Offer:
    """Read one row of the offer table; its instance type must be among `instances`."""
    instance = instances.get((row.name("cloud"), row.name("instance")))
    if instance is None:
        near = nearest_names(row.name("instance"), (n for c, n in instances if c == row.name("cloud")))
        hint = f" such as {' or '.join(near)}" if near else "; add it to your instances first"
        raise row.error("instance", f"an instance type of {row.name('cloud')} in the catalog{hint}")
    return Offer(
        instance=instance,
        region=row.name("region"),
        zone=row.text("zone") or None,
        market=cast("Market", row.choice("market", MARKETS)),
        usd_per_h=row.required_number("usd_per_h"),
        origin=_origin_from(row, today),
    )


def offer_cells(offer: Offer) -> dict[str, str]:
    """Write one row of the offer table."""
    return {
        "cloud": offer.instance.cloud,
        "instance": offer.instance.name,
        "region": offer.region,
        "zone": offer.zone or "",
        "market": offer.market,
        "usd_per_h": show_number(offer.usd_per_h),
        **_origin_cells(offer.origin),
    }


def to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Rows as CSV text with a header."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _origin_from(row: Row, today: dt.date) -> Origin:
    # What a user writes down is taken at its word, as of the day of reading.
    return Origin(
        as_of=row.date("as_of") or today,
        sources=tuple(row.text("source", "user").split()),
        confidence=cast("Confidence", row.choice("confidence", CONFIDENCES, default="high")),
    )


def _origin_cells(origin: Origin) -> dict[str, str]:
    return {
        "as_of": origin.as_of.isoformat(),
        "source": " ".join(origin.sources),
        "confidence": origin.confidence,
    }


def _confidence_from(row: Row, column: str) -> Confidence | None:
    word = row.choice(column, CONFIDENCES, default="")
    return cast("Confidence", word) if word else None


def _pcie_from(row: Row, observed: bool | None) -> Link | None:
    generation, lanes = row.count("pcie_generation"), row.count("pcie_lanes")
    if generation is None and lanes is None:
        return None
    if generation not in PCIE_GENERATIONS:
        raise row.error("pcie_generation", f"a PCIe generation from 1 to {PCIE_GENERATIONS[-1]}")
    if lanes is None:
        raise row.error("pcie_lanes", "the number of PCIe lanes")
    return pcie(generation, lanes, observed=observed)


def _c2c_of(gpu: Gpu) -> Link | None:
    return gpu.host_link if gpu.host_link and gpu.host_link.kind == "nvlink-c2c" else None


def _network_from(row: Row) -> Link | None:
    rate = row.scaled("network_gbit_per_s", _GBIT)
    kind = row.text("network")
    if rate is None and not kind:
        return None
    burst = row.scaled("network_burst_gbit_per_s", _GBIT)
    return Link(kind=kind or "ethernet", bytes_per_s=rate, burst_bytes_per_s=burst)


def _gpu_link_from(row: Row) -> Link | None:
    kind = row.choice("gpu_link", _GPU_LINKS, default="")
    if not kind:
        return None
    return Link(kind=kind, bytes_per_s=row.scaled("gpu_link_gb_per_s", GB))
