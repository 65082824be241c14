"""`python -m validation.policies`: our policy against the published ones, on traces it was not tuned on.

Tuned on batch_500 and the first one-week Poisson set of 411 jobs (`--tuning` shows those); judged on all other
Dally/SenseTime sets, on 2 and 4 racks of 8 machines of 8 GPUs, with the released and the congested network, and with
jobs that slow each other on shared links or not. The best single baseline is the one with the smallest geometric mean
of mean JCTs over all judged settings.
"""

import argparse
import csv
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stallwise.cluster.job import Job
from stallwise.cluster.policies import patient, policy_named, tiresias
from stallwise.cluster.policy import Patience, Placement, Policy
from stallwise.cluster.profiles import NETWORKS, LayerProfiles, read_profiles
from stallwise.cluster.simulator import Costs, simulate
from stallwise.cluster.topology import Cluster
from validation.harness import data_file, data_folder

BASELINES = ("dally", "dally-full", "tiresias", "dally-no-wait", "las")
OURS = "patient"
TUNED_ON = ("batch_500", "poisson_411_1proc_week")
JUDGED_ON = (
    "poisson_411_1proc_week2",
    "poisson_411_1proc_week3",
    "poisson_411_3proc_week",
    "poisson_411_3proc_day",
    "poisson_500_100perday",
    "poisson_500_75perday",
    "poisson_500_50perday",
    "poisson_500_25perday",
    "poisson_500_100perweek",
    "poisson_500_10dlperday",
    "poisson_500_3proc",
)
COSTS = Costs(checkpoint_s_per_gpu=1.0)
"""Of Dally's simulator, for every policy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One cluster and trace."""

    trace: str
    racks: int
    network: str
    contention: bool

    def __str__(self) -> str:
        return f"{self.trace} {self.racks} racks {self.network}{' shared' if self.contention else ''}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy in one setting."""

    jct_mean_s: float
    makespan_s: float


def settings(traces: Iterable[str], *, racks: Sequence[int] = (2, 4)) -> list[Setting]:
    """Every combination."""
    return [
        Setting(trace, count, network, contention)
        for trace in traces
        for count in racks
        for network in NETWORKS
        for contention in (False, True)
    ]


def read_jobs(folder: Path, trace: str) -> list[Job]:
    """A SenseTime set as Dally released it."""
    with data_file(folder, f"cluster_traces/dally_sensetime/{trace}.csv").open(newline="") as file:
        return [
            Job(
                id=row["job_id"],
                arrival_s=float(row["arrival_time_s"]),
                gpus=int(row["num_gpus"]),
                work_s=float(row["ideal_duration_s"]),
                model=row["model"],
                iteration_s=float(row["time_per_iteration_1gpu_s"]),
                gpu_utilisation=float(row["gpu_util"]) / 100,
            )
            for row in csv.DictReader(file)
        ]


class Arena:
    """Runs policies in settings; profiles and speeds are shared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profiles = read_profiles(folder / "cluster_traces/dally_sensetime/layer_profiles")
        self.speeds: dict[str, LayerProfiles] = {}
        self.jobs: dict[str, list[Job]] = {}

    def run(self, setting: Setting, policy: str | Policy) -> Cell:
        """Simulate one cell."""
        chosen = policy_named(policy) if isinstance(policy, str) else policy
        cluster = Cluster.counts(gpus=8, slots=2, machines=8, racks=setting.racks)
        speed = self.speeds.setdefault(
            setting.network, LayerProfiles(self.profiles, NETWORKS[setting.network], cluster.levels)
        )
        jobs = self.jobs.setdefault(setting.trace, read_jobs(self.folder, setting.trace))
        outcome = simulate(jobs, cluster, chosen, speed=speed, costs=COSTS, contention=setting.contention, series=False)
        return Cell(float(outcome.jct_s.mean()), outcome.makespan_s)


def geometric(values: Iterable[float]) -> float:
    """Mean of the logarithms, back."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def table(cells: dict[tuple[Setting, str], Cell], names: Sequence[str]) -> list[str]:
    """Rows of mean JCT in thousands of seconds, ours over the best single baseline, makespans likewise."""
    rows = list(dict.fromkeys(setting for setting, _ in cells))
    best = best_baseline(cells)
    lines = [
        "| trace | racks | network | shared links | " + " | ".join(names) + f" | JCT ÷ {best} | makespan ÷ {best} |",
        "| --- | --- | --- | --- |" + " --- |" * (len(names) + 2),
    ]
    for row in rows:
        figures = " | ".join(f"{cells[row, name].jct_mean_s / 1e3:.1f}" for name in names)
        jct, span = ratio(cells, row, best)
        shared = "yes" if row.contention else "no"
        lines.append(f"| {row.trace} | {row.racks} | {row.network} | {shared} | {figures} | {jct:.3f} | {span:.3f} |")
    return lines


