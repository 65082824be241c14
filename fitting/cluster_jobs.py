"""Jobs of a shared cluster: a ridge correction of a roofline of totals, and one of n times one GPU."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fitting.ridge import Vector, design, robust
from stallwise.model.compute_cluster_job import (
    ClusterJobSetup,
    features,
    log_offset,
    log_speed,
    several_features,
)

_SCALE, _SEVERAL_SCALE = 0.15, 0.2


def penalty(name: str) -> float:
    """The more a label tells apart, the closer to zero."""
    label, _, crossed = name.partition("×")
    # What another batch does is the job's own; a job nobody measured keeps to the physics.
    if "=" not in label or (crossed and label.startswith("gpu=")):
        return 20.0
    first = {"job": 0.3, "gpu": 1.0, "source": 0.5}[label.partition("=")[0]]
    return first * 2.5 ** label.count("|") * (2.0 if crossed else 1.0)


def several_penalty(name: str) -> float:
    """Five jobs on three GPUs say little about another pair: labels are held much closer than values."""
    label = name.partition("×")[0]
    return 30.0 * 3.0 ** label.count("|") if "=" in label else 3.0


def fit_jobs(setups: Sequence[ClusterJobSetup], log_speeds: Vector) -> dict[str, float]:
    """Weights of one GPU, then of several over the one that was measured, or predicted where it was not."""
    single = [(s, y) for s, y in zip(setups, log_speeds, strict=True) if s.gpus == 1]
    offset = np.array([log_offset(s) for s, _ in single])
    found = design([features(s) for s, _ in single], penalty)
    beta = robust(found.values, np.array([y for _, y in single]) - offset, found.penalties, scale=_SCALE)
    weights = dict(zip(found.names, beta.tolist(), strict=True))
    measured = dict(single)
    several = [(s, y) for s, y in zip(setups, log_speeds, strict=True) if s.gpus > 1]
    if not several:
        return weights
    left = [y - np.log(s.gpus) - _one(s, measured, weights) for s, y in several]
    found = design([several_features(s) for s, _ in several], several_penalty)
    beta = robust(found.values, np.array(left), found.penalties, scale=_SEVERAL_SCALE)
    return weights | dict(zip(found.names, beta.tolist(), strict=True))


def _one(setup: ClusterJobSetup, measured: dict[ClusterJobSetup, float], weights: dict[str, float]) -> float:
    alone = replace(setup, gpus=1)
    return measured[alone] if alone in measured else log_speed(alone, weights)


def predict_jobs(weights: dict[str, float], setups: Sequence[ClusterJobSetup]) -> Vector:
    """Logarithm of batches per second."""
    return np.array([log_speed(setup, weights) for setup in setups])
