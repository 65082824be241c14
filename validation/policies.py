"""`python -m validation.policies`: our policy against the published ones, on traces it was not tuned on.

Tuned on batch_500 and the first one-week Poisson set of 411 jobs (`--tuning` shows those); judged on all other
Dally/SenseTime sets, on 2 and 4 racks of 8 machines of 8 GPUs, with the released and the congested network, and with
jobs that slow each other on shared links or not. The best single baseline is the one with the smallest geometric mean
of mean JCTs over all judged settings.

`--map` is another table: how Dally and `patient` compare with full consolidation, no waiting and Tiresias where the
links between racks have 1 to 1/40 of the released bandwidth (400 GB/s) and latencies from 5 µs to 5 ms (released:
50 µs). A row is one network. The figures are kept in `validation/dally_map.json`; `--resume` simulates what is missing
there, `--kept` nothing.
"""

import argparse
import csv
import json
import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from stallwise.cluster.job import Job
from stallwise.cluster.policies.base import Patience, Placement, Policy
from stallwise.cluster.policies.catalog import patient, policy_named, tiresias
from stallwise.cluster.simulator import RestartCosts, simulate
from stallwise.cluster.speed._profiles import NETWORKS, LayerProfiles, TierNetwork, read_profiles
from stallwise.cluster.topology import Cluster
from validation.harness import data_file, data_folder

BASELINES = ("fifo", "dally", "dally-full", "tiresias", "dally-no-wait", "las")
CHUNKS = ("dally:chunk=1000", "dally-full:chunk=1000", "dally-no-wait:chunk=1000")
"""Dally as its released simulator: GPUs are held until a chunk of iterations is done."""
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
COSTS = RestartCosts(checkpoint_s_per_gpu=1.0)
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
    comm_mean_s: float
    lost: float
    """Fraction of the time with GPUs that went to slow placements."""


def network_of(name: str) -> TierNetwork:
    """Return a network by its name, or the released one with other links between racks: `0.1 / 5e-05`.

    The first number is their bandwidth as a fraction of the released one, the second their latency in seconds.
    """
    if name in NETWORKS:
        return NETWORKS[name]
    factor, latency_s = (float(part) for part in name.split(" / "))
    links = dict(NETWORKS["released"].links)
    bandwidth = links["rack"].bandwidth_bytes_per_s * factor
    links["rack"] = replace(links["rack"], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
    return TierNetwork(links=links)


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
            setting.network, LayerProfiles(self.profiles, network_of(setting.network), cluster.levels)
        )
        jobs = self.jobs.setdefault(setting.trace, read_jobs(self.folder, setting.trace))
        outcome = simulate(jobs, cluster, chosen, speed=speed, costs=COSTS, contention=setting.contention, series=False)
        held_s = float((outcome.run_s * outcome.gpus).sum())
        lost_s = float((outcome.comm_s * outcome.gpus).sum())
        return Cell(
            float(outcome.jct_s.mean()), outcome.makespan_s, float(outcome.comm_s.mean()), lost_s / max(held_s, 1e-12)
        )


