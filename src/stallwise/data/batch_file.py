"""A prepared batch in anonymous shared memory: written once by who prepared it, read by every job into its own memory.

    u32 count | u64 length × count | pickle | buffer | buffer …     (each part begins at a multiple of 64)

Pickle protocol 5 leaves the bytes of tensors and arrays out (PEP 574); they are written and read with one system call,
without a copy in between. A reader gets every tensor in its own memory: it may change it, and keep one without the
others.
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
    """Leaves out the bytes of plain tensors; torch's own way would copy them into the pickle."""

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


def packed(batch: Any) -> list[memoryview]:
    """The parts of a file that holds the batch."""
    buffers: list[pickle.PickleBuffer] = []
    text = BytesIO()
    _Pickler(text, protocol=5, buffer_callback=buffers.append).dump(batch)
    parts = [memoryview(text.getvalue()), *(buffer.raw() for buffer in buffers)]
    head = _COUNT.pack(len(parts)) + struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return [memoryview(head), *parts]


def size_bytes(parts: Sequence[memoryview]) -> int:
    """What they take in a file."""
    return sum(_padded(len(part)) for part in parts)


def written(parts: Sequence[memoryview]) -> int:
    """A new anonymous file with these parts; the caller closes it."""
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


def read(file: int) -> Any:
    """The batch in a file, in memory of its own."""
    count = _COUNT.unpack(os.pread(file, _COUNT.size, 0))[0]
    head_bytes = _COUNT.size + 8 * count
    lengths = struct.unpack(f"<{count}Q", os.pread(file, 8 * count, _COUNT.size))
    at, parts = _padded(head_bytes), []
    for length in lengths:
        part = memoryview(torch.empty(length, dtype=torch.uint8).numpy())  # type: ignore[arg-type]
        _read_all(file, part, at)
        parts.append(part)
        at += _padded(length)
    # What is read here was written by a process of the same user and group.
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301


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
