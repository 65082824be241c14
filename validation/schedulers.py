"""`python -m validation.schedulers`: every policy on every set of traces, and what each policy knows.

The traces are cut to their first jobs and put on the fewest machines that could do the work as it arrives, so that all
of it runs in minutes. `--every` takes every file instead of one of each set, `--write` puts the table into
evidence/schedulers.md.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.cluster.job import load
from stallwise.cluster.policies.catalog import GROUPS, KNOWS, POLICIES, ROUND_POLICIES, policy_named
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.topology import Cluster, parse_cluster
from stallwise.cluster.traces import Trace, read_trace
from stallwise.cluster.traces.rows import mark_misfits, usable_trace
from stallwise.cluster.traces.speeds import MeasuredSpeeds, trace_speeds
from stallwise.errors import InputError
from validation.harness import ROOT, data_folder

JOBS = 100
"""Of every trace, the first so many."""
COSTS = RestartCosts(restart_s=30.0, first_start_s=30.0)
DAY_S = 86_400.0
PAGE = ROOT / "evidence/schedulers.md"
BEGIN, END = "<!-- the table begins -->\n", "<!-- the table ends -->\n"

# One trace of each set, and how many GPUs a machine has there (0: as given behind it).
SETS: tuple[tuple[str, int | str], ...] = (
    ("dally_sensetime/batch_500.csv", 8),
    ("dally_sensetime/april1_344.csv", 8),
    ("dally_sensetime/poisson_411_3proc_day.csv", 8),
    ("dally_sensetime/poisson_500_100perday.csv", 8),
    ("tiresias/60_job.csv", 4),
    ("tiresias/480_job.csv", 4),
    ("themis_philly/processed_data.csv", 8),
    ("themis_philly/philly_hyperdrive_workload.csv", 8),
    ("gavel/physical_cluster/minimize_makespan.csv", 4),
    ("gavel/physical_cluster/max_min_fairness.csv", 4),
    ("gavel/physical_cluster/max_min_fairness.csv", "kinds=v100:2x4+p100:4x4+k80:6x4"),
    ("gavel/msr_seed0/e13805.csv", 8),
    ("shockwave/120_jobs_dynamic.csv", 4),
    ("pollux/workloads/workload-6.csv", "machines=16,gpus=4"),
    ("pollux/workloads-0.5/workload-6.csv", "machines=16,gpus=4"),
    ("pollux/workloads-1.5/workload-6.csv", "machines=16,gpus=4"),
    ("pollux/workloads-2.0/workload-6.csv", "machines=16,gpus=4"),
    ("pollux/workloads-realistic/workload-6.csv", "machines=16,gpus=4"),
    ("sia/workloads_philly/workload-1.csv", "machines=16,gpus=4"),
    ("sia/workloads_philly/workload-1.csv", "kinds=aws:6x4+rtx:3x8+dgx-ext:2x8"),
    ("sia/workloads_saturn/workload-1.csv", "machines=16,gpus=4"),
    ("sia/workloads_newtrace/workload-1.csv", "machines=16,gpus=4"),
    ("sia/philly_82k_jobs.csv", 8),
    ("alibaba_gpu_v2023/openb_pod_list_default.csv", 8),
    ("philly_slices/philly_2000.csv", 8),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy on one trace."""

    jct_s: float
    makespan_s: float
    fairness: float

    def __str__(self) -> str:
        return f"{_short(self.jct_s / 3600)} / {_short(self.makespan_s / 3600)} / {_short(self.fairness)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Row:
    """A trace on a cluster under all policies that can run there."""

    name: str
    jobs: int
    whole: int
    cluster: str
    cells: dict[str, Cell]


def cluster_for(trace: Trace, machine: int) -> str:
    """The fewest machines that do the work while jobs arrive (a batch: in a day) and hold the largest gang."""
    asked = load(trace.jobs, 1)
    gpus = max(asked.largest_gang, math.ceil(asked.gpu_s / max(asked.span_s, DAY_S if asked.span_s == 0 else 1.0)))
    return f"machines={math.ceil(gpus / machine)},gpus={machine}"


