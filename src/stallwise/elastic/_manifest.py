"""A checkpoint is complete or invisible: what its manifest says, and how it is checked.

FOLDER/.partial-…              being written; never read
FOLDER/step-000000001200/      renamed there when all files and the manifest are on disk
    manifest.json              step, facts, and size and checksum of every file
    rank-00000.safetensors …   what each rank has written (`tensors`)
"""

import hashlib
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = 2
_MAX_MANIFEST_BYTES = 256 << 20
_CHUNK_BYTES = 4 << 20


class UnreadableError(ValueError):
    """A checkpoint that cannot be read here and now, which does not mean that it is damaged."""


class FileFact(msgspec.Struct, frozen=True, kw_only=True):
    """Size and checksum of a file as it was written."""

    bytes: int
    checksum: str


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a checkpoint. `facts` are the session's: counts, positions, order of gradients."""

    format: int
    step: int
    saved_at: float
    world: int
    algorithm: str
    files: dict[str, FileFact]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckpointFault:
    """Why a checkpoint cannot be used; `damaged`: for good."""

    name: str
    why: str
    damaged: bool


def checksum_algorithm() -> str:
    """Return the name of the checksum to write: xxHash where it is installed."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        return "blake2b"
    return "xxh3_128"


def hasher(name: str) -> Any:
    if name == "xxh3_128":
        import xxhash

        return xxhash.xxh3_128()
    if name == "blake2b":
        return hashlib.blake2b(digest_size=16)
    raise UnreadableError(f"it has checksums of kind {name}")


def file_fact(path: Path, algorithm: str) -> FileFact:
    """Compute size and checksum of a file."""
    digest, size = hasher(algorithm), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileFact(bytes=size, checksum=digest.hexdigest())


def checkpoint_name(step: int) -> str:
    """Return the name of a checkpoint's folder; names sort as steps do."""
    return f"step-{step:012d}"


def checkpoint_step(name: str) -> int | None:
    """Return the step of a checkpoint's name, which may have a suffix after an @; None for other names."""
    digits = name.removeprefix("step-").partition("@")[0]
    return int(digits) if name.startswith("step-") and digits.isdecimal() else None


def encode_manifest(manifest: CheckpointManifest) -> bytes:
    """Encode a manifest; its own checksum is its first line, so that a torn one is detected."""
    body = msgspec.json.encode(manifest)
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode() + b"\n" + body


def decode_manifest(text: bytes) -> CheckpointManifest:
    """Decode a manifest; ValueError where it is not what was written."""
    checksum, _, body = text.partition(b"\n")
    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != checksum:
        raise ValueError("its manifest is damaged")
    try:
        manifest = msgspec.json.decode(body, type=CheckpointManifest)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read ({error})") from None
    for name in manifest.files:
        if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
            raise ValueError(f"its manifest names {name!r}, which is no part of it")
    if manifest.format != MANIFEST_FORMAT:
        age = "a newer" if manifest.format > MANIFEST_FORMAT else "an older"
        raise UnreadableError(f"it was written by {age} Stallwise (format {manifest.format})")
    return manifest


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint in a folder; ValueError says what is wrong."""
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return decode_manifest(file.read(_MAX_MANIFEST_BYTES))
    except OSError as error:
        raise _fault("its manifest", error) from None


def _fault(what: str, error: OSError) -> ValueError:
    """Return the error for a file: one that is not there is damage, a disk that does not answer is not."""
    kind = ValueError if isinstance(error, FileNotFoundError) else UnreadableError
    return kind(f"{what} cannot be read ({error.strerror})")


def check_checkpoint(
    folder: Path, select: Callable[[Sequence[str]], Sequence[str]] = lambda files: files
) -> CheckpointManifest:
    """Return the manifest if every file has its size, and those of `select` their checksum; else ValueError."""
    manifest = read_manifest(folder)
    chosen = frozenset(select(sorted(manifest.files)))
    for name, fact in manifest.files.items():
        path = folder / name
        try:
            facts = path.stat()
            if not stat.S_ISREG(facts.st_mode):  # a pipe would never end
                raise ValueError(f"{name} is no file")
            size = facts.st_size
            actual = file_fact(path, manifest.algorithm) if name in chosen and size == fact.bytes else None
        except OSError as error:
            raise _fault(name, error) from None
        if size != fact.bytes:
            raise ValueError(f"{name} has {size} bytes instead of {fact.bytes}")
        if actual is not None and actual.checksum != fact.checksum:
            raise ValueError(f"{name} has another content than was written")
    return manifest


def checkpoint_names(folder: Path) -> list[str]:
    """List visible checkpoints, oldest first."""
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - names alone
    except FileNotFoundError:
        return []
    return sorted(name for name in entries if checkpoint_step(name) is not None)
