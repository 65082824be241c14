"""The catalog's own tables: rows and their cells, read and written in the units that vendors use.

Every error names file, line and column. Each kind of row (GPU, instance type, offer) is read by
`*_from` and written by `*_cells`; reading what was written gives the same object.
"""

import csv
import datetime as dt
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stallwise.errors import CatalogError, nearest_names
from stallwise.hardware.board import Board
from stallwise.hardware.gpu import (
    CONFIDENCES,
    PCIE_GENERATIONS,
    PRECISIONS,
    Confidence,
    Gpu,
    Link,
    Origin,
    pcie,
    peak_flop_per_s,
)
from stallwise.hardware.instance import MARKETS, Instance, Market, Offer, Storage
from stallwise.inputs import bounded_rows
from stallwise.inputs import read_text as read_bounded_text
from stallwise.units import GB, GIB, MB, TERA, gbit_per_s


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One row: its cells by column, and where it stands for messages. A blank cell means unknown."""

    cells: Mapping[str, str]
    file: str
    line: int

    def error(self, column: str, expected: str) -> CatalogError:
        """The error for one cell, with file, line and column."""
        cell = self.cells.get(column, "")
        shown = repr(cell[:60]) if cell else "nothing"
        return CatalogError(
            f"{self.file}, line {self.line}, column {column}: found {shown}, expected {expected}. "
            "Correct it and try again; nothing was changed."
        )

    def text(self, column: str, default: str = "") -> str:
        """The cell without surrounding blanks."""
        return (self.cells.get(column) or "").strip() or default

    def name(self, column: str) -> str:
        """A cell that must not be blank."""
        text = self.text(column)
        if not text:
            raise self.error(column, "a name")
        return text

    def number(self, column: str, *, zero: bool = False) -> float | None:
        """A positive number, or `None` when blank; zero only where it means "has none"."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise self.error(column, "a number") from None
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            hint = "" if zero else " (leave it blank where it is unknown)"
            raise self.error(column, f"a number {'not below' if zero else 'above'} 0{hint}")
        return value

    def scaled(self, column: str, unit: float, *, zero: bool = False) -> float | None:
        """The number times its unit."""
        value = self.number(column, zero=zero)
        return None if value is None else value * unit

    def required_number(self, column: str) -> float:
        """A positive number that must not be blank."""
        value = self.number(column)
        if value is None:
            raise self.error(column, "a number")
        return value

    def count(self, column: str) -> int | None:
        """A positive whole number, or `None` when blank."""
        value = self.number(column)
        if value is not None and value != int(value):
            raise self.error(column, "a whole number")
        return None if value is None else int(value)

    def required_count(self, column: str) -> int:
        """A positive whole number that must not be blank."""
        value = self.count(column)
        if value is None:
            raise self.error(column, "a whole number")
        return value

    def date(self, column: str, default: dt.date | None = None) -> dt.date | None:
        """A date as YYYY-MM-DD, or the default when blank."""
        text = self.text(column)
        if not text:
            return default
        try:
            return dt.date.fromisoformat(text)
        except ValueError:
            raise self.error(column, "a date like 2026-08-22") from None

    def choice(self, column: str, allowed: Sequence[str], default: str | None = None) -> str:
        """One of a few words; a blank cell is the default, or an error where there is none."""
        text = self.text(column)
        if not text and default is not None:
            return default
        if text not in allowed:
            raise self.error(column, "one of " + ", ".join(allowed))
        return text


def read_text(path: Path) -> str:
    """A text file as a string; anything else is a `CatalogError`."""
    try:
        return read_bounded_text(path)
    except UnicodeDecodeError:
        raise CatalogError(f"{path} is not a text file. Give a CSV or YAML file in UTF-8.") from None
    except OSError as error:
        raise CatalogError(f"{path} cannot be read ({error.strerror}). Check the path.") from None


