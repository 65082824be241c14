"""The transient-server study's runs (ICAC 2019): means, revoked clusters replayed, mixes.

Time and accuracy are held to the printed digits. Money is recomputed: a revoked machine is billed up to its end, the
parameter server on-demand throughout. The introduction's $1.05 bills the server at the transient price (0.041 instead
of 0.143 $/h); every later table does not. Both are kept as they are, as is "6.66 %" for 2 of 32 (6.25 %).

Settled after seeing values: the digit of V13 (two means are cut off, not rounded); in V15 that a revoked machine is
billed its whole uptime (from the begin of training on it would be up to $0.05 less); in V16 that 8-worker runs whose
master went count as unrevoked, which gives our earlier 4.383 steps/s (without them the error is 2.01 %, with 4.387
steps/s).
"""

import csv
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from validation.harness import Case, data_file
from validation.spot_formulas import cost_usd, time_through_losses

_SOURCE = "Li, Walls & Guo, ICAC 2019, cake-lab/transient-deep-learning"
_STEPS = 64_000
_K80, _SERVER, _SERVER_SPOT = 0.256, 0.143, 0.041
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Cluster:
    """One run: its training time, and for each machine its uptime and whether it was revoked."""

    duration_s: float
    cost: float
    uptimes_s: tuple[tuple[float, bool], ...]

    @property
    def revoked(self) -> int:
        """How many of its machines were."""
        return sum(revoked for _, revoked in self.uptimes_s)

    @property
    def began_s(self) -> float:
        """Training begins so long after the machines: longest survivor's uptime less the training time."""
        return max(uptime_s for uptime_s, revoked in self.uptimes_s if not revoked) - self.duration_s


def _rows(folder: Path, name: str) -> list[dict[str, str]]:
    with data_file(folder, f"transient/icac19/training/{name}.csv").open() as file:
        return list(csv.DictReader(file))


@cache
def _clusters(folder: Path, workers: int) -> tuple[Cluster, ...]:
    machines: dict[tuple[str, str], list[tuple[float, bool]]] = {}
    for row in _rows(folder, f"k80_spot/{workers}-spot/vm_data"):
        found = re.search(r"((?:us|europe)-[a-z]+\d-[a-z])-run(\d+)-", row["VM_name"])
        assert found, row["VM_name"]
        machines.setdefault((found[1], found[2]), []).append(
            (float(row["Uptime"]), row["Revoked"].strip() == "Revoked")
        )
    runs = _rows(folder, f"k80_spot/{workers}-spot/agg_data")
    return tuple(
        Cluster(float(run["Duration"]), float(run["Cost"]), tuple(machines[run["Zone"], run["Run"]]))
        for run in runs
        if (run["Zone"], run["Run"]) in machines
    )


def _column(folder: Path, name: str, column: str) -> list[float]:
    return [float(row[column]) for row in _rows(folder, name)]


def _hours(folder: Path, name: str) -> float:
    return statistics.mean(_column(folder, name, "Duration")) / _HOUR_S


def _case(
    row: str, case: str, method: str, published: float, unit: str, tolerance: float, compute: Callable[[Path], float]
) -> Case:
    return Case(
        id=f"spot-{row}", case=case, source=_SOURCE, method=method, published=published, unit=unit, tolerance=tolerance,
        compute=compute,
    )  # fmt: skip


