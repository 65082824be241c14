"""Known jobs on other GPUs, and on several: ridge corrections of a roofline."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import least_squares

from fitting.all_reduces import all_reduces, fit_links
from fitting.ridge import Vector, design, robust, selected
from stallwise.model.compute import known_jobs
from stallwise.model.compute.known_jobs import NetworkSetup, ScalingSetup, link_kind

Weights = dict[str, float]
_SCALE = 0.1
# How much of an exchange is exposed beside one that hides by `hidden` alone, and how much more as GPUs share a bus.
_KINDS = ("nvlink", "bridge", "pcie", "shared pcie")
_EXPOSED_MAY_DIFFER = 0.3
_EXCHANGE = {"exposed_crowding": (0.9, 0.05), "hidden": (1.5, 0.05)}


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
    offset = np.array([known_jobs.roof(setup.device, 1.0) for setup in setups])
    found = design([known_jobs.network_features(setup) for setup in setups], network_penalty)
    penalties = selected(found, log_speed - offset, [s.device.name for s in setups], _single, _SCALE)
    beta = robust(found.values, log_speed - offset, penalties, scale=_SCALE)
    return dict(zip(found.names, beta.tolist(), strict=True))


def _single(name: str) -> bool:
    """Whether a feature tells single GPUs or jobs apart."""
    return name.startswith(("gpu=", "job=", "link=")) and ("|" in name or "×" in name)


def predict_networks(weights: Weights, setups: Sequence[NetworkSetup]) -> Vector:
    """Logarithm of the throughput of one GPU."""
    return np.array([known_jobs.log_speed(setup, weights) for setup in setups])


def scaling_penalty(name: str) -> float:
    """The more a label tells apart, the closer to zero."""
    if "×" not in name:
        return 1.0
    label = name.partition("×")[0]
    return {0: 2.0, 1: 6.0}.get(label.count("|"), 12.0) * (2.0 if label.startswith("gpu=") else 1.0)


def fit_scaling(setups: Sequence[ScalingSetup], log_efficiency: Vector) -> Weights:
    """Constants of the exchange, then weights of what is left of n times one GPU."""
    physics = usual_batches(setups)
    physics |= _exchange(setups, log_efficiency, physics)
    offset = np.array([known_jobs.log_exchange(setup, physics) for setup in setups])
    found = design([known_jobs.scaling_features(setup, physics) for setup in setups], scaling_penalty)
    penalties = selected(found, log_efficiency - offset, [s.device.name for s in setups], _single, _SCALE)
    beta = robust(found.values, log_efficiency - offset, penalties, scale=_SCALE)
    return physics | dict(zip(found.names, beta.tolist(), strict=True))


def usual_batches(setups: Sequence[ScalingSetup]) -> Weights:
    """Samples per GiB of memory, by job."""
    found: dict[str, list[float]] = {}
    for s in setups:
        if s.batch:
            found.setdefault(f"usual_batch:{s.network}|{s.precision}", []).append(
                s.batch / s.device.memory_bytes * 2**30
            )
    return {name: float(np.median(values)) for name, values in found.items()}


def _exchange(setups: Sequence[ScalingSetup], log_efficiency: Vector, usual: Weights) -> Weights:
    """What links attain, how far an exchange is exposed by kind of link, and how far it hides."""
    links = fit_links(all_reduces())
    ratios = [known_jobs.exchange_ratio(setup, usual) for setup in setups]
    keep = np.array([ratio is not None for ratio in ratios])
    ring = np.array([known_jobs.exchange_part(s, r or 0.0, links) for s, r in zip(setups, ratios, strict=True)])[keep]
    kinds = np.array([_KINDS.index(link_kind(s)) for s in setups])[keep]
    pairs = np.array([s.gpus / 2 for s in setups])[keep]
    start = np.log([*(1.0 for _ in _KINDS), *(value for value, _ in _EXCHANGE.values())])
    wide = np.array([*(_EXPOSED_MAY_DIFFER for _ in _KINDS), *(spread for _, spread in _EXCHANGE.values())])

    def off(logs: Vector) -> Vector:
        crowding, hidden = np.exp(logs[len(_KINDS) :])
        r = ring * np.where(kinds == 0, 1.0, pairs**crowding) * np.exp(logs[kinds])
        errors = -np.log1p(r**hidden) / hidden - log_efficiency[keep]
        return np.r_[errors / _SCALE, (logs - start) / wide]

    best = np.exp(least_squares(off, start, loss="soft_l1", max_nfev=60).x).tolist()
    return links | dict(zip([*(f"exposed:{kind}" for kind in _KINDS), *_EXCHANGE], best, strict=True))


def predict_scaling(weights: Weights, setups: Sequence[ScalingSetup]) -> Vector:
    """Logarithm of the efficiency."""
    return np.array([known_jobs.log_efficiency(setup, weights) for setup in setups])
