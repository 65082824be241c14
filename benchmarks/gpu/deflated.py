"""A real GPU job with fewer cores: does its step follow the curve that its run record tells?

    python -m benchmarks.gpu.deflated [MODEL] [WORKERS]       one GPU, about five minutes

The job (`train.py`) decodes photographs and trains in bf16. It is profiled once; then it runs with fewer and fewer
cores, around the knee of the record: under a CPU quota (period 10 ms) where control groups may be written, otherwise
bound to so many whole cores. Bar (written before the measurement): each step within 10 % of the predicted one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stallwise.analysis.analysis import open_run
from stallwise.deflate import act
from stallwise.deflate.cgroups import group_of
from stallwise.deflate.response import response_of
from stallwise.errors import InputError
from stallwise.model.deflation import DeflationResponse, ResourceFractions

JOB = Path(__file__).with_name("train.py")
LEVELS = (2.0, 1.4, 1.0, 0.7, 0.45)
"""Cores left, as multiples of the knee."""
WITHIN = 0.10
SECONDS, PROFILE_S = 15, 40


def profiled(folder: Path, words: list[str]) -> DeflationResponse:
    """The job's run record, and what it does with less."""
    options = ("--no-cold", "--max-time", str(PROFILE_S), "-o", str(folder))
    subprocess.run([sys.executable, "-m", "stallwise", "profile", *options, *words], check=True, capture_output=True)
    return response_of(open_run(folder))


def by_quota() -> bool:
    """Whether control groups may be written here."""
    try:
        group_of(os.getpid(), "cpu")
    except (InputError, OSError):
        return False
    return os.geteuid() == 0


def step_s(words: list[str], cores: float, samples: int, *, quota: bool) -> float:
    """Of the job with so many cores from its start."""
    line = [sys.executable, *words, "--seconds", str(SECONDS)]
    if not quota:
        line = ["taskset", "-c", f"0-{round(cores) - 1}", *line]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as job:
        if quota:
            time.sleep(0.2)
            act.deflate(str(job.pid), act.DeflationRequest(cpu=act.Amount(amount=cores), cooperative=False, look_s=0.1))
        out = job.communicate()[0]
    if job.returncode:
        raise SystemExit(f"The job ended with {job.returncode}.")
    return samples / float(json.loads(out.splitlines()[-1])["samples_per_s"])


def main(model: str = "vit_b_16", workers: str = "14") -> int:
    """Print a line per level; 1 where one misses."""
    words = [str(JOB), "--model", model, "--workers", workers]
    folder = Path(tempfile.mkdtemp()) / "run"
    response, quota = profiled(folder, words), by_quota()
    whole = response.at(ResourceFractions())
    knee = (response.cpu_s + response.process_s) / whole.step_s
    print(
        f"{model}, {workers} workers, {response.cores:g} cores: step {whole.step_s * 1e3:.1f} ms (measured "
        f"{response.job.step.s * 1e3:.1f}), {response.cpu_s * 1e3:.0f} ms of cores, knee {knee:.2f} cores; "
        f"{'quota' if quota else 'whole cores'}",
        flush=True,
    )
    missed = False
    for level in LEVELS:
        cores = min(response.cores, level * knee)
        cores = cores if quota else max(1, round(cores))
        said_s = response.at(ResourceFractions(cpu=cores / response.cores)).step_s
        seen_s = step_s(words, cores, response.job.samples or 1, quota=quota)
        missed |= abs(seen_s / said_s - 1) > WITHIN
        print(
            f"{level:g} × knee ({cores:.2f} cores): {seen_s * 1e3:.1f} ms, said {said_s * 1e3:.1f} "
            f"({seen_s / said_s - 1:+.1%})",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
