"""Characterising one machine: what decides training on it, measured into a machine record.

The parts (device, links, disk, decode) are measured one by one and each may be missing: a machine without a GPU has no
copies, one with a single GPU no ring. What is missing stands in `unknown` with its reason. The host is measured here,
the GPUs in a process of their own (`device`).
"""

import contextlib
import datetime as dt
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import msgspec

import stallwise.machine.probe as probe
from stallwise._version import __version__
from stallwise.errors import INSTALL_TORCH, InputError, StallwiseError
from stallwise.hardware.machine import (
    DecodeRecord,
    DeviceRecord,
    HostRecord,
    LinkRecord,
    MachineRecord,
    StorageRecord,
    encode_machine,
)
from stallwise.machine.links import LinkProbe, run_probe
from stallwise.record.node import cpu, gpus, memory_bytes
from stallwise.run.atomic import make_folder, write_atomically
from stallwise.sentences import Sentence, read_sentence
from stallwise.units import MB, MIB

_BLOCK = 4 * MIB
_READERS = 8
_FILE_BYTES = 1024 * MIB
_PIXELS = (500, 375)
"""Of an ordinary ImageNet file: about 110 kB."""
_CROP = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskMeasurement:
    """Measured storage, and the reason for each part that could not be measured."""

    records: tuple[StorageRecord, ...]
    unknown: dict[str, Sentence]


