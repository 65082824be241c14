"""The Slurm controller: one decision for 1,000 waiting jobs on 1,000 nodes, from Slurm's JSON to what is to be done.

The JSON is made after answers recorded from Slurm 22.05 (`tests/slurm/recorded.py`), at the size asked for.
"""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Result, Times
from stallwise.slurm.controller import Controller, ControllerSettings
from stallwise.slurm.state import ControllerState, DecisionLog
from tests.slurm.recorded import Recorded

NODES, JOBS, RUNNING = 1000, 1000, 400
PASS_S = 1.0
POLICIES = ("patient", "dally", "2d-las", "las")
ROUNDS = 5


def measure() -> list[Result]:
    """A pass for each policy; the first look, which writes every job down, and those that follow."""
    rounds = 2 if os.environ.get("STALLWISE_BENCH_QUICK") == "1" else ROUNDS
    return [_policy(name, rounds) for name in POLICIES]


def _policy(name: str, rounds: int) -> Result:
    first, later = passes(name, rounds)
    return Result(
        claim=f"Slurm, {name}: {JOBS:,} waiting and {RUNNING} running jobs on {NODES:,} nodes, a pass ≤ {PASS_S:g} s",
        measured=f"{later}; the first {first * 1e3:.0f} ms",
        held=later.median_s <= PASS_S and first <= PASS_S,
    )


def passes(name: str, rounds: int) -> tuple[float, Times]:
    """Seconds of the first pass and of the following ones: reading JSON, reconciling, deciding, writing down.

    The cluster is nearly full, so a pass looks at every job in many places. Slurm's own time is not in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        slurm = Recorded(nodes=NODES, waiting=JOBS, running=RUNNING)
        state = ControllerState.open(Path(folder), "recorded")
        settings = ControllerSettings(partition="gpu", policy=name)
        controller = Controller(settings, slurm, state, DecisionLog(None), Path(folder), clock=lambda: slurm.now_s)
        controller.warm_up()
        samples = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            controller.once()
            samples.append(time.perf_counter() - began)
            slurm.now_s += 2.0
        state.close()
        return samples[0], Times(tuple(samples[1:]))
