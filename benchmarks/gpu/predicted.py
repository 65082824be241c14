"""Predictions against measured steps: python -m benchmarks.gpu.predicted [--seed N] [--count 20] [--out FILE]

Draws training jobs by a seed from networks × batches × precisions × eager or compiled, predicts each with `predict
--table`, prints all predictions, and only then trains. Bar (written before the measurement): median error at most 15 %,
80 % intervals hold 75 to 90 % of the measurements.
"""

import argparse
import csv
import fcntl
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.networks import IMAGES, LENGTHS, PRECISIONS, Job

BATCHES = {
    **dict.fromkeys(IMAGES[:4], (16, 64, 256)),
    **dict.fromkeys(IMAGES[4:], (16, 64, 128)),
    "bert_base": (8, 32, 128),
    "gpt2": (2, 8, 32),
    "llama_1b": (1, 4, 8),
}
NAMES = {
    "mobilenet_v3_large": "mobilenetv3_large_100",
    "vit_b_16": "vit_base_patch16_224",
    "swin_t": "swin_tiny_patch4_window7_224",
}
_TURN_S = 5.0  # of measuring a job that is compiled
FITTED_SEEDS = (101, 20261)
"""Their jobs are those of `fitting/own_steps.csv`; others are drawn from the rest."""
MEDIAN, COVERED = 0.15, (0.75, 0.90)


def drawn(seed: int, count: int, without: Collection[Job] = ()) -> list[Job]:
    """Distinct jobs, the same ones for the same seed; none that constants were fitted on."""
    every = [
        Job(network, batch, precision, compiled)
        for network, batches in BATCHES.items()
        for batch in batches
        for precision in PRECISIONS
        for compiled in (False, True)
        if Job(network, batch, precision, compiled) not in without
    ]
    return random.Random(seed).sample(every, count)


def predictions(jobs: list[Job], gpu: str, torch_version: str, cpu: str) -> dict[Job, tuple[float, float, float]]:
    """Seconds of a step with bounds, as `predict --table` gives them; jobs without an answer are left out."""
    common = {"gpu": gpu, "mode": "train", "cpu": cpu}
    images = [
        {
            "model": NAMES.get(job.network, job.network),
            "precision": job.precision,
            "layout": "nchw",
            "torch": torch_version,
            "img_size": 224,
            "batch": job.batch,
            "compiled": job.compiled,
            "optimizer": "momentum" if job.network in IMAGES[:4] else "adamw",
            **common,
        }
        for job in jobs
        if job.network in IMAGES
    ]
    words = [
        {
            "model": job.network,
            "seqlen": LENGTHS[job.network],
            "batch": job.batch,
            "precision": job.precision,
            "attention": "flash",
            "optimizer": "adamw",
            "compiled": job.compiled,
            **common,
        }
        for job in jobs
        if job.network in LENGTHS
    ]
    found = {}
    for job, row in zip((job for job in jobs if job.network in IMAGES), _answers(images), strict=True):
        if row["predicted"]:
            found[job] = (job.batch / row["predicted"], job.batch / row["high"], job.batch / row["low"])
    for job, row in zip((job for job in jobs if job.network in LENGTHS), _answers(words), strict=True):
        if row["predicted"]:
            found[job] = (row["predicted"] / 1e3, row["low"] / 1e3, row["high"] / 1e3)
    return found


