"""Work per joule, and what each GPU attains in large FP32 products.

Outside the matrix units: the trend of FP32 per watt over all GPUs of the catalog (it doubles every four years), at
the year of the generation. Matrix units: the lower quartile of FP16 per watt among the generation's parts that run
FP16 at full rate. Both come from listed figures alone, so that no measurement that is
scored has set them.

From NeuSight's kernels, per GPU: the rate that a fifth of the products above 5·10¹⁰ flop exceed. For a GPU whose
kernels were not measured two constants say what it attains, fitted on the others: a fraction of the peak and how far
the trend is off.
"""

import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from scipy.optimize import least_squares

from fitting.ridge import Vector
from stallwise.analysis.compute import architecture_of
from stallwise.hardware.catalog import Catalog
from stallwise.model.compute.roofline import attainable_flop_per_s

_LARGE = 5e10
_BEST = 0.8
_FULL_RATE = 0.9  # of the generation's highest FP16 over FP32; GeForce is held to a half of it
_UNITS = 2.5  # times FP32: below it halves run on the vector units
_YEAR = 2018
# Fraction of the peak and factor on the trend: plausible values, and by what part each may differ.
_USUAL, _MAY_DIFFER = (0.92, 1.0), (0.05, 0.3)
_NOISE = 0.1


def per_joule(catalog: Catalog) -> dict[str, float]:
    """Flop per joule: `vector:ARCH` and `matrix:ARCH`, and of a generation nobody knows."""
    listed = [gpu for gpu in catalog.gpus.values() if gpu.tdp_w and gpu.fp32_flop_per_s and gpu.year]
    years = np.array([gpu.year for gpu in listed], dtype=float) - _YEAR
    logs = np.log([(gpu.fp32_flop_per_s or 1.0) / (gpu.tdp_w or 1.0) for gpu in listed])
    slope, level = np.polyfit(years, logs, 1)
    names = np.array([architecture_of(gpu) for gpu in listed])
    found = {"vector:": float(np.exp(level + slope * years.max()))}
    for name in sorted(set(names.tolist())):
        found[f"vector:{name}"] = float(np.exp(level + slope * np.median(years[names == name])))
        halves = [gpu for gpu in listed if gpu.fp16_flop_per_s and architecture_of(gpu) == name]
        times = np.array([(gpu.fp16_flop_per_s or 0.0) / (gpu.fp32_flop_per_s or 1.0) for gpu in halves])
        if len(times) and times.max() > _UNITS:
            per_watt = np.array([(gpu.fp16_flop_per_s or 0.0) / (gpu.tdp_w or 1.0) for gpu in halves])
            found[f"matrix:{name}"] = float(np.quantile(per_watt[times > _FULL_RATE * times.max()], 0.25))
    found["matrix:"] = float(np.median([value for key, value in found.items() if key.startswith("matrix:")]))
    return found


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


def usual_fraction(parts: Mapping[str, float], catalog: Catalog) -> tuple[float, float]:
    """Fraction of the peak, and factor on the trend, that these GPUs' kernels show."""
    trend = per_joule(catalog)
    cards = [catalog.gpus[name] for name in sorted(parts)]

    def off(logs: Vector) -> Vector:
        fraction, factor = np.exp(logs)
        found = [
            attainable_flop_per_s(peak, gpu.tdp_w or 250.0, factor * trend[f"vector:{architecture_of(gpu)}"], fraction)
            / peak
            for gpu in cards
            if (peak := gpu.fp32_flop_per_s or 1.0)
        ]
        errors = np.log(found) - np.log([parts[gpu.name] for gpu in cards])
        return np.r_[errors / _NOISE, (logs - np.log(_USUAL)) / _MAY_DIFFER]

    fraction, factor = np.exp(least_squares(off, np.log(_USUAL), loss="soft_l1").x)
    return float(fraction), float(factor)