def geometric(values: Iterable[float]) -> float:
    """Mean of the logarithms, back."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs))


def table(cells: dict[tuple[Setting, str], Cell], names: Sequence[str]) -> list[str]:
    """Rows of mean JCT in thousands of seconds, ours over the best single baseline, makespans likewise."""
    rows = list(dict.fromkeys(setting for setting, _ in cells))
    best = best_baseline(cells)
    lines = [
        "| trace | racks | network | shared links | "
        + " | ".join(names)
        + f" | JCT ÷ {best} | makespan ÷ {best} | beyond 10 × FIFO |",
        "| --- | --- | --- | --- |" + " --- |" * (len(names) + 3),
    ]
    for row in rows:
        figures = " | ".join(f"{cells[row, name].jct_mean_s / 1e3:.1f}" for name in names)
        jct, span = ratio(cells, row, best)
        shared = "yes" if row.contention else "no"
        far = far_from_fifo(cells, row, names)
        where = f"| {row.trace} | {row.racks} | {row.network} | {shared} |"
        lines.append(f"{where} {figures} | {jct:.3f} | {span:.3f} | {far} |")
    return lines


def far_from_fifo(cells: dict[tuple[Setting, str], Cell], row: Setting, names: Sequence[str]) -> str:
    """Name the policies whose mean JCT is beyond ten times FIFO's, and where the time went."""
    fifo_s = cells[row, "fifo"].jct_mean_s
    return "; ".join(
        f"{name} {cells[row, name].jct_mean_s / fifo_s:,.0f} ×, {cells[row, name].lost:.0%} of GPU time lost to links"
        + (", and a chunk does not end with its lease" if name in CHUNKS else "")
        for name in names
        if cells[row, name].jct_mean_s > 10 * fifo_s
    )


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


MAP = Path(__file__).with_name("dally_map.json")
BANDWIDTHS = (1.0, 0.25, 0.1, 0.025)
LATENCIES_S = (5e-6, 5e-5, 5e-4, 5e-3)
MAPPED = ("poisson_411_1proc_week2", "poisson_500_25perday")
RIVALS = ("dally-full", "dally-no-wait", "tiresias")
ON_MAP = ("fifo", *RIVALS, "dally", OURS)
FIGURES = ("makespan_s", "jct_mean_s", "comm_mean_s")
_SIZES = {1.0: "1", 0.25: "1/4", 0.1: "1/10", 0.025: "1/40"}


_ARENAS: dict[str, "Arena"] = {}


def mapped(place: tuple[str, int, float, float, bool]) -> list[dict[str, float | bool | str]]:
    """Simulate all policies of the map in one setting: a row for each."""
    trace, racks, factor, latency_s, shared = place
    arena, rows = _ARENAS.setdefault("", Arena(data_folder())), []
    for policy in ON_MAP:
        cell = arena.run(Setting(trace, racks, f"{factor} / {latency_s}", shared), policy)
        rows.append(
            {"bandwidth": factor, "latency_s": latency_s, "shared": shared, "trace": trace, "racks": racks}
            | {"policy": policy, "makespan_s": cell.makespan_s, "jct_mean_s": cell.jct_mean_s}
            | {"comm_mean_s": cell.comm_mean_s, "lost": cell.lost}
        )
    return rows


def make_map(cores: int) -> None:
    """Simulate every setting that is not kept yet; each is kept when it is done."""
    rows = json.loads(MAP.read_text()) if MAP.exists() else []
    done = {_where(row) for row in rows}
    places = [
        (trace, racks, factor, latency_s, shared)
        for racks, trace, factor, latency_s, shared in product((2, 4), MAPPED, BANDWIDTHS, LATENCIES_S, (False, True))
        if (factor, latency_s, shared, trace, racks) not in done
    ]
    with ProcessPoolExecutor(max_workers=cores) as pool:
        for part in pool.map(mapped, places):
            rows += part
            MAP.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def gains(rival: str, winner: str = "dally") -> list[dict[str, float]]:
    """Return, for every setting of the map, by how much the winner's figures are below: 0.3 is 30 % less."""
    by_setting: dict[tuple[object, ...], dict[str, dict[str, float]]] = {}
    for row in json.loads(MAP.read_text()):
        key = tuple(row[name] for name in ("bandwidth", "latency_s", "shared", "trace", "racks"))
        by_setting.setdefault(key, {})[row["policy"]] = row
    return [
        {name: rows[winner][name] for name in ("bandwidth", "latency_s", "shared")}
        | {name: 1 - rows[winner][name] / rows[rival][name] for name in FIGURES if rows[rival][name] > 0}
        for rows in by_setting.values()
    ]


