"""Many nodes: what of n times the fewest nodes measured is left (NVIDIA's reference READMEs, InfiniBand).

Such jobs keep the batch of an update while the fleet grows, so that every GPU does less between two updates, and what
an update takes whatever the fleet (exchange of gradients, optimizer) weighs more:

    t(n) = (t(m) - x) · w + x,   w = B(n)/B(m) · m/n,   log efficiency = log(t(m) · w / t(n)) + d · log₂(n/m)

with B the batch of an update, x its seconds by job, d the loss per doubling that is left. Both are medians, x over
all pairs of fleets of several nodes; a job nobody saw elsewhere has the median x of all.
"""

import csv
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SAME = (
    "framework", "model", "task", "system", "gpu", "gpu_mem_gb", "precision", "xla", "batch_per_gpu_as_printed",
    "seq_len", "unit",
)  # fmt: skip
_LESS = 0.9  # of the work between updates, below which x can be told


@dataclass(frozen=True)
class Grown:
    """One job on two fleets of one system."""

    job: str
    gpu: str
    nodes: int
    """Of the smaller fleet."""
    doublings: float
    less: float
    """w above."""
    few_s: float
    """Of an update on the smaller fleet."""
    log_efficiency: float

    @property
    def update_s(self) -> float:
        """The x that gives what was measured."""
        many_s = self.few_s * self.less / np.exp(self.log_efficiency)
        return max(0.0, float(many_s - self.few_s * self.less) / (1 - self.less))


def grown(folder: Path) -> tuple[list[Grown], list[Grown]]:
    """Fleets of several nodes over the smallest one measured of at least 8 GPUs; and all pairs of several nodes."""
    same: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with (folder / "throughput/nvidia_deeplearningexamples.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["throughput"] and row["nodes"] and not row["flag"] and int(row["n_gpus"]) >= 8:
                same.setdefault(tuple(row[name] for name in _SAME), []).append(row)
    judged, pairs = [], []
    for rows in same.values():
        ordered = sorted(rows, key=lambda row: int(row["n_gpus"]))
        judged += [_pair(ordered[0], row) for row in ordered[1:] if _several(row) and _size(row) > _size(ordered[0])]
        pairs += [_pair(a, b) for a, b in itertools.combinations(filter(_several, ordered), 2) if _size(b) > _size(a)]
    return judged, pairs


def _several(row: dict[str, str]) -> bool:
    return int(row["nodes"]) > 1


def _size(row: dict[str, str]) -> int:
    return int(row["n_gpus"])


def _pair(few: dict[str, str], many: dict[str, str]) -> Grown:
    growth = _size(many) / _size(few)
    printed = re.search(r"Global Batch Size=(\d+)", many["variant"])
    each = float(many["batch_per_gpu_as_printed"] or 1.0)
    batch, few_batch = (float(printed[1]),) * 2 if printed else (each * _size(many), each * _size(few))
    return Grown(
        job=f"{many['framework']}|{many['model']}",
        gpu=many["gpu"],
        nodes=int(few["nodes"]),
        doublings=float(np.log2(growth)),
        less=batch / few_batch / growth,
        few_s=few_batch / float(few["throughput"]),
        log_efficiency=float(np.log(float(many["throughput"]) / float(few["throughput"]) / growth)),
    )


@dataclass(frozen=True)
class Growth:
    """What was learned of other rows."""

    update_s: dict[str, float]
    """By job; "" for any other."""
    per_doubling: float

    def log_efficiency(self, row: Grown) -> float:
        """What is left of n times the smaller fleet."""
        x = min(self.update_s.get(row.job, self.update_s[""]), 0.5 * row.few_s)
        left = row.few_s * row.less / ((row.few_s - x) * row.less + x)
        return float(np.log(left)) + self.per_doubling * row.doublings


def learned(pairs: Sequence[Grown]) -> Growth:
    """Medians: seconds of an update by job, then the loss per doubling that they leave."""
    told = [row for row in pairs if row.less < _LESS]
    found = {job: float(np.median([r.update_s for r in told if r.job == job])) for job in {r.job for r in told}}
    found[""] = float(np.median([row.update_s for row in told])) if told else 0.0
    plain = Growth(found, 0.0)
    left = [(row.log_efficiency - plain.log_efficiency(row)) / row.doublings for row in pairs]
    return Growth(found, min(0.0, float(np.median(left))) if left else 0.0)
