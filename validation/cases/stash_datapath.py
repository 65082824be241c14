"""DS-Analyzer's what-if rates, cores per GPU, and coordinated preparation."""

import csv
from pathlib import Path

from validation.formulas import enough_cores, fetch_rate, hit_needed, prep_stall, staging_bytes
from validation.harness import Case, data_file

_RATES = "stash/synergy_cpu_mem_sensitivity_1xV100.csv"
_KNEE = (
    "The fewest cores with at least 98 % of the best throughput in msr-fiddle/synergy's matrices, all data in memory. "
    "The matrices are rounded and entered by hand."
)


def _throughput(folder: Path, model: str) -> dict[int, float]:
    """By cores per GPU, at the largest memory."""
    with data_file(folder, _RATES).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    largest = max(float(row["mem_per_gpu_GB"]) for row in rows)
    return {
        int(row["cpus_per_gpu"]): float(row["throughput_rel_to_3cpu"])
        for row in rows
        if float(row["mem_per_gpu_GB"]) == largest
    }


def _knee(model: str, name: str, low: int, high: int, reason: str | None = None) -> Case:
    """A published range of cores is its middle, give or take its half."""
    return Case(
        id="stash-11",
        case=f"cores per V100 that hide the preparation of {name} (published: {low} to {high})",
        source="Mohan et al., VLDB 2021, 4.3.3",
        method=_KNEE,
        published=(low + high) / 2,
        unit="cores",
        tolerance=(high - low) / 2,
        compute=lambda folder: float(enough_cores(_throughput(folder, model))),
        reason=reason,
    )


def _largest_gap(_: Path) -> float:
    """F(x) over a table of x and rates, against reading sample by sample; x back from F; the ends; monotone."""
    gaps = []
    for cache_rate, storage_rate in ((20_000.0, 530.0), (5_000.0, 4_000.0), (900.0, 15.0)):
        rates = []
        for hits in range(0, 1001, 25):
            seconds = sum(1 / cache_rate if n < hits else 1 / storage_rate for n in range(1000))
            rates.append(fetch_rate(hits / 1000, cache_rate, storage_rate))
            gaps.append(abs(rates[-1] * seconds / 1000 - 1))
            gaps.append(abs((hit_needed(rates[-1], cache_rate, storage_rate) or 0.0) - hits / 1000))
        gaps += [abs(rates[0] / storage_rate - 1), abs(rates[-1] / cache_rate - 1)]
        assert rates == sorted(rates)
    return max(gaps)


def _resnet18_stall_percent(folder: Path) -> float:
    rates = _throughput(folder, "res18")
    return 100 * prep_stall(rates[3], max(rates.values()))


CASES = (
    Case(
        id="stash-10",
        case="largest gap of F(x) and of x back from F to reading sample by sample",
        source="Mohan et al., VLDB 2021, 5.1",
        method="Three pairs of rates, x from 0 to 1 in steps of 0.025; F must rise with x.",
        published=0.0,
        unit="",
        tolerance=1e-9,
        compute=_largest_gap,
    ),
    _knee("res50", "ResNet-50", 3, 4),
    _knee("mobilenet", "MobileNet", 6, 6),
    _knee("res18", "ResNet-18", 12, 24, reason="the source's matrix levels off at 9 cores"),
    _knee("alexnet", "AlexNet", 12, 24),
    _knee("shufflenet", "ShuffleNet", 12, 24),
    Case(
        id="stash-12",
        case="prep stall of ResNet-18 with 3 cores per V100",
        source="VLDB 2021, 4.3.3 (preparation helped by the GPU); our input has it on the CPU",
        method="1 - P/G with P the throughput at 3 cores and G the best one of the same matrix.",
        published=50.0,
        unit="%",
        tolerance=10.0,
        compute=_resnet18_stall_percent,
    ),
    Case(
        id="stash-19",
        case="memory for batches prepared once for eight jobs, batch 512",
        source="VLDB 2021, 7.3",
        method="Two batches of 512 × 3 × 224² fp32 values per job.",
        published=5.0,
        unit="GB",
        tolerance=0.5,
        compute=lambda _: staging_bytes(512 * 3 * 224**2 * 4, jobs=8) / 1e9,
    ),
)
