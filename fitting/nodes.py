"""Many nodes: what of n times one node, or of the fewest nodes measured, is left (NVIDIA's reference READMEs).

Machines with InfiniBand lose little; the one constant that is fitted is the loss per doubling of nodes.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SAME = ("framework", "model", "gpu", "gpu_mem_gb", "precision", "xla", "batch_per_gpu_as_printed", "seq_len", "unit")


@dataclass(frozen=True)
class Grown:
    """One job on more GPUs than its smallest measured fleet."""

    job: str
    doublings: float
    log_efficiency: float


def grown(folder: Path) -> list[Grown]:
    """Rows of several nodes over the smallest fleet of the same set-up that fills a node (at least 8 GPUs)."""
    same: dict[tuple[str, ...], list[tuple[int, int, float]]] = {}
    with (folder / "throughput/nvidia_deeplearningexamples.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["throughput"] and row["nodes"] and not row["flag"] and int(row["n_gpus"]) >= 8:
                key = tuple(row[name] for name in _SAME)
                same.setdefault(key, []).append((int(row["n_gpus"]), int(row["nodes"]), float(row["throughput"])))
    found = []
    for key, rows in same.items():
        few, _, base = min(rows)
        for gpus, nodes, speed in rows:
            if nodes > 1 and gpus > few:
                found.append(
                    Grown("|".join(key[:2]), float(np.log2(gpus / few)), float(np.log(speed / base * few / gpus)))
                )
    return found


def loss_per_doubling(rows: Sequence[Grown]) -> float:
    """Median of log efficiency over doublings."""
    return float(np.median([row.log_efficiency / row.doublings for row in rows])) if rows else 0.0
