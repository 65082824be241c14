"""The cluster simulator: against a naive one in pure Python and a released one, cold, and on the Philly log.

The released one is Tiresias' (NSDI 2019, Python 2, converted by lib2to3); `python -m benchmarks cluster --checkout
PATH` names a checkout of github.com/SymbioticLab/Tiresias; without one it is not shown.
`build/cluster-scaling.svg` plots run time against number of jobs; the same figures are printed.
"""

import csv
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import cluster_naive
from benchmarks.harness import Result, Times, command_s, take_turns
from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.simulator import simulate
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces import read_trace

ROOT = Path(__file__).parents[1]
TRACES = Path(os.environ.get("STALLWISE_DATA", ROOT / "../shared/data")) / "cluster_traces"
SLICE, LOG = TRACES / "philly_slices/philly_5000.csv", TRACES / "sia/philly_82k_jobs.csv"
CLUSTER = {"racks": 8, "machines": 8, "gpus": 8}
ASKED = ",".join(f"{name}={count}" for name, count in CLUSTER.items())
ROUNDS = 3
TIMES_NAIVE, COLD_S, LOG_S = 3.0, 1.5, 15.0
OFF = {"2d-las": 0.02, "gandiva": 0.02}
"""How far mean JCTs may lie apart where ties are broken in another way; elsewhere they are equal."""
SLOW = ("las", "gandiva")  # the naive ones: one round
SIMPLER = {"fifo-skip": "fifo", "sjf": "fifo"} | dict.fromkeys(
    ("gittins", "tiresias", "dally", "dally-manual", "dally-no-wait", "dally-full", "patient"), "las"
)
SHORT_SLICE = TRACES / "philly_slices/philly_2000.csv"
SMALL_GPUS = 128
RELEASED = {"fifo": "fifo", "srsf": "shortest-gpu"}
"""Our name of a policy, and that of Tiresias' simulator."""
SAME = 1e-6  # of the mean JCT, beyond which the two did not simulate the same
LOG_POLICIES = ("fifo", "srsf", "2d-las")
SIZES = (5_000, 10_000, 20_000, 40_000, 82_247)
# Twice as many jobs take at most so many times as long: "close to linear". n log n from 5,000 to 82,247 gives 1.1.
EXPONENT = 1.25


def measure() -> list[Result]:
    """Every claim of the simulator."""
    if not LOG.exists():
        return [Result(claim="cluster simulator", measured=f"no traces at {TRACES}; set STALLWISE_DATA", held=False)]
    quick = os.environ.get("STALLWISE_BENCH_QUICK") == "1"
    found = [*against_naive(), *against_released(), cold()]
    return found if quick else [*found, *whole_log()]


def against_naive() -> list[Result]:
    """The same jobs, GPUs and policy; answers must be the same (or within 2 %) or the times say nothing."""
    jobs = list(read_trace(SLICE).jobs)
    cluster = Cluster.counts(**CLUSTER)
    asked = [cluster_naive.Asked(job.arrival_s, job.gpus, job.work_s) for job in jobs]
    found, naive_s = [], {}
    for policy in cluster_naive.ORDERS:
        answers: dict[str, float] = {}

        def ours(policy: str = policy, answers: dict[str, float] = answers) -> float:
            began = time.perf_counter()
            answers["ours"] = simulate(jobs, cluster, policy_named(policy)).metrics.jct_mean_s
            return time.perf_counter() - began

        def naive(policy: str = policy, answers: dict[str, float] = answers) -> float:
            began = time.perf_counter()
            ends = cluster_naive.simulate(asked, cluster.gpus, policy)
            took_s = time.perf_counter() - began
            answers["naive"] = sum(end - job.submit_s for end, job in zip(ends, asked, strict=True)) / len(asked)
            return took_s

        times = take_turns({"ours": ours, "naive": naive}, 1 if policy in SLOW else ROUNDS)
        naive_s[policy] = times["naive"].median_s
        ratio = naive_s[policy] / times["ours"].median_s
        off = abs(answers["ours"] / answers["naive"] - 1)
        found.append(
            Result(
                claim=f"philly_5000, {policy} ≥ {TIMES_NAIVE:g}x a naive simulator",
                measured=f"{times['ours']}; naive {times['naive']}; ratio {ratio:.1f}; "
                f"mean JCT {answers['ours']:.2f} s, naive {answers['naive']:.2f} s",
                held=ratio >= TIMES_NAIVE and off <= OFF.get(policy, 1e-9),
            )
        )
    return found + others(jobs, cluster, naive_s)


