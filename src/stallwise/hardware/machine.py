"""The machine record: what was measured on a machine, or on several joined by a network.

One JSON file. Within one version, keys may be added with a default and unknown keys are ignored; anything else needs
a new version. It names no host and no person.
"""

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from stallwise.errors import InputError

SCHEMA_VERSION = 1

Scope = Literal["inside", "between", "all"]
"""Which ranks exchanged: those of one node, one of each node, or all where nodes have several."""


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node's hardware."""

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


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["machine"] = "machine"
    created: datetime
    stallwise_version: str
    ranks: int
    nodes: int
    hosts: tuple[HostRecord, ...] = ()
    software: dict[str, str] = {}
    links: tuple[LinkRecord, ...] = ()
    notes: tuple[str, ...] = ()

    def link(self, scope: Scope) -> LinkRecord | None:
        """What was measured there; None where it was not, or where the machine has no such link."""
        return next((link for link in self.links if link.scope == scope), None)


def encode_machine(record: MachineRecord) -> bytes:
    """Indented JSON, as it lies on disk."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def read_machine(path: Path) -> MachineRecord:
    """The record in `path`; one sentence for each way it can be unusable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Give a file written by stallwise probe.") from None
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is cut off or not JSON ({error}). Run stallwise probe again.") from None
    _check_kind(document, path)
    try:
        return msgspec.convert(document, MachineRecord)
    except msgspec.ValidationError as error:
        raise InputError(f"{path} is not a usable machine record: {error}. Run stallwise probe again.") from None


def _check_kind(document: Any, path: Path) -> None:
    if not isinstance(document, dict) or document.get("kind") != "machine":
        raise InputError(f"{path} is not a machine record. Give a file written by stallwise probe.")
    version = document.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has machine record version {version}; this Stallwise reads up to {SCHEMA_VERSION}. "
            "Upgrade Stallwise to read it."
        )
