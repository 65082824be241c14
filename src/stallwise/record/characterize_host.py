"""What the host of a machine can do: reading from disk and from memory, decoding images on its cores."""

import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from stallwise.errors import InputError
from stallwise.hardware.machine import DecodeRecord, StorageRecord
from stallwise.units import MB, MIB

_BLOCK = 4 * MIB
_READERS = 8
_FILE_BYTES = 1024 * MIB
_PIXELS = (500, 375)
"""Of an ordinary ImageNet file: about 110 kB."""
_CROP = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What was found of the disk, and why not what was not."""

    records: tuple[StorageRecord, ...]
    unknown: dict[str, str]


def measure_disk(folder: Path, size_bytes: int = _FILE_BYTES) -> Disk:
    """Read a file of our own, cold and from memory; it is removed again. Half the free space at most is used."""
    from stallwise.record.probe import disk_free_bytes, drops_page_cache

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Name one on the disk to be measured with --disk.")
    size = min(size_bytes, disk_free_bytes(folder) // 2) // _BLOCK * _BLOCK
    if size < 16 * _BLOCK:
        return Disk(records=(), unknown={"disk": f"{folder} has no room for a file of {16 * _BLOCK // MIB} MiB"})
    try:
        with NamedTemporaryFile(dir=folder, prefix=".stallwise-") as file:
            _fill(file.fileno(), size)
            records, unknown = _read_both(file.fileno(), size, can_drop=drops_page_cache())
    except OSError as error:
        return Disk(records=(), unknown={"disk": f"{folder}: {error.strerror}"})
    return Disk(records=tuple(records), unknown=unknown)


def _fill(descriptor: int, size: int) -> None:
    """Random bytes, because some disks compress; on the disk, not in a buffer."""
    block = os.urandom(_BLOCK)
    for at in range(0, size, _BLOCK):
        os.pwrite(descriptor, block, at)
    os.fsync(descriptor)


def _read_both(descriptor: int, size: int, *, can_drop: bool) -> tuple[list[StorageRecord], dict[str, str]]:
    records: list[StorageRecord] = []
    unknown: dict[str, str] = {}
    if can_drop:
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
        cold = _read(descriptor, size)
        records.append(
            StorageRecord(kind="disk", bytes_per_s=cold, readers=_READERS, note=f"{size // MB} MB, page cache dropped")
        )
    else:
        unknown["disk"] = "the page cache of a file cannot be dropped here"
    warm = max(_read(descriptor, size) for _ in range(2))
    records.append(StorageRecord(kind="page cache", bytes_per_s=warm, readers=_READERS))
    return records, unknown


def _read(descriptor: int, size: int) -> float:
    """Bytes/s of a few threads that read one block after the other."""

    def some(first: int) -> None:
        buffer = bytearray(_BLOCK)
        for at in range(first, size, _READERS * _BLOCK):
            os.preadv(descriptor, [buffer], at)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(some, range(0, _READERS * _BLOCK, _BLOCK)))
    return size / (time.perf_counter() - began_s)


def measure_decode(cores: int, seconds: float = 3.0) -> DecodeRecord:
    """JPEG to a cropped and flipped tensor with Pillow: one process alone, then one on every core."""
    jpeg = make_jpeg()
    alone = _decode_for((jpeg, seconds))
    with _pool(cores) as pool:
        rates = pool.map(_decode_for, [(jpeg, seconds)] * cores)
    return DecodeRecord(
        library=_library(),
        pixels=_PIXELS,
        file_bytes=len(jpeg),
        one_core_samples_per_s=alone,
        per_core_samples_per_s=sum(rates) / cores,
        cores=cores,
    )


@contextlib.contextmanager
def _pool(cores: int) -> Iterator["multiprocessing.pool.Pool"]:
    # Processes that are forked would share whatever threads this one has started.
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(_library_of, range(cores))  # imports are not decoding
        yield pool


def _library_of(_: int) -> str:
    return _library()


def _library() -> str:
    import PIL

    return f"Pillow {PIL.__version__}"


def make_jpeg() -> bytes:
    """A picture with structure and noise, about as hard to decode as a photograph."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize(_PIXELS, Image.Resampling.BICUBIC), dtype=np.int16)
    noisy = np.clip(picture + rng.normal(0, 14, picture.shape), 0, 255).astype(np.uint8)
    held = io.BytesIO()
    Image.fromarray(noisy).save(held, "JPEG", quality=92)
    return held.getvalue()


def _decode_for(asked: tuple[bytes, float]) -> float:
    """Samples/s of this process."""
    import numpy as np
    from PIL import Image

    jpeg, seconds = asked
    rng = np.random.default_rng(os.getpid())
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < seconds:
        with Image.open(io.BytesIO(jpeg)) as image:
            wide = int(rng.integers(_CROP, _PIXELS[1]))
            left, top = int(rng.integers(0, _PIXELS[0] - wide)), int(rng.integers(0, _PIXELS[1] - wide + 1))
            box = (left, top, left + wide, top + wide)
            small = image.convert("RGB").resize((_CROP, _CROP), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(small, dtype=np.float32).transpose(2, 0, 1)[:, :, :: 1 - 2 * (count % 2)]
        np.ascontiguousarray(pixels / 255.0)
        count += 1
    return count / (time.perf_counter() - began_s)