def others(jobs: list[Job], cluster: Cluster, naive_s: dict[str, float]) -> list[Result]:
    """Policies the naive simulator lacks, against one it has that does less: no index, no placement, no patience."""
    found = []
    for policy, simpler in SIMPLER.items():
        times = take_turns({"ours": lambda policy=policy: _once(jobs, cluster, policy)}, ROUNDS)
        ratio = naive_s[simpler] / times["ours"].median_s
        found.append(
            Result(
                claim=f"philly_5000, {policy} ≥ {TIMES_NAIVE:g}x the naive {simpler}",
                measured=f"{times['ours']}; ratio {ratio:.1f}",
                held=ratio >= TIMES_NAIVE,
            )
        )
    return found


def against_released() -> list[Result]:
    """Whole processes, from the trace's file to every job's time, in turns; without its GPUs' places, as it is run."""
    checkout = os.environ.get("STALLWISE_BENCH_CHECKOUT")
    if not checkout or importlib.util.find_spec("lib2to3") is None:
        why = "no --checkout of SymbioticLab/Tiresias" if not checkout else "this Python has no lib2to3"
        return [Result(claim="a released simulator beside ours", measured=f"not shown: {why}")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "simulator"
        shutil.copytree(Path(checkout) / "simulator", folder)
        command = (sys.executable, "-W", "ignore", "-m", "lib2to3", "-w", "-n", str(folder))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _write_as_tiresias(folder)
        return [_released(folder, ours, theirs) for ours, theirs in RELEASED.items()]


def _write_as_tiresias(folder: Path) -> None:
    jobs = read_trace(SHORT_SLICE).jobs
    with (folder / "jobs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"))
        rows.writerows(
            (n, job.gpus, int(job.arrival_s), 1, "resnet50", int(job.work_s), 0) for n, job in enumerate(jobs)
        )
    head = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node"
    sizes = f"1,{SMALL_GPUS // 8},8,128,256"
    (folder / "cluster.csv").write_text(f"{head}\n{sizes}\n")


