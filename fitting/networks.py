"""Known jobs on other GPUs, and on several: ridge corrections of a roofline."""

from collections.abc import Sequence

import numpy as np

from fitting.ridge import Vector, design, robust
from stallwise.model import compute_network, compute_scaling
from stallwise.model.compute_network import NetworkSetup
from stallwise.model.compute_scaling import ScalingSetup

Weights = dict[str, float]
_SCALE = 0.1


def network_penalty(name: str) -> float:
    """Shared slopes are freer than those of one network, those freer than a network's in one precision."""
    crossed = "×" in name
    if name.startswith("job="):
        return 10.0 if crossed else 1.0 if name.count("|") == 2 else 1e-3
    if name.startswith("gpu="):
        return 4.0 if "|" not in name else 8.0
    kinds = {"net=": 3.0, "precision=": 3.0, "software=": 2.0 if crossed else 0.01, "arch=": 3.0}
    return next((value for kind, value in kinds.items() if name.startswith(kind)), 3.0)


def fit_networks(setups: Sequence[NetworkSetup], log_speed: Vector) -> Weights:
    """Weights of the throughput of one GPU."""
    offset = np.array([compute_network.roof(setup.device, 1.0) for setup in setups])
    found = design([compute_network.features(setup) for setup in setups], network_penalty)
    beta = robust(found.values, log_speed - offset, found.penalties, scale=_SCALE)
    return dict(zip(found.names, beta.tolist(), strict=True))


def predict_networks(weights: Weights, setups: Sequence[NetworkSetup]) -> Vector:
    """Logarithm of the throughput of one GPU."""
    return np.array([compute_network.log_speed(setup, weights) for setup in setups])


def scaling_penalty(name: str) -> float:
    """The more a label tells apart, the closer to zero."""
    if "×" not in name:
        return 1.0
    label = name.partition("×")[0]
    return {0: 2.0, 1: 6.0}.get(label.count("|"), 12.0) * (2.0 if label.startswith("gpu=") else 1.0)


def fit_scaling(setups: Sequence[ScalingSetup], log_efficiency: Vector) -> Weights:
    """Weights of what is left of n times one GPU."""
    found = design([compute_scaling.features(setup) for setup in setups], scaling_penalty)
    beta = robust(found.values, log_efficiency, found.penalties, scale=_SCALE)
    return dict(zip(found.names, beta.tolist(), strict=True))


def predict_scaling(weights: Weights, setups: Sequence[ScalingSetup]) -> Vector:
    """Logarithm of the efficiency."""
    return np.array([compute_scaling.log_efficiency(setup, weights) for setup in setups])
