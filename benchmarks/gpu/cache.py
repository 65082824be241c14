"""A page cache too small for the data: throughput predicted from one profile, then measured.

python -m benchmarks.gpu.cache [part …]        (root, cgroup v2 with the memory and io controllers)

Raw images of 448 × 448 pixels are read whole and cropped; storage is held to a rate that is slower than the GPU. One
profile without a memory limit gives what preparation (P), device (G), cache (C) and storage (F) can do. Then the bare
script runs in a control group whose page cache holds a part of the data, a new random order every epoch. Predicted:
min(P, G, 1/(h/C + (1-h)/F)), with the hit rate h of a cache under shuffled epochs (`model.cache`). F is the speed of
the profile's cold phase, as DS-Analyzer takes it: there storage is what binds.

Bar (written before the measurement): every cell within 10 %. The first run (25, 50 and 75 %) used random replacement,
which the published page-cache figures follow; it missed (+7, +19, +43 %) and its misses lay near exact LRU instead
(+1, -1, -7 %). LRU was then fixed and other parts measured. Both are printed; LRU is judged.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

GROUP = Path("/sys/fs/cgroup/stallwise-cache")
FILES = 6000
SIDE = 448
STORAGE_BYTES_PER_S = 500_000_000
WORKERS = 12
CACHED = (0.4, 0.6, 0.85)
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
        (GROUP / "memory.high").write_text("max" if size_bytes is None else str(size_bytes))

    def other_bytes(self) -> int:
        """Memory in use that is not cached files."""
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int((GROUP / "memory.current").read_text()) - int(stat["file"]) + int(stat["shmem"])

    def file_bytes(self) -> int:
        """Cached files."""
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return int(stat["file"]) - int(stat["shmem"])

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Run inside."""
        inside = f'echo 0 > {GROUP}/cgroup.procs && exec "$@"'
        return subprocess.Popen(["bash", "-c", inside, "bash", *command], stdout=subprocess.PIPE, text=True)


def profiled(group: Group, data: Path, folder: Path) -> dict[str, float]:
    """P, G, C and F in samples per second."""
    options = ["profile", "--json", "--max-time", "8", "-o", str(folder)]
    job = [JOB, "--data", str(data), "--workers", str(WORKERS)]
    with group.start(sys.executable, "-m", "stallwise", *options, *job) as running:
        assert running.stdout is not None
        found = json.loads(running.stdout.read())
    print(json.dumps(found["rates"]), json.dumps(found["split"]), f"cold step {found['cold_step_s']}", flush=True)
    rates = {name: rate["samples_per_s"] for name, rate in found["rates"].items() if rate is not None}
    return rates | {"F": found["samples_per_s"] * found["step_s"] / found["cold_step_s"]}


def measured(group: Group, data: Path, size_bytes: int, cached: float) -> tuple[float, float]:
    """Samples per second and the part of the data in the page cache, over two epochs after three."""
    group.limit(None)
    drop(data)
    with group.start(sys.executable, JOB, "--data", str(data), "--workers", str(WORKERS), "--epochs", "5") as running:
        assert running.stdout is not None
        speeds, held = [], []
        for line in running.stdout:
            speeds.append(json.loads(line)["samples_per_s"])
            group.limit(group.other_bytes() + int(cached * size_bytes))
            time.sleep(0.2)
            held.append(group.file_bytes() / size_bytes)
    return 2 / sum(1 / speed for speed in speeds[-2:]), sum(held[-2:]) / 2


def drop(data: Path) -> None:
    """Take the data out of the page cache."""
    for path in data.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Print predicted and measured at each size of the cache."""
    from stallwise.model.cache import fetch_rate, lru_miss, page_cache_miss
    from stallwise.model.datapath import speed

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
        real, held = measured(group, data, size_bytes, cached)
        print(
            f"{cached:.0%} of {size_bytes / 1e9:.1f} GB (held: {held:.0%}): predicted {lru:.0f}, measured {real:.0f} "
            f"samples/s, {lru / real - 1:+.1%}; by random replacement {random_replacement / real - 1:+.1%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