def _answers(rows: list[dict[str, object]]) -> list[dict[str, float]]:
    if not rows:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setups.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        command = [sys.executable, "-m", "stallwise", "predict", "--table", str(path), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    answers: list[dict[str, float]] = json.loads(done.stdout)["rows"]
    return answers


def cpu_model() -> str:
    """The CPU's name where a class of CPUs is known for it, else nothing."""
    from stallwise.hardware.processors import cpu_class

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    print(f"CPU: {name or 'unknown'} ({known.name if (known := cpu_class(name)) else 'class unknown'})")
    return name if known else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--gpu", default="H200")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring a job")
    parser.add_argument("--limit", type=float, default=500.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import torch

    end, version = time.monotonic() + options.limit, ".".join(torch.__version__.split(".")[:2])
    jobs = []
    for seed in itertools.takewhile(lambda one: one != options.seed, FITTED_SEEDS):
        jobs += drawn(seed, options.count, jobs)
    jobs = drawn(options.seed, options.count, jobs)
    print(f"seed {options.seed}, torch {version}")
    predicted = predictions(jobs, options.gpu, version, cpu_model())
    for job in jobs:
        if job in predicted:
            step, low, high = (1e3 * value for value in predicted[job])
            print(f"predicted  {job!s:48s} {step:8.2f} ms  ({low:.2f} to {high:.2f})", flush=True)
        else:
            print(f"not predicted  {job}", flush=True)
    ready = [job for job in jobs if job in predicted]
    rows: list[dict[str, object]] = []
    for job, found in measured(ready, options.device, options.seconds, end):
        if "step_s" not in found:
            print(f"failed     {job!s:48s} {found['error']}", flush=True)
            continue
        step, low, high = predicted[job]
        truth = float(str(found["step_s"]))
        rows.append(
            {"job": str(job), "predicted_s": step, "low_s": low, "high_s": high, "measured_s": truth}
            | {"error": step / truth - 1, "inside": low <= truth <= high}
            | {key: found[key] for key in ("host_s", "kernel_s", "kernels") if key in found}
        )
        print(
            f"measured   {job!s:48s} {truth * 1e3:8.2f} ms  predicted {step * 1e3:8.2f}  {step / truth - 1:+7.1%}"
            f"  {'inside' if low <= truth <= high else 'OUTSIDE'}"
            f"  host {1e3 * float(str(found.get('host_s', 0))):.2f}  kernels {found.get('kernels')}"
            f" {1e3 * float(str(found.get('kernel_s', 0))):.2f}",
            flush=True,
        )
        _write(options.out, options.seed, rows)
    missing = len(ready) - len(rows)
    print(f"{missing} of {len(jobs)} jobs were not measured" if missing else "every job was measured")
    if rows:
        off = [abs(float(str(row["error"]))) for row in rows]
        inside = sum(bool(row["inside"]) for row in rows) / len(rows)
        print(
            f"{len(rows)} jobs: median {statistics.median(off):.1%}, mean {statistics.mean(off):.1%}, "
            f"covered {inside:.0%}"
        )


def measured(jobs: list[Job], device: str, seconds: float, end: float) -> Iterator[tuple[Job, dict[str, object]]]:
    """Each job with what was measured, or an error: the eager ones in one process, then the compiled ones.

    Those compile at the same time, and wait at a locked file once they are warm: nothing is measured while anything
    compiles, nor two at a time.
    """
    eager, compiled = [job for job in jobs if not job.compiled], [job for job in jobs if job.compiled]
    yield from _measured_eager(eager, device, seconds, end)
    yield from _measured_compiled(compiled, device, seconds, end)


def _measured_eager(
    jobs: list[Job], device: str, seconds: float, end: float
) -> Iterator[tuple[Job, dict[str, object]]]:
    one, seen = _measuring(jobs, device, seconds, None), 0
    try:
        while seen < len(jobs) and time.monotonic() < end:
            over = not one.is_running
            for line in _lines(one)[seen:]:
                yield jobs[seen], line
                seen += 1
            if over:
                break
            time.sleep(0.2)
    finally:
        one.process.kill()
    for job in jobs[seen:]:
        yield job, {"error": one.output.read_text()[-300:] or "no time was left"}


def _measured_compiled(
    jobs: list[Job], device: str, seconds: float, end: float
) -> Iterator[tuple[Job, dict[str, object]]]:
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile(prefix="gate-") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        waiting = {job: _measuring([job], device, seconds, gate.name) for job in jobs}
        compiling = set(jobs)
        try:
            while compiling and time.monotonic() < end - _TURN_S * (len(jobs) - len(compiling)):
                time.sleep(0.2)
                compiling = {job for job in compiling if not _lines(waiting[job]) and waiting[job].is_running}
            for job in compiling:
                waiting[job].process.kill()
            print(f"compiled {len(jobs) - len(compiling)} jobs in {time.monotonic() - begin:.0f} s", flush=True)
            fcntl.flock(gate, fcntl.LOCK_UN)
            for job, one in waiting.items():
                yield job, _result(one, max(_TURN_S, end - time.monotonic()))
        finally:
            for one in waiting.values():
                one.process.kill()


@dataclass(frozen=True)
class _Measuring:
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None


def _measuring(jobs: list[Job], device: str, seconds: float, gate: str | None) -> _Measuring:
    with tempfile.NamedTemporaryFile(prefix="measured-", delete=False) as file:
        wanted = json.dumps([[job.network, job.batch, job.precision, job.compiled] for job in jobs])
        command = [sys.executable, "-m", "benchmarks.gpu.networks", "--several", wanted, "--device", device]
        command += ["--seconds", str(seconds), *(["--gate", gate] if gate else [])]
        return _Measuring(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT), Path(file.name))


def _lines(one: _Measuring) -> list[dict[str, object]]:
    """The JSON lines so far; a compiler's warnings stand between them."""
    whole = one.output.read_text().split("\n")[:-1]
    return [json.loads(line) for line in whole if line.startswith('{"')]


def _result(one: _Measuring, limit_s: float) -> dict[str, object]:
    try:
        one.process.wait(limit_s)
    except subprocess.TimeoutExpired:
        one.process.kill()
    lines = [line for line in _lines(one) if "ready" not in line]
    return lines[-1] if lines else {"error": one.output.read_text()[-300:] or "no time was left"}


def _write(path: Path | None, seed: int, rows: list[dict[str, object]]) -> None:
    if path:
        path.write_text(json.dumps({"seed": seed, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
