"""A checkpoint is whole or invisible: what its manifest says, and how it is checked.

FOLDER/.partial-…              being written; nobody looks
FOLDER/step-000000001200/      renamed there when all files and the manifest are on disk
    manifest.json              step, facts, and size and checksum of every file
    .metadata, __0_0.distcp …  torch.distributed.checkpoint
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

NAME = "manifest.json"
FORMAT = 1
_CHUNK_BYTES = 4 << 20


class FileFact(msgspec.Struct, frozen=True, kw_only=True):
    """One file as it was written."""

    bytes: int
    checksum: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a checkpoint. `facts` are the session's: counts, positions, order of gradients."""

    format: int
    step: int
    saved_at: float
    world: int
    algorithm: str
    files: dict[str, FileFact]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a checkpoint cannot be used."""

    name: str
    why: str


def algorithm() -> str:
    """The checksum that is written here."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "blake2b"
    return "xxh3_128"


def _hasher(name: str) -> Any:
    if name == "xxh3_128":
        import xxhash

        return xxhash.xxh3_128()
    if name == "blake2b":
        return hashlib.blake2b(digest_size=16)
    raise ValueError(f"checksums of kind {name}")


def fact_of(path: Path, algorithm: str) -> FileFact:
    """Size and checksum of a file as it is now."""
    digest, size = _hasher(algorithm), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileFact(bytes=size, checksum=digest.hexdigest())


def step_name(step: int) -> str:
    """Of a checkpoint's folder; names sort as steps do."""
    return f"step-{step:012d}"


def step_of(name: str) -> int | None:
    """The step of a checkpoint's name; None of other names."""
    digits = name.removeprefix("step-")
    return int(digits) if name.startswith("step-") and digits.isdigit() else None


def encode(manifest: Manifest) -> bytes:
    """As it is written; its own checksum is its first line, so that a torn one is known."""
    body = msgspec.json.encode(manifest)
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body


def decode(text: bytes) -> Manifest:
    """Read again; ValueError where it is not what was written."""
    checksum, _, body = text.partition(b"\n")
    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != checksum:
        raise ValueError("its manifest is damaged")
    try:
        found = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise ValueError(f"its manifest cannot be read ({error})") from None
    if found.format > FORMAT:
        raise ValueError(f"it was written by a newer Stallwise (format {found.format})")
    return found


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint in a folder; ValueError says what is wrong."""
    try:
        return decode((folder / NAME).read_bytes())
    except OSError as error:
        raise ValueError(f"its manifest cannot be read ({error})") from None


def check(folder: Path, whose: Callable[[Sequence[str]], Sequence[str]] = lambda files: files) -> Manifest:
    """The manifest, if every file has its size, and those that `whose` chooses their checksum; ValueError else."""
    manifest = read(folder)
    chosen = frozenset(whose(sorted(manifest.files)))
    for name, fact in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            found = fact_of(path, manifest.algorithm) if name in chosen and size == fact.bytes else None
        except OSError as error:
            raise ValueError(f"{name} cannot be read ({error.strerror})") from None
        if size != fact.bytes:
            raise ValueError(f"{name} has {size} bytes instead of {fact.bytes}")
        if found is not None and found.checksum != fact.checksum:
            raise ValueError(f"{name} has another content than was written")
    return manifest


def names(folder: Path) -> list[str]:
    """Checkpoints that can be seen, oldest first."""
    try:
        found = os.listdir(folder)  # noqa: PTH208 - names alone
    except FileNotFoundError:
        return []
    return sorted(name for name in found if step_of(name) is not None)
