"""The simulator answers bit for bit as it did before it was rearranged: ten traces, every policy.

`cluster_answers.csv` holds digests of every job's times, made by the release before one engine replaced six (on x86-64
Linux; other processors may round otherwise). Policies that came later are not in it until it is recorded anew:
`python -m benchmarks.cluster_answers --record`. Who changes an answer on purpose does that and says why in the commit;
`git diff` shows which policies moved.
"""

import csv
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.cluster import TRACES
from benchmarks.harness import Result
from stallwise.cluster import Cluster, Job, Outcome, policy_named, read_trace, simulate
from stallwise.cluster.policies.catalog import POLICIES, ROUND_POLICIES
from stallwise.cluster.speed import Speed
from stallwise.errors import InputError

RECORDED = Path(__file__).with_suffix(".csv")
PER_JOB = ("first_start_s", "finish_s", "run_s", "comm_s", "overhead_s", "preemptions", "migrations", "widest")
NAMES = (
    *(f"{name}:chunk=1000" if name.startswith("dally") else name for name in POLICIES),
    *ROUND_POLICIES,
    "srsf:deflate=0.5,slack=0.5",
    "dally-manual:rack=2,net=4,chunk=1000",
)
"""Dally's variants with the chunks of iterations that they had when the answers were recorded."""
REFUSED = "refused"
"""Instead of a digest where a policy lacks what the trace does not say, such as step times by number of GPUs."""


class Setting(NamedTuple):
    """The first jobs of a public trace on a cluster."""

    trace: str
    racks: int
    machines: int
    gpus: int
    jobs: int
    contention: bool = False


SETTINGS = (
    Setting("dally_sensetime/batch_100.csv", 4, 4, 4, 100),
    Setting("dally_sensetime/april1_344.csv", 8, 8, 4, 200),
    Setting("dally_sensetime/poisson_411_3proc_day.csv", 4, 8, 4, 150, contention=True),
    Setting("dally_sensetime/poisson_500_25perday.csv", 4, 8, 8, 150),
    Setting("philly_slices/philly_2000.csv", 2, 4, 4, 300),
    Setting("tiresias/60_job.csv", 1, 4, 4, 60),
    Setting("tiresias/480_job.csv", 2, 8, 8, 200),
    Setting("gavel/physical_cluster/minimize_makespan.csv", 1, 9, 4, 100),
    Setting("pollux/workloads/workload-1.csv", 1, 16, 4, 80),
    Setting("sia/workloads_philly/workload-1.csv", 1, 16, 4, 60),
)


def measure() -> list[Result]:
    """One claim per trace."""
    if not (TRACES / SETTINGS[0].trace).exists():
        return [Result(claim="cluster answers", measured=f"no traces at {TRACES}; set STALLWISE_DATA", held=False)]
    with RECORDED.open(newline="") as file:
        recorded = {(row["trace"], row["policy"]): row["digest"] for row in csv.DictReader(file)}
    return [_compared(setting, recorded) for setting in SETTINGS]


def _compared(setting: Setting, recorded: dict[tuple[str, str], str]) -> Result:
    rows = {policy: digest for policy, digest, _ in answers(setting) if (setting.trace, policy) in recorded}
    moved = [policy for policy, digest in rows.items() if recorded[setting.trace, policy] != digest]
    refused = sum(digest == REFUSED for digest in rows.values())
    return Result(
        claim=f"{setting.trace}: {len(rows)} policies answer bit for bit as recorded",
        measured=f"other answers: {', '.join(moved) or 'none'}; refused, as recorded: {refused}",
        held=not moved,
    )


def answers(setting: Setting) -> Iterator[tuple[str, str, str]]:
    """Policy, digest of every job's times, mean JCT (for people)."""
    trace = read_trace(TRACES / setting.trace)
    cluster = Cluster.counts(racks=setting.racks, machines=setting.machines, gpus=setting.gpus)
    jobs = [job for job in trace.jobs[: setting.jobs] if job.gpus <= cluster.gpus]
    for policy in NAMES:
        outcome = _outcome(jobs, cluster, policy, trace.speed, contention=setting.contention)
        if outcome is None:
            yield policy, REFUSED, ""
        else:
            yield policy, digest(outcome), f"{outcome.metrics.jct_mean_s:.9g}"


def _outcome(
    jobs: list[Job], cluster: Cluster, policy: str, speed: Speed | None, *, contention: bool
) -> Outcome | None:
    try:
        return simulate(jobs, cluster, policy_named(policy), speed=speed, contention=contention)
    except InputError:
        return None


def digest(outcome: Outcome) -> str:
    """Of every job's times and counts, to the last bit."""
    total = hashlib.sha256()
    for name in PER_JOB:
        total.update(np.ascontiguousarray(getattr(outcome, name), dtype=np.float64).tobytes())
    return total.hexdigest()[:16]


def record() -> None:
    """Write the answers of the code as it is."""
    with RECORDED.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("trace", "policy", "digest", "jct_mean_s"))
        for setting in SETTINGS:
            writer.writerows((setting.trace, *row) for row in answers(setting))


if __name__ == "__main__":
    if sys.argv[1:] != ["--record"]:
        sys.exit("usage: python -m benchmarks.cluster_answers --record (or python -m benchmarks cluster_answers)")
    record()
