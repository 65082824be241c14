"""The simulator, fed with the same jobs and topology, foretells what the controller does on a real Slurm."""

import random
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import kendalltau

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.job import Job
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.topology import Cluster as Tree
from stallwise.slurm._placement import PlacementSpeeds
from stallwise.slurm.controller import policy_for_slurm
from tests.figures import Figures
from tests.slurm.site import Site

TREE = Tree.counts(gpus=4, machines=4, racks=2)
# Work at full speed is $1; speeds on one machine, in one rack and beyond are $2 $3 $4. What TERM leaves undone is kept,
# in seconds at full speed.
SCRIPT = """#!/bin/bash
out=$OUT/$SLURM_JOB_ID began=$EPOCHREALTIME left=$1
echo "start $began $SLURM_JOB_NODELIST ${SLURM_RESTART_COUNT:-0}" >> $out
if [ -e $out.left ]; then read left < $out.left; fi
racks=0; nodes=0; for node in $(scontrol show hostnames); do
  nodes=$((nodes + 1)); racks=$((racks | (${node#n} > 4 ? 2 : 1))); done
speed=$2; [ $nodes -gt 1 ] && speed=$3; [ $racks -eq 3 ] && speed=$4
exec 3<> $OUT/pipe
trap 'python3 -c "print(max(0.001, $left - $speed * ($EPOCHREALTIME - $began)))" > $out.left
      echo "term $EPOCHREALTIME" >> $out; exit 1' TERM
read -t $(python3 -c "print($left / $speed)") -u 3
echo "end $EPOCHREALTIME" >> $out
"""
Asked = tuple[float, int, float, str]
"""Arrival, gang, work, kind."""
KINDS = {"none": (1.0, 1.0, 1.0), "some": (1.0, 0.9, 0.7), "much": (1.0, 0.8, 0.4)}


def jobs_of(seed: int, count: int) -> list[Asked]:
    """More than the cluster can do while they come, so that there is a queue."""
    draw = random.Random(seed)
    arrival, found = 0.0, []
    for _ in range(count):
        kind = draw.choice(list(KINDS))
        found.append((arrival, draw.choice([2, 4, 4, 8, 8, 12, 16]), draw.uniform(30, 60), kind))
        arrival += draw.uniform(1, 9)
    return found


def really(
    site: Site, policy: str, asked: list[Asked]
) -> tuple[list[Job], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Submit at the times given, let the controller run; the jobs, and when each first started and ended."""
    site.script.write_text(SCRIPT)
    keys = []
    with site.controller(policy):
        began = time.time()
        for arrival, gang, work, kind in asked:
            time.sleep(max(0.0, began + arrival - time.time()))
            comment = f'stallwise:{{"speeds":{list(KINDS[kind])}}}'
            ask = ["--parsable", "--hold", f"--gpus={gang}", f"--nodes=1-{gang}", f"--comment={comment}"]
            where = ["--output=/dev/null", "--partition=all", f"--export=ALL,OUT={site.folder}/out"]
            words = [f"{work:.3f}", *map(str, KINDS[kind])]
            keys.append((site.run("sbatch", *ask, *where, str(site.script), *words).stdout.strip(), time.time()))
        site.wait(lambda: site.ended(*(key for key, _ in keys)), "all jobs", 600)
    jobs = [
        Job(id=key, arrival_s=submitted - began, gpus=gang, work_s=work)
        for (key, submitted), (_, gang, work, _) in zip(keys, asked, strict=True)
    ]
    starts = np.array([site.executions(key)[0].start_s - began for key, _ in keys])
    ends = np.array([site.executions(key)[-1].end_s - began for key, _ in keys])  # type: ignore[operator]
    return jobs, starts, ends


def foretold(jobs: list[Job], policy: str, asked: list[Asked]) -> Outcome:
    """One second from a decision to the script's first line: a look every 0.3 s, and Slurm's own second."""
    speeds = {job.id: KINDS[kind] for job, (_, _, _, kind) in zip(jobs, asked, strict=True)}
    costs = RestartCosts(first_start_s=1.0, restart_s=1.0, checkpoint_s_per_gpu=0.0)
    return simulate(jobs, TREE, policy_for_slurm(policy), speed=PlacementSpeeds(speeds), costs=costs)


def judge(site: Site, policy: str, asked: list[Asked], keep: Path, figures: Figures) -> None:
    whole = [Job(id=str(i), arrival_s=at, gpus=gang, work_s=work) for i, (at, gang, work, _) in enumerate(asked)]
    foretold(whole, policy, asked)  # compiles, so that nothing else does while the real run is measured
    jobs, starts, ends = really(site, policy, asked)
    outcome = foretold(jobs, policy, asked)
    arrivals = np.array([job.arrival_s for job in jobs])
    tau = kendalltau(starts, outcome.first_start_s).statistic
    real, told = ends - arrivals, outcome.finish_s - arrivals
    off = told.mean() / real.mean() - 1
    worst = np.abs(told / real - 1)
    stops = sum(len(site.executions(job.id)) - 1 for job in jobs)
    said = (
        f"{policy}: {len(jobs)} jobs, τ {tau:.3f}, mean JCT {real.mean():.1f} s real, {told.mean():.1f} s foretold "
        f"({off:+.1%}); single jobs off by {np.median(worst):.1%} in the middle, {worst.max():.1%} at most; "
        f"stops {stops} real, {int(outcome.preemptions.sum())} foretold"
    )
    print(said)
    keep.write_text(said + "\n")
    figures.at_least(f"Slurm, {policy}: order of starts (Kendall's tau)", tau, 0.9)
    figures.judge(f"Slurm, {policy}: mean completion", told.mean(), real.mean(), rel=0.10, unit="s")


@pytest.mark.truth
@pytest.mark.parametrize("policy", ["patient:lease=600,factor=0.05", "las:lease=45"])
def test_the_simulator_foretells_the_real_run(policy: str, site: Site, figures: Figures) -> None:
    judge(site, policy, jobs_of(11, 20), site.folder / "said", figures)