_TABLE = {
    "1 K80 on-demand": ("k80_on_demand/k80-demand/train_data_processed", (3.91, 0.03), (93.07, 0.25)),
    "2 K80 on-demand": ("k80_on_demand/2-demand/agg_data", (1.99, 0.06), (91.90, 0.73)),
    "4 K80 on-demand": ("k80_on_demand/4-demand/agg_data", (0.99, 0.02), (91.20, 1.01)),
    "8 K80 on-demand": ("k80_on_demand/8-demand/agg_data", (0.51, 0.01), (88.40, 2.23)),
    "2 K80 transient": ("k80_spot/2-spot/agg_data", (2.16, 0.50), (91.93, 0.70)),
    "4 K80 transient": ("k80_spot/4-spot/agg_data", (1.05, 0.17), (91.23, 1.30)),
    "8 K80 transient": ("k80_spot/8-spot/agg_data", (0.51, 0.01), (88.79, 1.50)),
    "1 P100 transient": ("p100_v100_spot/p100/agg_data", (1.50, 0.04), (93.11, 0.24)),
    "1 V100 transient": ("p100_v100_spot/v100/agg_data", (1.23, 0.04), (92.98, 0.39)),
}
# The printed digits are rounded, and two of them cut off (0.995 h as 0.99, 1.505 h as 1.50).
_DIGIT = 0.0065


def _table_cases() -> list[Case]:
    found = []
    for name, (file, hours, accuracy) in _TABLE.items():
        for what, column, scale, figures, unit in (
            ("hours", "Duration", 1 / _HOUR_S, hours, "h"),
            ("accuracy", "Accuracy", 100.0, accuracy, "%"),
        ):
            for statistic, figure in zip((statistics.mean, statistics.stdev), figures, strict=True):

                def compute(
                    folder: Path,
                    file: str = file,
                    column: str = column,
                    scale: float = scale,
                    statistic: Callable[..., float] = statistic,
                ) -> float:
                    return scale * statistic(_column(folder, file, column))

                word = "mean" if statistic is statistics.mean else "spread"
                method = "Mean and sample standard deviation over the runs."
                found.append(_case("V13", f"{name}: {what}, {word}", method, figure, unit, _DIGIT, compute))
    return found


def _transient_cost(folder: Path, server_usd_per_h: float) -> float:
    """4 transient K80, mean over the runs, each machine billed for its training time or up to its revocation."""
    return statistics.mean(_billed(cluster, server_usd_per_h) for cluster in _clusters(folder, 4))


def _billed(cluster: Cluster, server_usd_per_h: float = _SERVER) -> float:
    rentals = [(_K80, uptime_s if revoked else cluster.duration_s) for uptime_s, revoked in cluster.uptimes_s]
    return cost_usd([*rentals, (server_usd_per_h, cluster.duration_s)])


def _group(folder: Path, revoked: int) -> list[Cluster]:
    return [cluster for cluster in _clusters(folder, 4) if cluster.revoked == revoked]


def _replayed(folder: Path, workers: int) -> float:
    """Mean relative error in % over the revoked clusters, with the speed per worker of the unrevoked ones."""
    clusters = _clusters(folder, workers)
    calm = [cluster.duration_s for cluster in clusters if not cluster.revoked]
    speed = _STEPS / (workers * statistics.mean(calm))
    errors = []
    for cluster in clusters:
        if cluster.revoked:
            lost = [max(0.0, up - cluster.began_s) if revoked else None for up, revoked in cluster.uptimes_s]
            errors.append(abs(time_through_losses(_STEPS, [speed] * workers, lost) / cluster.duration_s - 1))
    return 100 * statistics.mean(errors)


def _mean(folder: Path, name: str, column: str) -> float:
    return statistics.mean(_column(folder, name, column))


def _calm_k80(folder: Path) -> tuple[float, float]:
    """Hours and dollars of 4 K80 without a revocation."""
    calm = _group(folder, 0)
    return statistics.mean(c.duration_s for c in calm) / _HOUR_S, statistics.mean(map(_billed, calm))