def _released(folder: Path, policy: str, schedule: str) -> Result:
    theirs = (
        sys.executable, "run_sim.py", "--cluster_spec=cluster.csv", "--scheme=count", "--trace_file=jobs.csv",
        f"--schedule={schedule}", "--log_path=log",
    )  # fmt: skip
    place = f"machines={SMALL_GPUS // 8},gpus=8"
    ours = (
        sys.executable, "-m", "stallwise", "simulate", str(SHORT_SLICE), "--cluster", place,
        "--policy", policy, "--json",
    )  # fmt: skip
    answers: dict[str, float] = {}

    def run_ours() -> float:
        began = time.perf_counter()
        done = subprocess.run(ours, check=True, capture_output=True, text=True)
        answers["ours"] = json.loads(done.stdout)["rows"][0]["jct_mean_s"]
        return time.perf_counter() - began

    def run_theirs() -> float:
        shutil.rmtree(folder / "log", ignore_errors=True)
        began = time.perf_counter()
        subprocess.run(theirs, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        took_s = time.perf_counter() - began
        with (folder / "log/job.csv").open(newline="") as file:
            seconds = [float(row["JCT"]) for row in csv.DictReader(file)]
        answers["theirs"] = sum(seconds) / len(seconds)
        return took_s

    times: dict[str, Times] = take_turns({"ours": run_ours, "theirs": run_theirs}, ROUNDS)
    ratio = times["theirs"].median_s / times["ours"].median_s
    return Result(
        claim=f"philly_2000 on {SMALL_GPUS} GPUs, {policy}, cold: the mean JCT of Tiresias' released simulator",
        measured=f"{answers['ours']:.2f} s, theirs {answers['theirs']:.2f} s; "
        f"{ratio:.2f}x: {times['ours']}, theirs {times['theirs']}",
        held=abs(answers["ours"] / answers["theirs"] - 1) <= SAME,
    )


def cold() -> Result:
    """The command as a user types it, from the second call on: the first one compiles."""
    command = (
        sys.executable, "-m", "stallwise", "simulate", str(SLICE), "--cluster", ASKED,
        "--policy", "fifo,srtf,srsf,las,dally", "--json",
    )  # fmt: skip
    contestants: dict[str, Callable[[], float]] = {
        "simulate": lambda: command_s(*command),
        "python -c pass": lambda: command_s(sys.executable, "-c", "pass"),
    }
    times = take_turns(contestants, ROUNDS)
    return Result(
        claim=f"stallwise simulate philly_5000, five policies, cold process ≤ {COLD_S:g} s",
        measured=f"{times['simulate']}; python -c pass {times['python -c pass']}",
        held=times["simulate"].median_s <= COLD_S,
    )


def whole_log() -> list[Result]:
    """All jobs of the Philly log, then how the time grows with their number."""
    began = time.perf_counter()
    jobs = list(read_trace(LOG).jobs)
    read_s = time.perf_counter() - began
    cluster = Cluster.counts(**CLUSTER)
    # Loads the compiled loop: the first and smallest size would pay for it and flatten the curve.
    _once(jobs[:100], cluster, LOG_POLICIES[0])
    curves = {policy: [_once(jobs[:count], cluster, policy) for count in SIZES] for policy in LOG_POLICIES}
    found = [
        Result(
            claim=f"{len(jobs):,} Philly jobs, {policy} ≤ {LOG_S:g} s",
            measured=f"{times[-1]:.2f} s, and {read_s:.2f} s to read the trace",
            held=times[-1] + read_s <= LOG_S,
        )
        for policy, times in curves.items()
    ]
    plot = ROOT / "build/cluster-scaling.svg"
    plot.parent.mkdir(exist_ok=True)
    plot.write_text(scaling_svg(curves), encoding="utf-8")
    return found + [_scaling(policy, times) for policy, times in curves.items()]


def _once(jobs: Sequence[Job], cluster: Cluster, policy: str) -> float:
    began = time.perf_counter()
    simulate(list(jobs), cluster, policy_named(policy))
    return time.perf_counter() - began


def _scaling(policy: str, times: Sequence[float]) -> Result:
    steps = ", ".join(f"{count:,}: {took_s:.2f} s" for count, took_s in zip(SIZES, times, strict=True))
    power = exponent(SIZES, times)
    return Result(
        claim=f"Philly log, {policy}: time grows as jobs^{EXPONENT:g} at most",
        measured=f"jobs^{power:.2f}; {steps}",
        held=power <= EXPONENT,
    )


def exponent(counts: Sequence[float], times: Sequence[float]) -> float:
    """Slope of log time over log jobs, least squares."""
    x, y = [math.log(count) for count in counts], [math.log(took_s) for took_s in times]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - middle_x) ** 2 for a in x)


def scaling_svg(curves: dict[str, list[float]]) -> str:
    """Seconds over jobs, both logarithmic, a line per policy; dashed: linear from the first point of the slowest."""
    width, height, left, floor = 640, 360, 60, 320
    times = [value for values in curves.values() for value in values]
    low, high = math.log10(min(times) / 1.5), math.log10(max(times) * 1.5)
    first, last = math.log10(SIZES[0]), math.log10(SIZES[-1])

    def at(count: float, took_s: float) -> str:
        x = left + (width - left - 20) * (math.log10(count) - first) / (last - first)
        return f"{x:.1f},{floor - (floor - 20) * (math.log10(took_s) - low) / (high - low):.1f}"

    drawn = []
    for number, (policy, values) in enumerate(curves.items()):
        colour = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")[number % 4]
        points = " ".join(at(count, value) for count, value in zip(SIZES, values, strict=True))
        drawn.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        drawn.append(f'<text x="{left + 12}" y="{34 + 18 * number}" fill="{colour}">{policy}</text>')
    slowest = max(curves.values(), key=lambda values: values[0])[0]
    straight = f"{at(SIZES[0], slowest)} {at(SIZES[-1], slowest * SIZES[-1] / SIZES[0])}"
    drawn.append(f'<polyline fill="none" stroke="#888" stroke-dasharray="4 4" points="{straight}"/>')
    drawn += [
        f'<text x="{at(count, 1).split(",")[0]}" y="{floor + 18}" text-anchor="middle">{count:,}</text>'
        for count in SIZES
    ]
    drawn += [
        f'<text x="{left - 6}" y="{at(SIZES[0], value).split(",")[1]}" text-anchor="end">{value:.2g} s</text>'
        for value in (10**low, 10 ** ((low + high) / 2), 10**high)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
    return (
        f'{head} font-family="sans-serif" font-size="12">'
        f"<title>Run time of the simulator over jobs of the Philly log</title>{''.join(drawn)}</svg>\n"
    )
