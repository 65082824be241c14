"""The loop closes: a training that waits for a far bucket is profiled, its settings tuned, and the gain checked.

python examples/close_the_loop/run.py

The store waits 100 ms before every answer. That is the injected problem; by hand it is removed by a store that does not
wait. What the tuned job reaches of that is the last number.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
DELAY_S = 0.1
STEPS = 25


def make_images(folder: Path, count: int = 800, side: int = 96) -> Path:
    """Small JPEGs of smooth random colours, and a file with their names."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    names = [f"{number:05d}-{number % 10}.jpg" for number in range(count)]
    for name in names:
        if not (folder / name).exists():
            coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
            coarse.resize((side, side), Image.Resampling.BICUBIC).save(folder / name, quality=85)
    (folder / "names.txt").write_text("\n".join(names))
    return folder / "names.txt"


@contextlib.contextmanager
def store(folder: Path, delay_s: float) -> Iterator[str]:
    """The address of a store over `folder`."""
    command = [sys.executable, str(HERE / "store.py"), str(folder), "--delay", str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - a pipe
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def tune(job: list[str], seconds: float, run: Path) -> dict:
    """What `stallwise tune` finds."""
    command = [sys.executable, "-m", "stallwise", "tune", "--json", "--max-time", str(seconds), "-o", str(run), *job]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def speed(job: list[str], *more: str) -> float:
    """Samples per second of the bare script."""
    command = [sys.executable, *job, "--steps", str(STEPS), *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout.split()[-2])


def main() -> None:
    """Print the numbers, one per line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/close-the-loop"))
    parser.add_argument("--max-time", type=float, default=45.0, help="seconds for the tuning")
    parser.add_argument("--rounds", type=int, default=1, help="of the check with the bare script")
    options = parser.parse_args()
    names = make_images(options.data)
    script = str(HERE / "train.py")
    with store(options.data, DELAY_S) as far, store(options.data, 0.0) as near, tempfile.TemporaryDirectory() as runs:
        job, by_hand = ([script, "--url", url, "--names", str(names)] for url in (far, near))
        found = tune(job, options.max_time, Path(runs) / "run")
        flags = ["--lookahead"] * bool(found["kept"].get("lookahead"))
        if "num_workers" in found["kept"]:
            flags += ["--workers", str(found["kept"]["num_workers"])]
        rounds = [(speed(job, *flags), speed(by_hand)) for _ in range(options.rounds)]
    after, without = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"binds              {found['binds']}")
    print(f"kept               {found['kept'] or 'nothing'}")
    if found["gain"] is not None:
        print(f"gain               {found['predicted_gain']:.0%} of the step predicted, {found['gain']:.0%} measured")
    for line in found["patch"]:
        print(f"to paste           {line}")
    print(f"before             {found['samples_per_s']:.0f} samples/s, profiled")
    print(f"tuned              {after:.0f} samples/s")
    print(f"problem removed    {without:.0f} samples/s")
    print(f"reached            {after / without:.0%} of removing the problem by hand")


if __name__ == "__main__":
    main()
