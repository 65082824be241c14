"""The machine record: what was measured on a machine, or on several joined by a network.

One JSON file. Within one version, keys may be added with a default and unknown keys are ignored; anything else needs
a new version. It names no host and no person.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from stallwise.errors import InputError
from stallwise.inputs import bounded_nesting, read_bytes
from stallwise.sentences import Sentence, read_sentence, sentence_document

SCHEMA_VERSION = 1

Scope = Literal["inside", "between", "all"]
"""Which ranks exchanged: those of one node, one of each node, or all where nodes have several."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The hardware of one node: CPU model, cores, memory and GPUs."""

    node: int
    cpu_model: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    gpus: tuple[str, ...] = ()


class PointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one size: the median time of a collective and its 95 % interval; null where it has no bound."""

    size_bytes: int
    time_s: float
    low_s: float | None
    high_s: float | None
    repeats: int


class LineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`latency_s` + `s_per_byte` · bytes."""

    latency_s: float
    s_per_byte: float


class FitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Two lines, `large` from `break_bytes` on; one where `break_bytes` is null.

    95 % of the points lie between `low` and `high` times the fitted time.
    """

    small: LineRecord
    large: LineRecord
    break_bytes: float | None
    low: float
    high: float


class LinkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A collective over some ranks, measured over sizes."""

    scope: Scope
    ranks: int
    nodes: int
    backend: str
    points: tuple[PointRecord, ...]
    fit: FitRecord
    collective: str = "all-reduce"


class CopyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Pinned host memory to GPUs, `gpus` of them at once: bytes/s of each, the slowest of them, and of all."""

    gpus: int
    each_bytes_per_s: float
    slowest_bytes_per_s: float
    all_bytes_per_s: float


class RingRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU sends to its neighbour at once: bytes/s of the slowest hop, in one direction."""

    gpus: int
    slowest_bytes_per_s: float
    mean_bytes_per_s: float


class StorageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Reading: from disk with the page cache dropped (`disk`), from memory (`page cache`), from a bucket (`store`)."""

    kind: Literal["disk", "page cache", "store"]
    bytes_per_s: float
    readers: int
    object_bytes: int | None = None
    note: str = ""


class DecodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """JPEG to a cropped, flipped tensor: samples/s of one core alone, and of each core when all work."""

    library: str
    pixels: tuple[int, int]
    file_bytes: int
    one_core_samples_per_s: float
    per_core_samples_per_s: float
    cores: int


class NetworkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """G of a standard network on one device: samples/s it trains with data already there, with a 95 % interval."""

    name: str
    precision: str
    batch: int
    samples_per_s: float
    low_samples_per_s: float | None
    high_samples_per_s: float | None
    step_s: float
    parameters: int
    gradient_bytes: int
    device: str


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Results of the process that measures the devices."""

    torch: str
    cuda: str | None
    gpus: tuple[str, ...]
    copies: tuple[CopyRecord, ...] = ()
    ring: RingRecord | None = None
    networks: tuple[NetworkRecord, ...] = ()
    unknown: dict[str, Sentence] = {}


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Everything measured on a machine; fields that only `characterize` fills are empty in a record of `probe`."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["machine"] = "machine"
    created: datetime
    stallwise_version: str
    ranks: int
    nodes: int
    hosts: tuple[HostRecord, ...] = ()
    software: dict[str, str] = {}
    links: tuple[LinkRecord, ...] = ()
    copies: tuple[CopyRecord, ...] = ()
    ring: RingRecord | None = None
    storage: tuple[StorageRecord, ...] = ()
    decode: DecodeRecord | None = None
    networks: tuple[NetworkRecord, ...] = ()
    unknown: dict[str, Sentence] = {}
    """What could not be measured, with why."""
    notes: tuple[Sentence, ...] = ()

    @property
    def disk_read_bytes_per_s(self) -> float | None:
        """From disk, cold; None where it was not measured."""
        return next((one.bytes_per_s for one in self.storage if one.kind == "disk"), None)

    def link(self, scope: Scope) -> LinkRecord | None:
        """The measurement of that scope; None where it was not measured or the machine has no such link."""
        return next((link for link in self.links if link.scope == scope), None)


def encode_machine(record: MachineRecord) -> bytes:
    """Indented JSON, as it lies on disk."""
    return msgspec.json.format(msgspec.json.encode(record, enc_hook=sentence_document), indent=2) + b"\n"


def read_machine(path: Path) -> MachineRecord:
    """The record in `path`; one sentence for each way it can be unusable."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}). Give a file written by stallwise probe or characterize."
        ) from None
    try:
        with bounded_nesting(path, "a machine record"):
            document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is cut off or not JSON ({error}). Measure again with stallwise probe or characterize."
        ) from None
    _check_kind(document, path)
    try:
        return msgspec.convert(document, MachineRecord, dec_hook=read_sentence)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path} is not a usable machine record: {error}. Measure again with stallwise probe or characterize."
        ) from None


def _check_kind(document: Any, path: Path) -> None:
    if not isinstance(document, dict) or document.get("kind") != "machine":
        raise InputError(f"{path} is not a machine record. Give a file written by stallwise probe or characterize.")
    version = document.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has machine record version {version}; this Stallwise reads up to {SCHEMA_VERSION}. "
            "Upgrade Stallwise to read it."
        )
