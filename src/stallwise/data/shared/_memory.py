"""A prepared batch in anonymous shared memory: written once by its worker, read by every job into its own memory.

    u32 count | u64 length × count | pickle | buffer | buffer …     (each part begins at a multiple of 64)

Pickle protocol 5 leaves the bytes of tensors and arrays out (PEP 574); they are written and read with one system call,
without a copy in between. A reader gets every tensor in its own memory and may change it or keep it alone.
"""

import os
import pickle
import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import torch

_ALIGN = 64
_COUNT = struct.Struct("<I")


class _Pickler(pickle.Pickler):
    """Leaves out the bytes of plain tensors; torch's own reduction would copy them into the pickle."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg():
            return NotImplemented
        flat = value.contiguous().reshape(-1).view(torch.uint8)
        return _tensor, (pickle.PickleBuffer(flat.numpy()), value.dtype, tuple(value.shape))  # type: ignore[arg-type]


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memoryview(data), dtype=dtype).reshape(shape)


def pack_batch(batch: Any) -> list[memoryview]:
    """Return the parts of a file that holds the batch."""
    buffers: list[pickle.PickleBuffer] = []
    text = BytesIO()
    _Pickler(text, protocol=5, buffer_callback=buffers.append).dump(batch)
    parts = [memoryview(text.getvalue()), *(buffer.raw() for buffer in buffers)]
    head = _COUNT.pack(len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return [memoryview(head), *parts]


def size_bytes(parts: Sequence[memoryview]) -> int:
    """Return the size of a file with these parts."""
    return sum(_padded(len(part)) for part in parts)


def write_batch(parts: Sequence[memoryview]) -> int:
    """Write the parts into a new anonymous file and return its descriptor; the caller closes it."""
    file = os.memfd_create("stallwise-batch", os.MFD_CLOEXEC)
    try:
        os.truncate(file, size_bytes(parts))
        at = 0
        for part in parts:
            _write_all(file, part, at)
            at += _padded(len(part))
    except BaseException:
        os.close(file)
        raise
    return file


def read_batch(file: int) -> Any:
    """Return the batch in a file, copied into this process's memory."""
    lengths = _lengths(file)
    at, parts = _padded(_COUNT.size + 8 * len(lengths)), []
    for length in lengths:
        part = memoryview(torch.empty(length, dtype=torch.uint8).numpy())  # type: ignore[arg-type]
        _read_all(file, part, at)
        parts.append(part)
        at += _padded(length)
    # It was written by a process of the same user and group of jobs.
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301


def _lengths(file: int) -> tuple[int, ...]:
    """Return the lengths of the parts; `EOFError` where the file is too short for them."""
    whole_bytes = os.fstat(file).st_size
    head = os.pread(file, _COUNT.size, 0)
    count = _COUNT.unpack(head)[0] if len(head) == _COUNT.size else 0
    if not count or _COUNT.size + 8 * count > whole_bytes:
        raise EOFError("a batch ends early")
    lengths = struct.unpack(f"<{count}Q", os.pread(file, 8 * count, _COUNT.size))
    if _padded(_COUNT.size + 8 * count) + sum(map(_padded, lengths)) > whole_bytes:
        raise EOFError("a batch ends early")
    return lengths


def _padded(length: int) -> int:
    return -(-length // _ALIGN) * _ALIGN


def _write_all(file: int, part: memoryview, at: int) -> None:
    while len(part):
        done = os.pwrite(file, part, at)
        part, at = part[done:], at + done


def _read_all(file: int, part: memoryview, at: int) -> None:
    while len(part):
        done = os.preadv(file, [part], at)
        if done == 0:
            raise EOFError("a batch ends early")
        part, at = part[done:], at + done
