"""Replays of a job on 64 spot machines: 24 h of work, checkpoints every half hour, about nine losses each."""

import os
import time

from benchmarks.harness import Result, take_turns
from stallwise.spot.lifetimes.models import Exponential
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.fleet import MachineKind, uniform_fleet
from stallwise.spot.plan.simulate import simulate

REPLAYS, MACHINES, CORES = 10_000, 64, 2
BAR_S = 1.0
ROUNDS = 5
_HOUR_S = 3600.0


def measure() -> list[Result]:
    """Median of five, after one that compiles."""
    work = JobWork(work_s=24 * _HOUR_S, interval_s=1800, save_s=30, provision_s=90, restart_s=60)
    kind = MachineKind(name="spot", usd_per_h=3.0, spot_usd_per_h=1.0, life=Exponential(200 * _HOUR_S))
    fleet = uniform_fleet(kind, MACHINES)
    losses: list[float] = []

    def once() -> float:
        start = time.perf_counter()
        losses.append(float(simulate(work, fleet, replays=REPLAYS, threads=CORES).losses.mean()))
        return time.perf_counter() - start

    times = take_turns({"stallwise": once}, ROUNDS)["stallwise"]
    return [
        Result(
            claim=f"{REPLAYS:,} replays of a {MACHINES}-machine job ≤ {BAR_S:g} s on {CORES} cores",
            measured=f"{times}; {losses[-1]:.1f} losses each; {os.cpu_count()} cores here",
            held=times.median_s <= BAR_S,
        )
    ]
