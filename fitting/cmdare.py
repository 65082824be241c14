"""The CM-DARE question: step time of a network nobody ran, on two GPUs, from its FLOPs and tensors alone.

    t = s · tensors + c · (FLOPs / 10¹¹)^p · 10¹¹ / peak

Three constants for all GPUs, one whole network left out at a time. Larger networks use a GPU better, which is what the
exponent says (p = 0.74). Li, Walls & Guo, ICDCS 2020, fit FLOPs over peak by a line or a kernel machine.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from fitting.ridge import Vector

_BATCH = 128
_UNIT = 1e11


@dataclass(frozen=True)
class Runs:
    """Measured steps: networks, GPUs, FLOPs of a step, peak, parameter tensors, seconds."""

    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    flop: Vector
    peak: Vector
    tensors: Vector
    seconds: Vector


def runs(folder: Path) -> Runs:
    """260 steps per GPU of 20 networks."""
    with (folder / "transient/cmdare/speed_data/0latency_norm_computation.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))

    def column(name: str) -> Vector:
        return np.array([float(row[name] or 0) for row in rows])

    return Runs(
        networks=tuple(row["Model (temp)"] for row in rows),
        gpus=tuple(row["GPU (temp)"] for row in rows),
        flop=_BATCH * column("Model FLOPs"),
        peak=1e12 * column("GPU TFLOPS"),
        tensors=column("Number of Tensors"),
        seconds=column("Step Time (s)"),
    )


def step_s(logs: Vector, found: Runs, rows: Vector) -> Vector:
    """The formula above."""
    start, scale, power = np.exp(logs)
    work = (found.flop[rows] / _UNIT) ** power * _UNIT / found.peak[rows]
    return np.asarray(start * found.tensors[rows] + scale * work)


def left_out_errors(found: Runs) -> Vector:
    """|prediction / truth - 1| of every row by a fit without its network."""
    names, out = np.array(found.networks), np.zeros(len(found.seconds))
    for name in sorted(set(found.networks)):
        rest, here = np.flatnonzero(names != name), np.flatnonzero(names == name)

        def off(logs: Vector, rest: Vector = rest) -> Vector:
            return np.asarray(np.log(step_s(logs, found, rest) / found.seconds[rest]))

        best = least_squares(off, [-7.0, 0.0, -0.3], loss="soft_l1", f_scale=0.1)
        out[here] = step_s(best.x, found, here)
    return np.abs(out / found.seconds - 1)
