"""Input files, plain or gzip, read within bounds.

Files come from elsewhere. A reader says how many bytes and rows a file of its kind can have, so that a small file that
unpacks into a very large one, or a large one in the place of another, is one sentence and not all memory.
"""

import contextlib
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from stallwise.errors import InputError

MOST_BYTES = 1 << 30
TEXT_BYTES = 512 << 20
"""Of a table as text; the largest public traces have a tenth of it."""
MOST_ROWS = 10_000_000
PIECE_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_MOST_RATIO, _RATIO_FROM_BYTES = 300, 64 << 20
"""Traces shrink to a tenth or a fiftieth in gzip; what was made to unpack into more has a ratio of a thousand."""
Row = TypeVar("Row")


def read_bytes(path: Path, limit: int = MOST_BYTES) -> bytes:
    """Read a file of at most `limit` bytes; other faults are the OSErrors of `Path.read_bytes`."""
    data = bytearray()
    with path.open("rb") as file:
        # A pipe has no size, so bytes are counted; `read(limit)` would take as much memory at once.
        while len(data) <= limit and (piece := file.read(PIECE_BYTES)):
            if not data and os.fstat(file.fileno()).st_size > limit:
                break
            data += piece
        else:
            if len(data) <= limit:
                return bytes(data)
    raise InputError(f"{path} has more than {limit >> 20:,} MiB, which no such file has. Check the path.")


def read_text(path: Path, encoding: str = "utf-8-sig", limit: int = TEXT_BYTES) -> str:
    """Read a text file as `read_bytes` does, with line ends as `Path.read_text` gives them."""
    return read_bytes(path, limit).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def bounded_rows(rows: Iterable[Row], source: object, most: int = MOST_ROWS) -> Iterator[Row]:
    """Yield the rows of a file, of which each takes many times its bytes in memory."""
    for number, row in enumerate(rows, 1):
        if number > most:
            raise InputError(f"{source} has more than {most:,} rows, which no such file has. Take a part of it.")
        yield row


@contextlib.contextmanager
def bounded_nesting(path: object, kind: str) -> Iterator[None]:
    """Make one sentence of what a decoder raises at values nested deeper than Python's stack."""
    try:
        yield
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be {kind}. Check the file.") from None


def read_first(path: Path, size: int) -> bytes:
    """The first bytes of a file, unpacked."""
    with open_input(path) as raw:
        data = b""
        for block in unpacked_blocks(path, raw):
            data += block
            if len(data) >= size:
                break
    return data[:size]


def read_whole(path: Path, limit: int = MOST_BYTES) -> bytes:
    """A whole file, unpacked, unless it is absurdly large."""
    with open_input(path) as raw:
        parts, total = [], 0
        for block in unpacked_blocks(path, raw):
            parts.append(block)
            total += len(block)
            if total > limit:
                raise InputError(f"{path} unpacks to more than {limit >> 20:,} MiB, which no such file has.")
    return b"".join(parts)


def open_input(path: Path) -> BinaryIO:
    """The file, open for reading; an `InputError` says why it cannot be."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}). Check the path and its permissions.") from None


def unpacked_blocks(path: Path, raw: BinaryIO) -> Iterator[bytes]:
    """Blocks of the file; gzip is known by its first bytes, not by its name."""
    try:
        first = raw.read(PIECE_BYTES)
        if not first.startswith(_GZIP):
            if path.suffix == ".gz":
                raise InputError(f"{path} is called .gz but is not gzip. Unpack it or give it its right name.")
            while first:
                yield first
                first = raw.read(PIECE_BYTES)
            return
        yield from _gunzipped(path, first, raw)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from None


def _gunzipped(path: Path, packed: bytes, raw: BinaryIO) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    size, total = len(packed), 0
    while packed:
        try:
            block = stream.decompress(packed, PIECE_BYTES)
        except zlib.error:
            raise InputError(f"{path} is damaged: its gzip data cannot be unpacked. Copy it again.") from None
        total += len(block)
        if total > max(_RATIO_FROM_BYTES, _MOST_RATIO * size):
            raise InputError(f"{path} unpacks to more than {_MOST_RATIO} times its size, which no such file does.")
        if block:
            yield block
        packed = stream.unconsumed_tail
        if stream.eof:
            packed = stream.unused_data.lstrip(b"\0")
            if not packed:
                packed, size = _more(raw, size)
                packed = packed.lstrip(b"\0")
            if packed:
                stream = zlib.decompressobj(wbits=31)  # a further member
        elif not packed:
            packed, size = _more(raw, size)
            if not packed:
                raise InputError(f"{path} is cut off: its gzip data ends in the middle. Copy it again.")


def _more(raw: BinaryIO, size: int) -> tuple[bytes, int]:
    """Read on; returns the bytes, and how many were read in all."""
    packed = raw.read(PIECE_BYTES)
    return packed, size + len(packed)
