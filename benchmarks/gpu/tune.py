"""A JPEG-loading ResNet-50 that starts with 2 workers: what `stallwise tune` finds against exhaustive search.

python -m benchmarks.gpu.tune            one GPU and 16 cores: about 8 minutes
python -m benchmarks.gpu.tune --quick    a small network on processors, only to see that all of it runs

The search by hand launches the bare script with each number of workers, 1, 2, 4 … 16, and reads its speed once that is
stable: after warm-up, when the means of windows of 4 s have a standard error of 1 % at most (at least 5 windows, at
most 6). Then `stallwise tune` gets the same script with 2 workers, and a quarter of the time that took. The speed of
what it kept is read in the same way by the bare script, after both clocks have stopped.

Bars (written before the measurement): at least 95 % of the best speed, in at most 25 % of the time; predicted and
measured gain differ by 15 points at most.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = ("-m", "benchmarks.gpu.tuned")
WORKERS = (1, 2, 4, 6, 8, 10, 12, 14, 16)
QUICK_WORKERS = (1, 2, 3)
STARTS_WITH = 2
REACHED_BAR, TIME_BAR, POINTS_BAR = 0.95, 0.25, 15.0


def bare(job: list[str], workers: int) -> float:
    """Samples per second of the uninstrumented script."""
    command = [sys.executable, *job, "--workers", str(workers), "--until-stable"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"])


def exhaustive(job: list[str], counts: tuple[int, ...]) -> tuple[dict[int, float], float]:
    """Speed by number of workers, and the seconds all of them took."""
    began = time.perf_counter()
    speeds = {}
    for count in counts:
        speeds[count] = bare(job, count)
        print(f"by hand: {count} workers, {speeds[count]:.0f} samples/s", file=sys.stderr, flush=True)
    return speeds, time.perf_counter() - began


def tuned(job: list[str], max_s: float) -> tuple[dict, float]:
    """What `stallwise tune` says of the job, and the seconds it took."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = ["--json", "--max-time", f"{max_s:.0f}", "-o", str(Path(folder) / "run")]
        command = [sys.executable, "-m", "stallwise", "tune", *options, *job, "--workers", str(STARTS_WITH)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def compare(job: list[str], counts: tuple[int, ...], *, least_s: float) -> dict:
    """Both ways, as one document."""
    # Makes the images and fills the page cache, for both alike.
    subprocess.run([sys.executable, *job, "--prepare"], check=True)
    speeds, by_hand_s = exhaustive(job, counts)
    found, tune_s = tuned(job, max(least_s, TIME_BAR * by_hand_s))
    count = found["kept"].get("num_workers", STARTS_WITH)
    reached = speeds[count] if count in speeds else bare(job, count)
    best = max(counts, key=lambda one: speeds[one])
    apart = None if found["gain"] is None else 100 * abs(found["predicted_gain"] - found["gain"])
    return {
        "by_hand": speeds,
        "by_hand_s": by_hand_s,
        "best_workers": best,
        "kept": found["kept"],
        "tuned_workers": count,
        "tuned_samples_per_s": reached,
        "tune_s": tune_s,
        "reached": reached / speeds[best],
        "part_of_time": tune_s / by_hand_s,
        "points_apart": apart,
        "worst_points_apart": max(
            (100 * abs(one["predicted_gain"] - one["gain"]) for one in found["attempts"]), default=None
        ),
        "tune": found,
    }


def show(found: dict) -> None:
    """A small table."""
    speeds, best = found["by_hand"], found["best_workers"]
    print("workers     " + "".join(f"{count:>8}" for count in speeds))
    print("samples/s   " + "".join(f"{speed:>8.0f}" for speed in speeds.values()))
    for one in found["tune"]["attempts"]:
        words = " ".join(f"{name}={value}" for name, value in one["settings"].items())
        kept = ", kept" if one["kept"] else ""
        print(f"tried {words}: {one['predicted_gain']:.0%} of the step predicted, {one['gain']:.0%} measured{kept}")
    for note in found["tune"]["notes"]:
        print(f"note: {note['text']}")
    print(f"by hand     {best} workers, {speeds[best]:.0f} samples/s, found in {found['by_hand_s']:.0f} s")
    speed = found["tuned_samples_per_s"]
    print(f"tuned       {found['kept'] or 'nothing'}, {speed:.0f} samples/s, found in {found['tune_s']:.0f} s")
    print(f"speed       {found['reached']:.1%} of the best ({_said(found['reached'] >= REACHED_BAR)} 95 %)")
    print(f"time        {found['part_of_time']:.1%} of by hand ({_said(found['part_of_time'] <= TIME_BAR)} 25 %)")
    if found["points_apart"] is not None:
        apart = found["points_apart"]
        print(f"prediction  {apart:.0f} points from the measured gain ({_said(apart <= POINTS_BAR)} 15)")


def _said(holds: bool) -> str:
    return "holds the bar of" if holds else "MISSES the bar of"


def main() -> None:
    """Print the table; with OUT set, write the document there as well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small network on processors, three numbers of workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        job = [*JOB, "--data", data, *(["--small"] if options.quick else [])]
        # Three short launches by hand are over before one profile is: then a quarter of them is no time at all.
        found = compare(job, QUICK_WORKERS if options.quick else WORKERS, least_s=60.0 if options.quick else 0.0)
    show(found)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "tune.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
