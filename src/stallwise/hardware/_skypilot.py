"""Reader of SkyPilot's catalog: one `vms.csv` per cloud, on the disk of every SkyPilot user.

Layout: `~/.sky/catalogs/v<schema>/<cloud>/vms.csv`. A row prices one instance type in one zone. GCP is
special: a host row (`a2-highgpu-1g`, no accelerator) and an accelerator row (no instance type) are priced
apart, and what one rents is their sum.
"""

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stallwise.errors import CatalogError
from stallwise.hardware._tables import CatalogRow, csv_rows, header_of, read_text
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Confidence, Gpu, Link, Origin, plain_name
from stallwise.hardware.instance import Instance, Market, Offer, Storage
from stallwise.units import GIB

COLUMNS = ("InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "Region", "Price")
SOURCE = "skypilot-import"

# GCP machine families whose GPU is built in: the accelerator label that carries their GPU's price.
_GCP_LABELS = {
    "a2-highgpu": "A100",
    "a2-megagpu": "A100",
    "a2-ultragpu": "A100-80GB",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA",
    "a3-ultragpu": "H200",
    "a4-highgpu": "B200",
    "g2-standard": "L4",
    "g4-standard": "RTXPRO6000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Everything one `vms.csv` offers with GPUs we know, and what was passed over, by reason."""

    cloud: str
    offers: tuple[Offer, ...]
    instances: tuple[Instance, ...]
    """Instance types the catalog did not have."""
    skipped: Mapping[str, int]


def looks_like_skypilot(text: str) -> bool:
    """Whether CSV text has SkyPilot's columns."""
    return {"InstanceType", "AcceleratorName"} <= set(header_of(text))


def find_lists(folder: Path) -> dict[str, Path]:
    """The `vms.csv` of each cloud under a SkyPilot catalog folder, from the newest schema that has it."""
    versions = sorted(
        (child for child in folder.iterdir() if re.fullmatch(r"v\d+", child.name)),
        key=lambda child: int(child.name[1:]),
    )
    lists: dict[str, Path] = {}
    for version in versions or [folder]:
        lists |= {path.parent.name: path for path in sorted(version.glob("*/vms.csv"))}
    if not lists:
        raise CatalogError(
            f"{folder} holds no SkyPilot catalog: there is no v*/<cloud>/vms.csv in it. "
            "Give ~/.sky/catalogs or one CSV file."
        )
    return lists


def read_list(path: Path, cloud: str, catalog: Catalog, as_of: dt.date) -> PriceList:
    """Read one `vms.csv`; rows without a GPU we know or without a price are counted, not kept."""
    text = read_text(path)
    missing = [column for column in COLUMNS if column not in header_of(text)]
    if missing:
        raise CatalogError(f"{path}, line 1: column {missing[0]} is missing; this is no SkyPilot catalog file.")
    rows = list(csv_rows(text, str(path)))
    return _Reading(catalog, cloud, as_of).read(rows)


class _Reading:
    """One pass over a list, collecting offers, new instance types and reasons for skipping."""

    def __init__(self, catalog: Catalog, cloud: str, as_of: dt.date) -> None:
        self.catalog, self.cloud, self.as_of = catalog, cloud, as_of
        self.offers: dict[tuple[str, ...], Offer] = {}
        self.new: dict[str, Instance] = {}
        self.skipped: Counter[str] = Counter()

    def read(self, rows: Sequence[CatalogRow]) -> PriceList:
        apart = self.cloud == "gcp"
        for row in rows:
            if not row.text("AcceleratorName"):
                if not (apart and self._composes(row)):
                    self.skipped["no GPU"] += 1
            elif not (apart and not row.text("InstanceType")):
                self._keep_whole(row)
        if apart:
            self._keep_sums(rows)
        return PriceList(
            cloud=self.cloud,
            offers=tuple(self.offers.values()),
            instances=tuple(self.new.values()),
            skipped=dict(self.skipped),
        )

    def _keep_whole(self, row: CatalogRow) -> None:
        instance = self._instance_of(row)
        if instance is not None:
            self._keep(row, instance, _price(row, "Price"), _price(row, "SpotPrice"))

    def _keep(self, row: CatalogRow, instance: Instance, price: float | None, spot: float | None) -> None:
        if price is None and spot is None:
            self.skipped["no price"] += 1
        # List prices hold for a region; spot prices differ between its zones.
        self._put(instance, row.name("Region"), None, "on-demand", price)
        self._put(instance, row.name("Region"), row.text("AvailabilityZone") or None, "spot", spot)

    def _put(self, instance: Instance, region: str, zone: str | None, market: Market, usd: float | None) -> None:
        if usd is None:
            return
        origin = Origin(as_of=self.as_of, sources=(SOURCE,), confidence=_confidence(self.cloud, market))
        offer = Offer(
            instance=instance, region=region, zone=zone, market=market, usd_per_h=round(usd, 6), origin=origin
        )
        self.offers[offer.key] = offer

    def _instance_of(self, row: CatalogRow) -> Instance | None:
        name, label = row.text("InstanceType"), row.text("AcceleratorName")
        instance = self.catalog.instances.get((self.cloud, name)) or self.new.get(name)
        if instance is not None:
            return instance
        gpu = self.catalog.gpu_of_label(label, self.cloud)
        count = _number(row, "AcceleratorCount")
        if gpu is None:
            self.skipped[f"unknown accelerator {label}"] += 1
        elif not name:
            self.skipped["no instance type"] += 1
        elif count is None or count != int(count) or count < 1:
            self.skipped["a fraction of a GPU"] += 1
        else:
            return self._add(row, name, gpu, int(count))
        return None

    def _add(self, row: CatalogRow, name: str, gpu: Gpu, count: int) -> Instance | None:
        vcpus, memory = _number(row, "vCPUs"), _number(row, "MemoryGiB")
        if not vcpus or not memory:
            self.skipped["vCPUs or memory not given"] += 1
            return None
        self.new[name] = Instance(
            cloud=self.cloud,
            name=name,
            gpu=gpu,
            gpu_count=count,
            vcpus=max(1, int(vcpus)),
            memory_bytes=round(memory * GIB),
            cpu_arch=None,
            coremark_iter_per_s=None,
            network=None,
            gpu_link=Link(kind="single", bytes_per_s=None) if count == 1 else None,
            host_link=None,
            storage=Storage(),
            retired_on=None,
            # The label alone does not tell PCIe cards from SXM modules.
            origin=Origin(as_of=self.as_of, sources=(SOURCE,), confidence="low"),
            network_storage_confidence=None,
            links_confidence=None,
        )
        return self.new[name]

    def _composes(self, row: CatalogRow) -> bool:
        return bool(self._gcp_parts.get(row.text("InstanceType")))

    @cached_property
    def _gcp_parts(self) -> Mapping[str, list[tuple[Instance, str]]]:
        """Host type to the instance types built on it, each with its accelerator label."""
        parts: dict[str, list[tuple[Instance, str]]] = {}
        for (cloud, name), instance in self.catalog.instances.items():
            host, _, attached = name.partition("+")
            label = attached.rpartition("x")[0] or _GCP_LABELS.get(name.rpartition("-")[0], "")
            if cloud == "gcp" and label:
                parts.setdefault(host, []).append((instance, plain_name(label)))
        return parts

    def _keep_sums(self, rows: Sequence[CatalogRow]) -> None:
        parts = self._gcp_parts
        accelerators: dict[tuple[str, float, str], list[CatalogRow]] = {}
        used: set[tuple[str, float]] = set()
        for row in rows:
            if row.text("AcceleratorName") and not row.text("InstanceType"):
                key = (plain_name(row.text("AcceleratorName")), _number(row, "AcceleratorCount") or 0)
                accelerators.setdefault((*key, row.name("Region")), []).append(row)
        summed: set[tuple[str, int]] = set()
        for host in rows:
            for instance, label in parts.get(host.text("InstanceType"), ()):
                if host.text("AcceleratorName"):
                    continue
                used.add((label, instance.gpu_count))
                for gpu in accelerators.get((label, instance.gpu_count, host.name("Region")), ()):
                    zone = host.text("AvailabilityZone")
                    if zone in ("", gpu.text("AvailabilityZone")) and (instance.name, gpu.line) not in summed:
                        summed.add((instance.name, gpu.line))
                        self._keep(gpu, instance, _sum(host, gpu, "Price"), _sum(host, gpu, "SpotPrice"))
        for (label, count, _), unused in accelerators.items():
            if (label, count) not in used:
                self.skipped[f"no host type for {unused[0].text('AcceleratorName')}"] += len(unused)


def _number(row: CatalogRow, column: str) -> float | None:
    text = row.text(column)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise row.error(column, "a number") from None
    return value if math.isfinite(value) and value >= 0 else None


def _price(row: CatalogRow, column: str) -> float | None:
    # Zero stands for "unknown" in these files, it is never a price.
    return _number(row, column) or None


def _sum(host: CatalogRow, gpu: CatalogRow, column: str) -> float | None:
    # Either side alone may be zero (a4 hosts are priced with their GPUs); blank means unknown.
    parts = (_number(host, column), _number(gpu, column))
    return None if None in parts else sum(part or 0.0 for part in parts) or None


def _confidence(cloud: str, market: Market) -> Confidence:
    # SkyPilot refreshes Azure rarely, and its spot prices there look like a flat share of on-demand.
    if cloud == "azure":
        return "low" if market == "spot" else "medium"
    return "medium" if market == "spot" else "high"
