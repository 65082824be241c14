"""Measures the known job bare and profiled, in turns."""

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.figures import Figures
from tests.record.jobs import plain_ranks

JOB = Path(__file__).with_name("job.py")
PARTS = ("compute", "copy", "interconnect", "network", "prep", "fetch")


@dataclass(frozen=True)
class Setup:
    """The job with some options on some ranks; 0 ranks is a plain process."""

    ranks: int
    options: tuple[str, ...]

    def bare_s(self, steps: int = 60) -> float:
        """Mean step of the uninstrumented script, by its own clock."""
        command = [str(JOB), *self.options, "--steps", str(steps)]
        if self.ranks:
            said = plain_ranks(self.ranks, *command)
        else:
            bare = [sys.executable, *command]
            said = subprocess.run(bare, capture_output=True, text=True, check=True, timeout=250).stdout
        return float(json.loads(said.strip().splitlines()[-1])["step_s"])

    def profiled(self, folder: Path, max_time_s: float = 9) -> dict[str, Any]:
        """What `stallwise profile --json` says of the same script."""
        ranks = ["--nproc-per-node", str(self.ranks)] if self.ranks else []
        options = ["--json", "--no-cold", "--max-time", f"{max_time_s}s", "-o", str(folder), *ranks]
        command = [sys.executable, "-m", "stallwise", "profile", *options, str(JOB), *self.options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@dataclass(frozen=True)
class Recovered:
    """An injection: how much it slows the bare script, and what the two profiles say it added to each part."""

    truth_s: float
    step_s: float
    added_s: dict[str, float]
    noise_s: dict[str, float]  # half-width of the difference

    def judge(self, figures: Figures, name: str, part: str, ignored: Sequence[str] = ()) -> None:
        """The injected part must be found within 10 % or 2 % of the step, the others unchanged within 3 %."""
        figures.judge(f"{name}: {part}", self.added_s[part], self.truth_s, rel=0.10, abs=0.02 * self.step_s)
        for other, added_s in self.added_s.items():
            if other not in (part, *ignored):
                figures.judge(f"{name}: {other}, nothing injected", added_s, 0.0, abs=0.03 * self.step_s)

    def covers_zero(self, part: str) -> bool:
        """Whether a part with nothing injected is found unchanged within its interval."""
        return abs(self.added_s[part]) <= self.noise_s[part]


def recover(base: Setup, injected: dict[str, Setup], folder: Path) -> dict[str, Recovered]:
    """Bare runs with each injection between two without, so that no drift counts; then one profile of each."""
    first_s = base.bare_s()
    with_s = {name: setup.bare_s() for name, setup in injected.items()}
    without_s = statistics.mean((first_s, base.bare_s()))
    setups = {"base": base, **injected}
    profiles = {name: setup.profiled(folder / name.replace(" ", "-")) for name, setup in setups.items()}
    return {name: compare(profiles["base"], profiles[name], with_s[name] - without_s) for name in injected}


def compare(before: dict[str, Any], after: dict[str, Any], truth_s: float) -> Recovered:
    """What lies between two profiles."""
    added, noise = {}, {}
    for part in PARTS:
        low, high = before["split"][part], after["split"][part]
        if low is not None and high is not None:
            added[part] = high["s"] - low["s"]
            # Two profiles are two independent measurements: their errors add in quadrature.
            noise[part] = math.hypot(high["high_s"] - high["low_s"], low["high_s"] - low["low_s"]) / 2
    return Recovered(truth_s, after["step_s"], added, noise)