def measure_disk(folder: Path, size_bytes: int = _FILE_BYTES) -> DiskMeasurement:
    """Write a temporary file and read it cold and from memory. Half the free space at most is used."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder. Name one on the disk to be measured.", fields=("disk",))
    size = min(size_bytes, probe.disk_free_bytes(folder) // 2) // _BLOCK * _BLOCK
    if size < 16 * _BLOCK:
        return DiskMeasurement(
            records=(),
            unknown={
                "disk": Sentence(
                    "disk.no-room", f"{folder} has no room for a file of {16 * _BLOCK // MIB} MiB", bytes=16 * _BLOCK
                )
            },
        )
    try:
        with NamedTemporaryFile(dir=folder, prefix=".stallwise-") as file:
            _fill(file.fileno(), size)
            records, unknown = _read_both(file.fileno(), size, can_drop=probe.drops_page_cache())
    except OSError as error:
        return DiskMeasurement(records=(), unknown={"disk": _failed(f"{folder}: {error.strerror}")})
    return DiskMeasurement(records=tuple(records), unknown=unknown)


def _fill(descriptor: int, size: int) -> None:
    """Write random bytes, because some disks compress, and flush them to the disk."""
    block = os.urandom(_BLOCK)
    for at in range(0, size, _BLOCK):
        os.pwrite(descriptor, block, at)
    os.fsync(descriptor)


def _read_both(descriptor: int, size: int, *, can_drop: bool) -> tuple[list[StorageRecord], dict[str, Sentence]]:
    records: list[StorageRecord] = []
    unknown: dict[str, Sentence] = {}
    if can_drop:
        os.posix_fadvise(descriptor, 0, size, os.POSIX_FADV_DONTNEED)
        cold = _read(descriptor, size)
        records.append(
            StorageRecord(kind="disk", bytes_per_s=cold, readers=_READERS, note=f"{size // MB} MB, page cache dropped")
        )
    else:
        unknown["disk"] = Sentence("disk.page-cache", "the page cache of a file cannot be dropped here")
    warm = max(_read(descriptor, size) for _ in range(2))
    records.append(StorageRecord(kind="page cache", bytes_per_s=warm, readers=_READERS))
    return records, unknown


def _read(descriptor: int, size: int) -> float:
    """Read the file with `_READERS` threads, block by block; bytes/s."""

    def read_blocks(first: int) -> None:
        buffer = bytearray(_BLOCK)
        for at in range(first, size, _READERS * _BLOCK):
            os.preadv(descriptor, [buffer], at)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(read_blocks, range(0, _READERS * _BLOCK, _BLOCK)))
    return size / (time.perf_counter() - began_s)


def measure_decode(cores: int, seconds: float = 3.0) -> DecodeRecord:
    """Decode a JPEG to a cropped and flipped tensor with Pillow: in one process alone, then in one on every core."""
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
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def _decode_for(task: tuple[bytes, float]) -> float:
    """Decode (JPEG, seconds) for that long; samples/s of this process."""
    import numpy as np
    from PIL import Image

    jpeg, seconds = task
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


PARTS = ("device", "links", "disk", "decode")
_DEVICE_LIMIT_S = 180.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterizeRequest:
    """What to measure of a machine, for how long, and where the record goes."""

    out: Path
    disk: Path
    network_s: float = 8.0
    links_s: float = 30.0
    networks: tuple[str, ...] = ()
    skip: frozenset[str] = frozenset()
    disk_bytes: int = 1024 * MIB
    decode_s: float = 3.0


def characterize_machine(request: CharacterizeRequest, say: Say) -> MachineRecord:
    """Measure and write the record; a part that fails is unknown, the others are kept."""
    if request.out.is_dir():
        raise InputError(f"{request.out} is a folder. Give the name of a file.", fields=("out",))
    make_folder(request.out.parent)
    cpus, devices = cpu(), gpus()
    record = MachineRecord(
        created=dt.datetime.now(dt.UTC),
        stallwise_version=__version__,
        ranks=max(1, len(devices)),
        nodes=1,
        hosts=(
            HostRecord(
                node=0,
                cpu_model=cpus.model,
                cores=max(1, int(cpus.usable)),
                memory_bytes=memory_bytes(),
                gpus=tuple(gpu.name for gpu in devices),
            ),
        ),
        software={"python": sys.version.split()[0]},
    )
    parts = {"device": _device, "links": _links, "disk": _disk, "decode": _decode}
    for name, measure in parts.items():
        if name in request.skip:
            record = _unknown(record, name, Sentence("part.left-out", "left out on request"))
            continue
        record = measure(record, request, say)
    write_atomically(request.out, encode_machine(record))
    return record


def _unknown(record: MachineRecord, name: str, reason: Sentence) -> MachineRecord:
    return msgspec.structs.replace(record, unknown={**record.unknown, name: reason})


def _failed(reason: str) -> Sentence:
    """A measurement that was begun and came to nothing."""
    return Sentence("part.failed", reason)


def _device(record: MachineRecord, request: CharacterizeRequest, say: Say) -> MachineRecord:
    """Measure the GPUs in a process of its own: a broken driver can end the interpreter."""
    if probe.torch() is None:
        return _unknown(record, "device", Sentence("torch.install", INSTALL_TORCH))
    with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
        out = Path(folder) / "device.json"
        command = [sys.executable, "-m", "stallwise.machine.device", "--out", str(out)]
        command += ["--network-time", str(request.network_s), "--networks", ",".join(request.networks)]
        failure = _run(command, _DEVICE_LIMIT_S + 30 * request.network_s, say)
        if failure or not out.exists():
            return _unknown(record, "device", _failed(failure or "it ended without an answer"))
        device = msgspec.json.decode(out.read_bytes(), type=DeviceRecord, dec_hook=read_sentence)
    software = {**record.software, "torch": device.torch, **({"cuda": device.cuda} if device.cuda else {})}
    return msgspec.structs.replace(
        record,
        software=software,
        copies=device.copies,
        ring=device.ring,
        networks=device.networks,
        unknown={**record.unknown, **device.unknown},
    )


def _run(command: list[str], limit_s: float, say: Say) -> str:
    """Run a process for at most `limit_s` seconds, passing its stderr on to `say`; the reason for a failure, or ""."""
    last = ""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None  # noqa: S101 - a pipe, see above
        watch = threading.Timer(limit_s, process.kill)
        watch.start()
        try:
            for line in process.stderr:
                last = line.strip() or last
                say(last)
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            watch.cancel()
    return "" if process.returncode == 0 else f"it failed: {last[:200]}"


def _links(record: MachineRecord, request: CharacterizeRequest, say: Say) -> MachineRecord:
    """Time all-reduces over sizes among the GPUs of this machine, as `stallwise probe` does."""
    gpus = len(record.hosts[0].gpus)
    if gpus < 2:
        alone = Sentence("gpu.alone", "an all-reduce takes at least two GPUs")
        return _unknown(record, "links", alone if gpus else Sentence("gpu.none", "there is no GPU"))
    say(f"all-reduce among {gpus} GPUs")
    with tempfile.TemporaryDirectory(prefix="stallwise-") as folder:
        probe_request = LinkProbe(
            torchrun=("--standalone", "--nproc-per-node", str(gpus)),
            out=Path(folder) / "links.json",
            backend="nccl",
            max_s=request.links_s,
            max_bytes=256 * MIB,
        )
        try:
            machine = run_probe(probe_request, lambda progress: say(progress.doing))
        except StallwiseError as error:
            return _unknown(record, "links", _failed(str(error)))
    links: tuple[LinkRecord, ...] = () if machine is None else machine.links
    return msgspec.structs.replace(record, links=links)


def _disk(record: MachineRecord, request: CharacterizeRequest, say: Say) -> MachineRecord:
    say(f"reading from {request.disk}")
    disk = measure_disk(request.disk, request.disk_bytes)
    return msgspec.structs.replace(
        record, storage=(*record.storage, *disk.records), unknown={**record.unknown, **disk.unknown}
    )


def _decode(record: MachineRecord, request: CharacterizeRequest, say: Say) -> MachineRecord:
    try:
        import PIL  # noqa: F401 - only whether it imports
    except ImportError:
        return _unknown(
            record, "decode", Sentence("pillow.install", "Pillow is not installed here: pip install pillow")
        )
    cores = record.hosts[0].cores or 1
    say(f"decoding on {cores} cores")
    return msgspec.structs.replace(record, decode=measure_decode(cores, request.decode_s))