def best_baseline(cells: dict[tuple[Setting, str], Cell]) -> str:
    """The one with the smallest geometric mean of JCTs."""
    return min(BASELINES, key=lambda name: mean_jct(cells, name))


def mean_jct(cells: dict[tuple[Setting, str], Cell], name: str) -> float:
    """Geometric mean over settings."""
    return geometric(cell.jct_mean_s for (_, policy), cell in cells.items() if policy == name)


def ratio(cells: dict[tuple[Setting, str], Cell], setting: Setting, best: str) -> tuple[float, float]:
    """Ours over the best baseline: JCT and makespan."""
    ours, theirs = cells[setting, OURS], cells[setting, best]
    return ours.jct_mean_s / theirs.jct_mean_s, ours.makespan_s / theirs.makespan_s


def verdict(cells: dict[tuple[Setting, str], Cell], names: Sequence[str]) -> list[str]:
    """What the bars are held against."""
    best = best_baseline(cells)
    rows = list(dict.fromkeys(setting for setting, _ in cells))
    pairs = {row: ratio(cells, row, best) for row in rows}
    worst = max(rows, key=lambda row: pairs[row][0])
    longest = max(rows, key=lambda row: pairs[row][1])
    means = ", ".join(f"{name} {mean_jct(cells, name) / 1e3:.1f}" for name in names)
    return [
        f"- Geometric mean of mean JCTs, thousand s: {means}.",
        f"- Best single baseline: {best}. JCT of {OURS} ÷ {best}: {geometric(p[0] for p in pairs.values()):.3f} "
        f"(geometric mean of {len(rows)} settings); better in {sum(p[0] < 1 for p in pairs.values())} of them.",
        f"- Worst setting: {worst}, {pairs[worst][0]:.3f}.",
        f"- Makespan ÷ {best}: {geometric(p[1] for p in pairs.values()):.3f} (geometric mean), "
        f"worst {pairs[longest][1]:.3f} in {longest}.",
    ]


def ablations() -> dict[str, Policy]:
    """Ours with one part taken out or put back to what the baselines do, and the best baseline with our best fit."""
    ours, theirs = patient(), tiresias()
    best = replace(theirs.placement, fit="best")
    hold = replace(ours.preemption, renew=True, force=1.2, migrate=True, migrate_gain=2.0)
    return {
        "patient": ours,
        "first fit": replace(ours, placement=Placement(fit="first")),
        "no patience": replace(ours, patience=Patience()),
        "patience starts anew": replace(ours, patience=replace(ours.patience, survives=False)),
        "no ageing": replace(ours, order=replace(ours.order, age_s=math.inf)),
        "leases of an hour": replace(ours, preemption=replace(ours.preemption, lease_s=3600.0)),
        "leases kept, pushing and moving": replace(ours, preemption=hold),
        "tiresias": theirs,
        "tiresias, best fit": replace(theirs, placement=best),
        "tiresias, best fit, leases of half an hour": replace(theirs, placement=best, preemption=ours.preemption),
    }


def show_parts(arena: Arena, rows: Sequence[Setting]) -> None:
    """What each part is worth: geometric means over settings."""
    whole: float | None = None
    print("| policy | JCT, thousand s | ÷ patient | makespan, million s |\n| --- | --- | --- | --- |")
    for name, policy in ablations().items():
        cells = [arena.run(setting, policy) for setting in rows]
        jct = geometric(cell.jct_mean_s for cell in cells)
        whole = whole or jct
        span = geometric(cell.makespan_s for cell in cells)
        print(f"| {name} | {jct / 1e3:.1f} | {jct / whole:.2f} | {span / 1e6:.2f} |", flush=True)


def main() -> None:
    """Run and print the table in Markdown."""
    parser = argparse.ArgumentParser(prog="validation.policies", description=__doc__)
    parser.add_argument("--tuning", action="store_true", help="the two sets the policy was tuned on")
    parser.add_argument("--parts", action="store_true", help="what each part of the policy is worth")
    parser.add_argument("--also", nargs="*", default=[], help="further policies to show")
    options = parser.parse_args()
    names = [*BASELINES, *options.also, OURS]
    arena = Arena(data_folder())
    rows = settings(TUNED_ON if options.tuning else JUDGED_ON)
    if options.parts:
        show_parts(arena, rows)
        return
    begin = time.perf_counter()
    cells = {(setting, name): arena.run(setting, name) for setting in rows for name in names}
    print("\n".join([*verdict(cells, names), "", *table(cells, names)]))
    print(f"\n{len(cells)} simulations in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