def csv_rows(text: str, file: str) -> Iterator[CatalogRow]:
    """The rows of CSV text with a header; blank lines are passed over."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        if not any(header) or "\0" in text:
            raise CatalogError(f"{file} is empty or not a CSV file. Its first line must name the columns.")
        twice = {column for column in header if header.count(column) > 1}
        if twice:
            raise CatalogError(f"{file}, line 1: column {min(twice)!r} appears twice. Remove one.")
        for cells in bounded_rows(reader, file):
            if not any(cells):
                continue
            if len(cells) != len(header):
                raise CatalogError(
                    f"{file}, line {reader.line_num}: found {len(cells)} cells, expected {len(header)} as in "
                    "the first line. Correct it and try again; nothing was changed."
                )
            yield CatalogRow(dict(zip(header, cells, strict=True)), file, reader.line_num)
    except csv.Error as error:
        raise CatalogError(
            f"{file}, line {reader.line_num}: not valid CSV ({error}). Correct it and try again; nothing was changed."
        ) from None


def header_of(text: str) -> list[str]:
    """The column names of CSV text, as far as its first line can be read."""
    try:
        return [column.strip() for column in next(csv.reader(io.StringIO(text, newline="")), [])]
    except csv.Error:
        return []


def check_columns(
    columns: Sequence[str], file: str, line: int, *, required: Sequence[str], allowed: Sequence[str]
) -> None:
    """Raise a `CatalogError` for a missing column and for an unknown one, which is most likely misspelt."""
    missing = [column for column in required if column not in columns]
    if missing:
        raise CatalogError(
            f"{file}, line {line}: column {missing[0]} is missing. Found: {', '.join(columns) or 'nothing'}."
        )
    for column in columns:
        if column not in allowed:
            near = nearest_names(column, allowed, limit=1)
            hint = f" Did you mean {near[0]}?" if near else f" Known are: {', '.join(allowed)}."
            raise CatalogError(f"{file}, line {line}: there is no column {column!r}.{hint}")


def show_number(value: float | None, unit: float = 1.0) -> str:
    """A value as a cell, in its unit; blank for unknown."""
    return "" if value is None else f"{value / unit:.10g}"


_ORIGIN = ("as_of", "source", "confidence")
_GBIT = gbit_per_s(1)
_GPU_LINKS = ("single", "pcie", "pcie-p2p", "nvlink-bridge", "nvlink-mesh", "nvlink-switch")

GPU_COLUMNS = (
    *("gpu", "family", "architecture", "compute_capability", "year"),
    *(f"{precision}_tflops" for precision in PRECISIONS),
    *("memory_gib", "memory_gb_per_s", "nvlink_gb_per_s", "nvlink_bridge_gpus"),
    "infinity_fabric_gb_per_s",
    *("pcie_generation", "pcie_lanes", "c2c_gb_per_s", "tdp_w", "sm_count", *_ORIGIN, "note"),
)
GPU_REQUIRED = ("gpu", "memory_gib")

INSTANCE_COLUMNS = (
    *("cloud", "instance", "gpu", "gpu_count", "vcpus", "memory_gib", "cpu_arch", "coremark_iter_per_s"),
    *("network", "network_gbit_per_s", "network_burst_gbit_per_s"),
    *("block_mb_per_s", "block_burst_mb_per_s", "block_iops"),
    *("local_disk_gb", "local_disk_optional_gb", "local_read_mb_per_s"),
    *("gpu_link", "gpu_link_gb_per_s", "pcie_generation", "pcie_lanes", "pcie_observed", "board", "retired_on"),
    *(*_ORIGIN, "confidence_network_storage", "confidence_links"),
)
INSTANCE_REQUIRED = ("cloud", "instance", "gpu", "gpu_count", "vcpus", "memory_gib")

OFFER_COLUMNS = ("cloud", "instance", "region", "zone", "market", "usd_per_h", *_ORIGIN)
OFFER_REQUIRED = ("cloud", "instance", "region", "market", "usd_per_h")

BOARD_COLUMNS = (
    *("board", "nvlink_gb_per_s", "bridge", "peer_gpus", "switch_gpus", "uplink_generation", "uplink_lanes"),
    *(*_ORIGIN, "note"),
)

COLUMNS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "gpus": (GPU_REQUIRED, GPU_COLUMNS),
    "instances": (INSTANCE_REQUIRED, INSTANCE_COLUMNS),
    "offers": (OFFER_REQUIRED, OFFER_COLUMNS),
}
"""The columns each table that can be imported must have, and those it may have."""
TABLES = {**COLUMNS, "boards": (("board",), BOARD_COLUMNS)}
"""The same of every table of a catalog folder."""


def gpu_from(row: CatalogRow, today: dt.date) -> Gpu:
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
        infinity_fabric_bytes_per_s=row.scaled("infinity_fabric_gb_per_s", GB),
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
        "infinity_fabric_gb_per_s": show_number(gpu.infinity_fabric_bytes_per_s, GB),
        "pcie_generation": show_number(link.generation if link else None),
        "pcie_lanes": show_number(link.lanes if link else None),
        "c2c_gb_per_s": show_number(c2c, GB),
        "tdp_w": show_number(gpu.tdp_w),
        "sm_count": show_number(gpu.sm_count),
        **_origin_cells(gpu.origin),
        "note": gpu.note,
    }


def board_from(row: CatalogRow, today: dt.date) -> Board:
    """Read one row of the board table; `nvlink_gb_per_s` holds `GPUs:rate` by how many GPUs take part."""
    generation, lanes = row.count("uplink_generation"), row.count("uplink_lanes")
    try:
        pairs = [cell.split(":") for cell in row.text("nvlink_gb_per_s").split()]
        nvlink = tuple(sorted((int(count), float(rate) * GB) for count, rate in pairs))
    except ValueError:
        raise row.error("nvlink_gb_per_s", "numbers of GPUs with their rates, like 2:50 4:100") from None
    return Board(
        name=row.name("board"),
        nvlink=nvlink,
        bridge=row.choice("bridge", ("yes", "no"), default="no") == "yes",
        peer_gpus=row.count("peer_gpus") or 1,
        switch_gpus=row.count("switch_gpus") or 1,
        uplink=pcie(generation, lanes) if generation and lanes else None,
        origin=_origin_from(row, today),
        note=row.text("note"),
    )


def instance_from(row: CatalogRow, gpus: Mapping[str, Gpu], boards: Mapping[str, Board], today: dt.date) -> Instance:
    """Read one row of the instance table; its GPU and its board must be among `gpus` and `boards`."""
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
        board=_board_from(row, boards),
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
        "board": instance.board.name if instance.board else "",
        "retired_on": str(instance.retired_on or ""),
        **_origin_cells(instance.origin),
        "confidence_network_storage": instance.network_storage_confidence or "",
        "confidence_links": instance.links_confidence or "",
    }


def offer_from(row: CatalogRow, instances: Mapping[tuple[str, str], Instance], today: dt.date) -> Offer:
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


def _origin_from(row: CatalogRow, today: dt.date) -> Origin:
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


def _confidence_from(row: CatalogRow, column: str) -> Confidence | None:
    word = row.choice(column, CONFIDENCES, default="")
    return cast("Confidence", word) if word else None


def _pcie_from(row: CatalogRow, observed: bool | None) -> Link | None:
    generation, lanes = row.count("pcie_generation"), row.count("pcie_lanes")
    if generation is None and lanes is None:
        return None
    if generation not in PCIE_GENERATIONS:
        raise row.error("pcie_generation", f"a PCIe generation from 1 to {PCIE_GENERATIONS[-1]}")
    if lanes is None:
        raise row.error("pcie_lanes", "the number of PCIe lanes")
    return pcie(generation, lanes, observed=observed)


def _board_from(row: CatalogRow, boards: Mapping[str, Board]) -> Board | None:
    name = row.text("board")
    if name and name not in boards:
        near = nearest_names(name, boards)
        raise row.error("board", "the name of a board in the catalog" + (f" such as {near[0]}" if near else ""))
    return boards[name] if name else None


def _c2c_of(gpu: Gpu) -> Link | None:
    return gpu.host_link if gpu.host_link and gpu.host_link.kind == "nvlink-c2c" else None


def _network_from(row: CatalogRow) -> Link | None:
    rate = row.scaled("network_gbit_per_s", _GBIT)
    kind = row.text("network")
    if rate is None and not kind:
        return None
    burst = row.scaled("network_burst_gbit_per_s", _GBIT)
    return Link(kind=kind or "ethernet", bytes_per_s=rate, burst_bytes_per_s=burst)


def _gpu_link_from(row: CatalogRow) -> Link | None:
    kind = row.choice("gpu_link", _GPU_LINKS, default="")
    if not kind:
        return None
    return Link(kind=kind, bytes_per_s=row.scaled("gpu_link_gb_per_s", GB))