def _mixed_cases() -> list[Case]:
    two_v, one_v = "experiment_mixed_gpu/2v1p1k/agg_data", "experiment_mixed_gpu/1v1p2k/agg_data"
    four_v, four_p = "p100_v100_spot/4v100/agg_data", "p100_v100_spot/4p100/agg_data"
    ratio = "Ratio of means over the runs."
    worst = "experiment_cross_region/2e1c1w-p100/train_data_processed"
    return [
        _case("V17", "(1 K80, 1 P100, 2 V100) faster than 4 K80", ratio, 50, "%", 0.6,
              lambda folder: 100 * (1 - _hours(folder, two_v) / _calm_k80(folder)[0])),
        _case("V17", "(1 K80, 1 P100, 2 V100) dearer than 4 K80", ratio, 17, "%", 0.6,
              lambda folder: 100 * (_mean(folder, two_v, "Cost") / _calm_k80(folder)[1] - 1)),
        _case("V17", "(2 K80, 1 P100, 1 V100) slower than 4 V100", ratio, 28, "%", 0.6,
              lambda folder: 100 * (_hours(folder, one_v) / _hours(folder, four_v) - 1)),
        _case("V17", "(2 K80, 1 P100, 1 V100) cheaper than 4 V100", ratio, 26, "%", 0.6,
              lambda folder: 100 * (1 - _mean(folder, one_v, "Cost") / _mean(folder, four_v, "Cost"))),
        _case("V17", "4 P100 over three regions slower than in one", ratio, 48, "%", 1.0,
              lambda folder: 100 * (_hours(folder, worst) / _hours(folder, four_p) - 1)),
    ]  # fmt: skip


_ONE = "k80_on_demand/k80-demand/train_data_processed"
_REPLAY = "Speed is the sum of the workers that are left; they leave when the logs say so. A replay, not a forecast."
CASES = (
    *_table_cases(),
    _case(
        "V14",
        "4 transient K80 against 1 on-demand: speed-up",
        "Ratio of mean times.",
        3.72,
        "×",
        0.025,
        lambda folder: _hours(folder, _ONE) / _hours(folder, "k80_spot/4-spot/agg_data"),
    ),
    _case(
        "V14",
        "8 transient K80 against 1 on-demand: speed-up",
        "Ratio of mean times; the paper divides 3.91 by 0.51.",
        7.67,
        "×",
        0.025,
        lambda folder: round(_hours(folder, _ONE), 2) / round(_hours(folder, "k80_spot/8-spot/agg_data"), 2),
    ),
    _case(
        "V14",
        "4 transient K80: saving, server at the transient price",
        "The introduction's accounting, 0.041 $/h.",
        62.9,
        "%",
        0.6,
        lambda folder: (
            100 * (1 - _transient_cost(folder, _SERVER_SPOT) / _mean(folder, "k80_on_demand/k80-demand/cost", "Cost"))
        ),
    ),
    _case(
        "V14",
        "4 transient K80: saving, server on-demand",
        "The tables' accounting, 0.143 $/h.",
        59,
        "%",
        0.6,
        lambda folder: (
            100 * (1 - _transient_cost(folder, _SERVER) / _mean(folder, "k80_on_demand/k80-demand/cost", "Cost"))
        ),
    ),
    *(
        case
        for revoked, (count, hours, dollars) in enumerate(((21, 0.976, 1.137), (8, 1.128, 1.184), (2, 1.454, 1.252)))
        for case in (
            _case(
                "V15",
                f"4 K80, {revoked} revoked: clusters",
                "Grouped by revoked machines.",
                count,
                "",
                0,
                lambda folder, r=revoked: float(len(_group(folder, r))),
            ),
            _case(
                "V15",
                f"4 K80, {revoked} revoked: hours",
                "Mean of the group.",
                hours,
                "h",
                0.0006,
                lambda folder, r=revoked: statistics.mean(c.duration_s for c in _group(folder, r)) / _HOUR_S,
            ),
            _case(
                "V15",
                f"4 K80, {revoked} revoked: dollars",
                "Each machine billed to its end, list prices.",
                dollars,
                "$",
                0.005,
                lambda folder, r=revoked: statistics.mean(map(_billed, _group(folder, r))),
            ),
        )
    ),
    *(
        _case(
            "V16",
            f"{workers} K80: revoked clusters replayed, error",
            _REPLAY,
            figure,
            "%",
            0.05,
            lambda folder, n=workers: _replayed(folder, n),
        )
        for workers, figure in ((4, 0.69), (2, 1.42), (8, 2.08))
    ),
    *_mixed_cases(),
)
