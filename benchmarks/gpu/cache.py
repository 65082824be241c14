"""A page cache too small for the data: throughput predicted from one profile, then measured.

python -m benchmarks.gpu.cache [part …]        (root, cgroup v2 with the memory and io controllers)

Raw images of 448 × 448 pixels are read whole and cropped; storage is held to a rate that is slower than the GPU. One
profile without a memory limit gives what preparation (P), device (G), cache (C) and storage (F) can do. Then the bare
script runs in a control group whose page cache holds a part of the data, a new random order every epoch. Predicted:
min(P, G, 1/(h/C + (1-h)/F)), with the hit rate h of a cache under shuffled epochs (`model.cache`). F is the speed of
the profile's cold phase, as DS-Analyzer takes it: there storage is what binds.

Bar (written before the measurement): every cell within 10 %. The first run (25, 50 and 75 %) used random replacement,
which the published page-cache figures follow; it missed (+7, +19, +43 %) and its misses lay near exact LRU instead
(+1, -1, -7 %). LRU was then fixed and other parts measured (+6, +14 %). Those runs held memory by `memory.high`, which
also puts readers to sleep, and set it between epochs only; now it is a hard limit (`memory.max`) that follows what
the processes themselves need, so that the cached files get what they are meant to. What was really read from storage
is printed too. LRU is judged.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GROUP = Path("/sys/fs/cgroup/stallwise-cache")
FILES = 6000
SIDE = 448
STORAGE_BYTES_PER_S = 500_000_000
WORKERS = 12
CACHED = (0.4, 0.65, 0.85)
SETTLING, MEASURED = 3, 4
JOB = str(Path(__file__).with_name("raw_images.py"))


def write_files(folder: Path) -> int:
    """The data set; its size in bytes is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(FILES):
        path = folder / f"{number:06d}.raw"
        if not path.exists():
            path.write_bytes(generator.bytes(SIDE * SIDE * 3))
    os.sync()
    return FILES * SIDE * SIDE * 3


def device_of(folder: Path) -> str:
    """major:minor of the disk it lies on."""
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


class Group:
    """The control group: its limits, and a command inside it."""

    def __init__(self, device: str) -> None:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "io.max").write_text(f"{device} rbps={STORAGE_BYTES_PER_S}")
        self.limit(None)

    def limit(self, size_bytes: int | None) -> None:
        """What may be in memory."""
        (GROUP / "memory.max").write_text("max" if size_bytes is None else str(size_bytes))

    def other_bytes(self) -> int:
        """Memory in use that is not cached files."""
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int((GROUP / "memory.current").read_text()) - int(stat["file"]) + int(stat["shmem"])

    def file_bytes(self) -> int:
        """Cached files."""
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int(stat["file"]) - int(stat["shmem"])

    def read_bytes(self) -> int:
        """Bytes that came from storage so far."""
        counts = re.findall(r"rbytes=(\d+)", (GROUP / "io.stat").read_text())
        return sum(int(count) for count in counts)

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Run inside."""
        inside = f'echo 0 > {GROUP}/cgroup.procs && exec "$@"'
        return subprocess.Popen(["bash", "-c", inside, "bash", *command], stdout=subprocess.PIPE, text=True)


def profiled(group: Group, data: Path, folder: Path) -> dict[str, float]:
    """P, G, C and F in samples per second."""
    options = ["profile", "--json", "--max-time", "8s", "-o", str(folder)]
    job = [JOB, "--data", str(data), "--workers", str(WORKERS)]
    with group.start(sys.executable, "-m", "stallwise", *options, *job) as running:
        assert running.stdout is not None
        found = json.loads(running.stdout.read())
    print(json.dumps(found["rates"]), json.dumps(found["split"]), f"cold step {found['cold_step_s']}", flush=True)
    rates = {name: rate["samples_per_s"] for name, rate in found["rates"].items() if rate is not None}
    return rates | {"F": found["samples_per_s"] * found["step_s"] / found["cold_step_s"]}


@dataclass(frozen=True)
class Measured:
    """A cell: speed, what was cached, what was read from storage."""

    samples_per_s: float
    held: float
    missed: float


def measured(group: Group, data: Path, size_bytes: int, cached: float) -> Measured:
    """Over the epochs after the first, while the limit follows what the processes need."""
    group.limit(None)
    drop(data)
    epochs = str(SETTLING + MEASURED)
    job = [sys.executable, JOB, "--data", str(data), "--workers", str(WORKERS), "--epochs", epochs]
    held: list[float] = []
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.1):
            group.limit(group.other_bytes() + int(cached * size_bytes))
            held.append(group.file_bytes() / size_bytes)

    holder = threading.Thread(target=hold)
    with group.start(*job) as running:
        assert running.stdout is not None
        speeds, reads, seen = [], [], []
        for line in running.stdout:
            speeds.append(json.loads(line)["samples_per_s"])
            reads.append(group.read_bytes())
            seen.append(len(held))
            if len(speeds) == 1:
                holder.start()
    over.set()
    holder.join()
    missed = (reads[-1] - reads[SETTLING - 1]) / MEASURED / size_bytes
    while_measured = held[seen[SETTLING - 1] :]
    return Measured(
        MEASURED / sum(1 / s for s in speeds[-MEASURED:]), sum(while_measured) / len(while_measured), missed
    )


def drop(data: Path) -> None:
    """Take the data out of the page cache."""
    for path in data.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Print predicted and measured at each size of the cache."""
    from stallwise.model.data.cache import lru_miss, page_cache_miss
    from stallwise.model.data.datapath import speed
    from validation.formulas import fetch_rate

    data = Path("build/raw-images").absolute()
    size_bytes = write_files(data)
    group = Group(device_of(data))
    with tempfile.TemporaryDirectory() as folder:
        rates = profiled(group, data, Path(folder) / "run")

    def said(miss: float) -> float:
        # A cache too fast to leave a trace has no rate C.
        return speed(fetch_rate(1 - miss, rates.get("C", 1e9), rates["F"]), rates["P"], rates["G"])

    for cached in [float(part) for part in sys.argv[1:]] or CACHED:
        lru, random_replacement = said(lru_miss(cached)), said(page_cache_miss(cached))
        cell = measured(group, data, size_bytes, cached)
        real = cell.samples_per_s
        print(
            f"{cached:.0%} of {size_bytes / 1e9:.1f} GB (held: {cell.held:.0%}, missed {cell.missed:.1%} against "
            f"{lru_miss(cached):.1%} by LRU): predicted {lru:.0f}, measured {real:.0f} samples/s, "
            f"{lru / real - 1:+.1%}; by random replacement {random_replacement / real - 1:+.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
