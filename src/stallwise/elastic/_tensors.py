"""Tensors in files, in the safetensors format: a bounded JSON header and plain bytes; reading one runs no code.

    length of the header (8 bytes), {name: {dtype, shape, data_offsets}, "__metadata__": {…}}, the tensors

Of a tensor that is sharded over ranks (DTensor) each rank's file has its own part, and `__metadata__` says which:
{"shards": JSON of {name in the file: {name, offset, shape of the whole}}}. `fill` puts parts together for whatever
part is wanted, so that a state may be read on another number of ranks.
"""

import hashlib
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from stallwise.elastic._manifest import FileFact, hasher
from stallwise.errors import InputError

_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100 << 20
_ALIGN = 8
_CHUNK_BYTES = 64 << 20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorPart:
    """Part of a tensor in a file: where it begins in the whole, and the whole's shape."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    offset: tuple[int, ...]
    whole: tuple[int, ...]

    def read(self) -> torch.Tensor:
        count = math.prod(self.shape) * self.dtype.itemsize
        if not count:
            return torch.empty(self.shape, dtype=self.dtype)
        data = np.fromfile(self.path, dtype=np.uint8, count=count, offset=self.begin)
        if len(data) != count:
            raise InputError(f"{self.path.name} is shorter than its header says.")
        return torch.from_numpy(data).view(self.dtype).reshape(self.shape)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], algorithm: str) -> FileFact:
    """Write a file durably; returns its size, and the checksum of what was to be written."""
    entries: dict[str, Any] = {}
    shards: dict[str, _Shard] = {}
    data: list[memoryview] = []
    begin = 0
    for name, tensor in tensors.items():
        local = tensor
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            shards[name] = _Shard(name, tuple(offset), tuple(tensor.shape))
        if local.dtype not in _NAMES:
            raise InputError(f"A checkpoint cannot hold {name}: tensors of type {local.dtype}.")
        view = _bytes_of(local)
        entries[name] = _Entry(_NAMES[local.dtype], tuple(local.shape), (begin, begin + len(view)))
        data.append(view)
        begin += len(view)
    metadata = {"shards": msgspec.json.encode(shards).decode()} if shards else {}
    header = msgspec.json.encode({"__metadata__": metadata, **entries})
    header += b" " * (-len(header) % _ALIGN)
    digest, size = hasher(algorithm), 0
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        for part in (memoryview(_LENGTH.pack(len(header)) + header), *data):
            size += _write_all(handle, part, digest)
        os.fsync(handle)
    finally:
        os.close(handle)
    return FileFact(bytes=size, checksum=digest.hexdigest())


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.detach().contiguous().reshape(-1)
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return memoryview(real.view(torch.uint8).numpy())  # type: ignore[arg-type]


def _write_all(handle: int, data: memoryview, digest: "hashlib._Hash") -> int:
    """Write everything: a write may take less than it was given."""
    done = 0
    while done < len(data):
        part = data[done : done + _CHUNK_BYTES]
        digest.update(part)
        while part:
            count = os.write(handle, part)
            part = part[count:]
            done += count
    return done


def read_parts(paths: Sequence[Path]) -> dict[str, list[TensorPart]]:
    """Read the headers of files; returns the parts of every tensor by name. InputError where one is malformed."""
    parts: dict[str, list[TensorPart]] = {}
    for path in paths:
        try:
            for name, part in _header(path):
                parts.setdefault(name, []).append(part)
        except (OSError, msgspec.MsgspecError, ValueError, KeyError, struct.error, RecursionError) as error:
            raise InputError(f"{path.name} is no file of tensors ({str(error)[:200]}).") from None
    return parts


def _header(path: Path) -> list[tuple[str, TensorPart]]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > min(_MAX_HEADER_BYTES, size - _LENGTH.size):
            raise ValueError(f"a header of {length} bytes")
        header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    metadata = msgspec.json.decode(header.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
    shards = msgspec.json.decode(metadata.get("shards", "{}"), type=dict[str, _Shard])
    start, parts = _LENGTH.size + length, []
    for key, raw in header.items():
        entry = msgspec.json.decode(raw, type=_Entry)
        dtype, (begin, end) = _DTYPES[entry.dtype], entry.data_offsets
        right = min(entry.shape, default=0) >= 0 and end - begin == math.prod(entry.shape) * dtype.itemsize
        if not right or not 0 <= begin <= end <= size - start:
            raise ValueError(f"{key} lies outside the file")
        shard = shards.get(key, _Shard(key, (0,) * len(entry.shape), entry.shape))
        if not len(shard.offset) == len(shard.shape) == len(entry.shape):
            raise ValueError(f"{key} is no part of a whole")
        parts.append((shard.name, TensorPart(path, dtype, entry.shape, start + begin, shard.offset, shard.shape)))
    return parts


def fill(name: str, target: torch.Tensor, parts: Sequence[TensorPart]) -> None:
    """Copy a tensor from its parts: all of it, or of a DTensor what is this rank's. InputError where parts miss."""
    local, offset = target, (0,) * target.dim()
    if isinstance(target, DTensor):
        local = target.to_local()
        offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)[1]
    fill_local(name, local, offset, tuple(target.shape), parts)


def fill_local(
    name: str, local: torch.Tensor, offset: Sequence[int], whole: tuple[int, ...], parts: Sequence[TensorPart]
) -> None:
    """Copy the region of a tensor that begins at `offset` from its parts."""
    missing = local.numel()
    seen: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
    for part in parts:
        if part.whole != whole:
            raise InputError(f"{name} has the shape {list(whole)} here, and {list(part.whole)} in the checkpoint.")
        if (part.offset, part.shape) in seen:
            continue  # a replica
        seen.add((part.offset, part.shape))
        begins = [max(a, b) for a, b in zip(offset, part.offset, strict=True)]
        ends = [min(a + m, b + n) for a, m, b, n in zip(offset, local.shape, part.offset, part.shape, strict=True)]
        if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
            continue
        source = part.read()
        into = tuple(slice(b - o, e - o) for b, e, o in zip(begins, ends, offset, strict=True))
        taken = tuple(slice(b - o, e - o) for b, e, o in zip(begins, ends, part.offset, strict=True))
        with torch.no_grad():
            local[into].copy_(source[taken])
        missing -= math.prod(e - b for b, e in zip(begins, ends, strict=True))
    if missing:
        raise InputError(f"The checkpoint has no {name}, or only a part of it: is it of another model?")