def run(path: Path, name: str, where: int | str, policies: Sequence[str]) -> Row:
    """All policies on one trace."""
    measured = MeasuredSpeeds()
    trace = read_trace(path, measured)
    trace, speeds = trace_speeds(trace, path, measured, None)
    whole = len(trace.jobs)
    first = usable_trace(mark_misfits(trace, 1 << 30, models=speeds.models), skip_bad=True).jobs[:JOBS]
    cut = Trace(source=trace.source, format=trace.format, jobs=first, speed=trace.speed)
    text = where if isinstance(where, str) else cluster_for(cut, where)
    cluster = parse_cluster(text)
    speed = speeds.on(cluster)
    cells = dict(_cells(cut, cluster, speed, policies))
    return Row(name, len(first), whole, text, cells)


def _cells(trace: Trace, cluster: Cluster, speed: object, policies: Sequence[str]) -> Iterator[tuple[str, Cell]]:
    for name in policies:
        try:
            made = simulate(trace.jobs, cluster, policy_named(name), speed=speed, costs=COSTS)  # type: ignore[arg-type]
        except InputError:  # the trace lacks what the policy reads
            continue
        figures = made.metrics
        yield name, Cell(figures.jct_mean_s, figures.makespan_s, figures.fairness_p95)


def traces(*, every: bool) -> list[tuple[str, int | str]]:
    """One of each set, or every file beside them that is a trace."""
    if not every:
        return list(SETS)
    folder = data_folder() / "cluster_traces"
    out: dict[tuple[str, int | str], None] = {}
    for name, where in SETS:
        for path in sorted((folder / name).parent.glob("*.csv")):
            out[str(path.relative_to(folder)), where] = None
    return list(out)


def table(rows: Sequence[Row], policies: Sequence[str]) -> list[str]:
    """A column per trace; each cell mean JCT in hours, makespan in hours, ρ of the 95th percentile."""
    heads = [f"{row.name.removesuffix('.csv')}<br>{_cut(row)}<br>{row.cluster}" for row in rows]
    lines = ["| policy | knows | " + " | ".join(heads) + " |", "| --- | --- |" + " --- |" * len(rows)]
    for name in policies:
        cells = [str(row.cells[name]) if name in row.cells else "–" for row in rows]
        lines.append(f"| {name} | {KNOWS[name]} | " + " | ".join(cells) + " |")
    return lines


def _cut(row: Row) -> str:
    return f"{row.jobs} jobs" if row.jobs == row.whole else f"first {row.jobs} of {row.whole:,} jobs"


def main() -> None:
    """Run and print the table in Markdown."""
    parser = argparse.ArgumentParser(prog="validation.schedulers", description=__doc__)
    parser.add_argument("--every", action="store_true", help="every file, not one of each set")
    parser.add_argument("--only", default="", help="traces whose name has this in it")
    parser.add_argument("--policy", nargs="*", default=[*POLICIES, *ROUND_POLICIES], help="these policies")
    parser.add_argument("--write", action="store_true", help="put the table into evidence/schedulers.md")
    options = parser.parse_args()
    names = [name for text in options.policy for name in GROUPS.get(text, (text,))]
    folder, rows = data_folder() / "cluster_traces", []
    for name, where in traces(every=options.every):
        if options.only in name and (folder / name).is_file():
            begin = time.perf_counter()
            try:
                rows.append(run(folder / name, name, where, names))
            except InputError as error:  # a table that is no trace, or one without a job that was measured
                print(f"{name}: {error}", flush=True)
                continue
            print(f"{name}: {time.perf_counter() - begin:.1f} s", flush=True)
    lines = "\n".join(table(rows, names)) + "\n"
    print(lines)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + lines + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