def show_map() -> list[str]:
    """One row per network: makespan, JCT and communication time, as mean change over its settings."""
    pairs = [("dally", rival) for rival in RIVALS] + [(OURS, "dally"), (OURS, "tiresias")]
    tables = {pair: gains(pair[1], pair[0]) for pair in pairs}
    lines = [
        "| bandwidth | latency | shared links | " + " | ".join(f"{one} against {other}" for one, other in pairs) + " |",
        "| --- | --- | --- |" + " --- |" * len(pairs),
    ]
    for factor, latency_s, shared in product(BANDWIDTHS, LATENCIES_S, (False, True)):
        cells = []
        for pair in pairs:
            here = [row for row in tables[pair] if (row["bandwidth"], row["latency_s"], row["shared"]) ==
                    (factor, latency_s, shared)]  # fmt: skip
            cells.append(" / ".join(_change([row[name] for row in here if name in row]) for name in FIGURES))
        latency = f"{latency_s * 1e6:.0f} µs" if latency_s < 1e-3 else f"{latency_s * 1e3:.0f} ms"
        lines.append(f"| {_SIZES[factor]} | {latency} | {'yes' if shared else 'no'} | {' | '.join(cells)} |")
    return [*lines, "", *_best_gains()]


def _change(values: Sequence[float]) -> str:
    """Geometric mean of ratios, as a change."""
    return f"{geometric(1 - value for value in values) - 1:+.0%}" if values and max(values) < 1 else "–"


def _best_gains() -> list[str]:
    lines = ["| Dally against | makespan: less in, at most | mean JCT | communication |", "| --- | --- | --- | --- |"]
    for rival in RIVALS:
        rows = gains(rival)
        cells = [
            f"{sum(row[name] > 0 for row in rows if name in row)} of {len(rows)}, "
            f"{max(row[name] for row in rows if name in row):.0%}"
            for name in FIGURES
        ]
        lines.append(f"| {rival} | {' | '.join(cells)} |")
    return [*lines, "", *_far_on_map()]


def _far_on_map() -> list[str]:
    rows = json.loads(MAP.read_text())
    fifo = {_where(row): row["jct_mean_s"] for row in rows if row["policy"] == "fifo"}
    far = [row for row in rows if row["jct_mean_s"] > 10 * fifo[_where(row)]]
    return [
        f"- {row['policy']}, {row['trace']}, {row['racks']} racks, {_SIZES[row['bandwidth']]} of the bandwidth, "
        f"{row['latency_s'] * 1e3:g} ms: mean JCT {row['jct_mean_s'] / fifo[_where(row)]:.0f} × FIFO's; "
        f"{row['lost']:.0%} of its GPU time waits for links."
        for row in far
    ] or ["No mean JCT on the map is beyond ten times that of FIFO."]


def _where(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in ("bandwidth", "latency_s", "shared", "trace", "racks"))


def main() -> None:
    """Run and print the table in Markdown."""
    parser = argparse.ArgumentParser(prog="validation.policies", description=__doc__)
    parser.add_argument("--tuning", action="store_true", help="the two sets the policy was tuned on")
    parser.add_argument("--parts", action="store_true", help="what each part of the policy is worth")
    parser.add_argument("--also", nargs="*", default=[], help="further policies to show")
    parser.add_argument("--map", action="store_true", help="Dally and ours over bandwidths and latencies")
    parser.add_argument("--kept", action="store_true", help="with --map: print the kept figures, simulate nothing")
    parser.add_argument("--resume", action="store_true", help="with --map: only settings that are not kept")
    parser.add_argument("--cores", type=int, default=2, help="with --map: simulations at a time")
    options = parser.parse_args()
    if options.map:
        if not options.kept:
            if not options.resume:
                MAP.unlink(missing_ok=True)
            make_map(options.cores)
        print("\n".join(show_map()))
        return
    names = [*BASELINES, *CHUNKS, *options.also, OURS]
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
