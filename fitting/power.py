"""Work per joule by architecture, and what each GPU attains in large FP32 products.

From NeuSight's kernels, per GPU: the rate that a fifth of the products above 5·10¹⁰ flop exceed. Three of the seven
cards are bound by power: P4 (61 Gflop per joule), T4 (58), L4 (133). The others are not, so theirs is only a lower
bound; generations in between follow the same doubling every 3.5 years. For matrix units: the cards of Lambda's and
timm's tables that have little power for their peak (A100 and H100 on PCIe, RTX 6000 Ada, RTX PRO 6000 with 300 W).
"""

import gzip
from pathlib import Path

import numpy as np
import polars as pl

from stallwise.hardware.catalog import Catalog

_G = 1e9
PER_JOULE: dict[str, float] = {
    "vector:": 80 * _G,
    "vector:Kepler": 20 * _G,
    "vector:Maxwell": 30 * _G,
    "vector:Pascal": 60 * _G,
    "vector:Volta": 60 * _G,
    "vector:Turing": 60 * _G,
    "vector:Ampere": 90 * _G,
    "vector:Ampere 8.0": 90 * _G,
    "vector:Ada": 133 * _G,
    "vector:Hopper": 133 * _G,
    "vector:Blackwell": 150 * _G,
    "vector:CDNA": 100 * _G,
    "vector:CDNA 2": 120 * _G,
    "vector:CDNA 3": 220 * _G,
    "matrix:": 800 * _G,
    "matrix:Volta": 500 * _G,
    "matrix:Turing": 500 * _G,
    "matrix:Ampere": 500 * _G,
    "matrix:Ampere 8.0": 1000 * _G,
    "matrix:Ada": 500 * _G,
    "matrix:Hopper": 1300 * _G,
    "matrix:Blackwell": 500 * _G,
    "matrix:Blackwell Ultra": 2000 * _G,
}
_LARGE = 5e10
_BEST = 0.8


def attained(folder: Path, catalog: Catalog) -> dict[str, float]:
    """Part of the FP32 peak that large products attain, by GPU."""
    path = folder / "throughput/neusight_kernels.csv.gz"
    kernels = pl.read_csv(gzip.decompress(path.read_bytes()))
    flop = 2 * pl.col("b") * pl.col("m") * pl.col("n") * pl.col("k")
    large = kernels.filter(pl.col("op") == "linear").with_columns(flop.alias("flop")).filter(pl.col("flop") > _LARGE)
    found = {}
    for name in sorted(set(large["gpu"])):
        rows = large.filter(pl.col("gpu") == name)
        rate = np.quantile((rows["flop"] / rows["latency_ms"]).to_numpy(), _BEST) * 1e3
        found[name] = float(rate / (catalog.gpus[name].fp32_flop_per_s or 1.0))
    return found
