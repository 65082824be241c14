"""A JPEG-loading ResNet-50 that starts with 2 workers: what `stallwise tune` finds against exhaustive search.

python -m benchmarks.gpu.tune [seconds for each number of workers, 30]

Bars (written before the measurement): the tuned number of workers reaches at least 95 % of the best of 1, 2, 4, 8, 12,
16, in at most a quarter of the time that measuring all six takes; predicted and measured gain differ by 15 points at
most. A number that is not among the six is measured as well, after the clock has stopped.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = str(Path(__file__).with_name("train.py"))
WORKERS = (1, 2, 4, 8, 12, 16)
MODEL = "resnet50"


def bare(workers: int, seconds: float) -> float:
    """Samples per second of the uninstrumented script."""
    options = ["--model", MODEL, "--workers", str(workers), "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, JOB, *options], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"])


def tuned(max_s: float) -> dict:
    """What `stallwise tune` says of the job with 2 workers."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--json", "--max-time", str(max_s), "-o", str(Path(folder) / "run")]
        command = [sys.executable, "-m", "stallwise", "tune", *options, JOB, "--model", MODEL, "--workers", "2"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print both, and whether the bars hold."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    bare(2, 1)  # makes the images and fills the page cache, for both alike
    began = time.perf_counter()
    speeds = {}
    for workers in WORKERS:
        speeds[workers] = bare(workers, seconds)
        print(f"workers={workers}: {speeds[workers]:.0f} samples/s", flush=True)
    exhaustive_s = time.perf_counter() - began
    began = time.perf_counter()
    found = tuned(exhaustive_s / 4)
    tuned_s = time.perf_counter() - began
    workers = found["kept"].get("num_workers", 2)
    if workers not in speeds:
        speeds[workers] = bare(workers, seconds)
    best = max(WORKERS, key=lambda number: speeds[number])
    for attempt in found["attempts"]:
        print(f"tried {attempt['settings']}: predicted {attempt['predicted_gain']:.1%}, measured {attempt['gain']:.1%}")
    for note in found["notes"]:
        print(f"note: {note}")
    reached, spent = speeds[workers] / speeds[best], tuned_s / exhaustive_s
    print(f"best: {best} workers, {speeds[best]:.0f} samples/s, found in {exhaustive_s:.0f} s")
    print(f"tuned: {found['kept'] or 'nothing'}, {speeds[workers]:.0f} samples/s, found in {tuned_s:.0f} s")
    print(f"reached {reached:.1%} of the best (bar 95 %), in {spent:.1%} of the time (bar 25 %)")
    if found["gain"] is not None:
        apart = abs(found["predicted_gain"] - found["gain"]) * 100
        print(
            f"gain predicted {found['predicted_gain']:.1%}, measured {found['gain']:.1%}: {apart:.1f} points (bar 15)"
        )


if __name__ == "__main__":
    main()
