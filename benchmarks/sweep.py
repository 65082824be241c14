"""Sweeps of 10,000 small simulations: how much quicker two workers are than one, on Ray and in processes here.

Each contestant runs the same sweep from its start to the last answer, which for a fresh worker includes loading the
simulator. A Ray cluster is there before the clock starts; how long it takes to start is told beside it.
"""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.harness import Result, Times, take_turns
from stallwise.cluster.job import Job
from stallwise.cluster.sweep.cases import Engine, NamedCluster, SimulationResult, Sweep
from stallwise.cluster.sweep.local import LocalEngine
from stallwise.cluster.sweep.ray import RayEngine, ray_package, ray_session
from stallwise.cluster.sweep.sweep import run_sweep
from stallwise.cluster.topology import Cluster

ROUNDS = 5
EFFICIENCY = 0.8
POLICIES = ("fifo", "srtf", "las", "tiresias", "patient")
JOBS, SEEDS = 80, 500


def measure() -> list[Result]:
    """Both engines."""
    return [on_ray(), in_processes()]


def on_ray() -> Result:
    """One core and two of a Ray cluster on this machine."""
    ray = ray_package()
    starts: list[float] = []

    def workers(count: int) -> Callable[[], float]:
        def run() -> float:
            began_s = time.perf_counter()
            with ray_session(ray, None, count):
                starts.append(time.perf_counter() - began_s)
                return _timed(sweep, RayEngine(count), answers)

        return run

    sweep, answers = _sweep(), list[list[SimulationResult]]()
    times = take_turns({"one": workers(1), "two": workers(2)}, ROUNDS)
    return _result("Ray", times, sweep, answers, f"; starting the cluster took {Times(tuple(starts))}")


def in_processes() -> Result:
    """`--concurrency 1` and `--concurrency 2` of the engine that needs no cluster."""
    sweep, answers = _sweep(), list[list[SimulationResult]]()
    times = take_turns(
        {"one": lambda: _timed(sweep, LocalEngine(1), answers), "two": lambda: _timed(sweep, LocalEngine(2), answers)},
        ROUNDS,
    )
    return _result("processes here", times, sweep, answers, "")


def _timed(sweep: Sweep, engine: Engine, answers: list[list[SimulationResult]]) -> float:
    began_s = time.perf_counter()
    answers.append(run_sweep(sweep, engine=engine))
    return time.perf_counter() - began_s


def _result(
    where: str, times: dict[str, Times], sweep: Sweep, answers: Sequence[list[SimulationResult]], more: str
) -> Result:
    one_s, two_s = times["one"].median_s, times["two"].median_s
    efficiency = one_s / two_s / 2
    first = [(run.case, run.metrics) for run in answers[0]]
    same = all([(run.case, run.metrics) for run in runs] == first for runs in answers)
    return Result(
        claim=f"{len(sweep.cases()):,} simulations, {where}, from 1 worker to 2: efficiency ≥ {EFFICIENCY:.0%}",
        measured=f"{efficiency:.0%}: {one_s:.1f} s and {two_s:.1f} s ({times['one']}; {times['two']})"
        f"; answers {'the same' if same else 'DIFFER'}{more}",
        held=efficiency >= EFFICIENCY and same,
    )


def _sweep() -> Sweep:
    """Five policies on two clusters at two loads; with `--quick` a tenth of the seeds."""
    random = np.random.default_rng(1)
    gangs, work_s = random.choice([1, 1, 2, 4, 8], JOBS), random.integers(300, 5400, JOBS)
    jobs = tuple(Job(id=f"j{i}", arrival_s=120.0 * i, gpus=int(gangs[i]), work_s=float(work_s[i])) for i in range(JOBS))
    places = tuple(
        NamedCluster(name=f"machines={machines},gpus=8", cluster=Cluster.counts(machines=machines, gpus=8))
        for machines in (2, 4)
    )
    seeds = SEEDS // 10 if os.environ.get("STALLWISE_BENCH_QUICK") == "1" else SEEDS
    return Sweep(
        jobs=jobs,
        clusters=places,
        policies=POLICIES,
        loads=(0.5, 1.0),
        seeds=tuple(range(seeds)),
        arrivals="poisson",
    )
