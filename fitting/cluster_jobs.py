"""Jobs of a shared cluster: a ridge correction of a roofline of totals, and one of n times one GPU."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from fitting.ridge import Vector, design, robust, selected
from stallwise.model.compute.cluster_job import (
    ClusterJobSetup,
    exchange_s,
    features,
    log_exchange,
    log_offset,
    log_speed,
    several_features,
)

_SCALE, _SEVERAL_SCALE = 0.15, 0.2
_USUAL_RATE, _RATE_MAY_DIFFER = 3e9, 0.7  # bytes per second, and the part by which a GPU's differ
_HIDDEN = 1.5


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


def _single(name: str) -> bool:
    """Whether a feature tells pairs apart."""
    return "|" in name.partition("×")[0]


def fit_jobs(setups: Sequence[ClusterJobSetup], log_speeds: Vector) -> dict[str, float]:
    """Weights of one GPU, then of several over the one that was measured, or predicted where it was not."""
    single = [(s, y) for s, y in zip(setups, log_speeds, strict=True) if s.gpus == 1]
    offset = np.array([log_offset(s) for s, _ in single])
    target = np.array([y for _, y in single]) - offset
    found = design([features(s) for s, _ in single], penalty)
    penalties = selected(found, target, [_pair(s) for s, _ in single], _single, _SCALE)
    beta = robust(found.values, target, penalties, scale=_SCALE)
    weights = dict(zip(found.names, beta.tolist(), strict=True))
    several = [(s, y) for s, y in zip(setups, log_speeds, strict=True) if s.gpus > 1]
    return weights | _fit_several(several, dict(single), weights) if several else weights


def _fit_several(
    several: Sequence[tuple[ClusterJobSetup, float]],
    measured: dict[ClusterJobSetup, float],
    weights: dict[str, float],
) -> dict[str, float]:
    """Rates of the exchange, then weights of what they leave unexplained."""
    setups = [s for s, _ in several]
    ones = np.array([_one(s, measured, weights) for s in setups])
    left = np.array([y - np.log(s.gpus) for s, y in several]) - ones
    rates = _rates(setups, ones, left)
    physics = np.array([log_exchange(s, rates, one) for s, one in zip(setups, ones.tolist(), strict=True)])
    found = design([several_features(s) for s in setups], several_penalty)
    penalties = selected(found, left - physics, [_pair(s) for s in setups], _single, _SEVERAL_SCALE)
    beta = robust(found.values, left - physics, penalties, scale=_SEVERAL_SCALE)
    return rates | dict(zip(found.names, beta.tolist(), strict=True))


def _rates(setups: Sequence[ClusterJobSetup], ones: Vector, left: Vector) -> dict[str, float]:
    """Bytes per second of the exchange by placement, and by GPU in each held near it; how far it hides."""
    places = sorted({s.placement for s in setups})
    pairs = sorted({f"{s.placement}|{s.device.name}" for s in setups})
    place = np.array([places.index(s.placement) for s in setups])
    pair = np.array([pairs.index(f"{s.placement}|{s.device.name}") for s in setups]) + len(places)
    keep = np.array([s.totals is not None for s in setups])
    once = np.array([exchange_s(s) or 0.0 for s in setups]) * np.exp(ones)
    start = np.r_[np.full(len(places), np.log(_USUAL_RATE)), np.zeros(len(pairs)), np.log(_HIDDEN)]
    wide = np.r_[np.full(len(places), 1.0), np.full(len(pairs), _RATE_MAY_DIFFER), 0.3]

    def off(logs: Vector) -> Vector:
        ratio = once * np.exp(-logs[place] - logs[pair])
        errors = -np.log1p(ratio ** np.exp(logs[-1])) / np.exp(logs[-1]) - left
        return np.r_[(errors / _SEVERAL_SCALE)[keep], (logs - start) / wide]

    logs = least_squares(off, start, loss="soft_l1", max_nfev=60).x
    found = {f"rate:{name}": float(np.exp(logs[i])) for i, name in enumerate(places)}
    for i, name in enumerate(pairs, start=len(places)):
        found[f"rate:{name}"] = float(np.exp(logs[i])) * found[f"rate:{name.partition('|')[0]}"]
    return {**found, "hidden": float(np.exp(logs[-1]))}


def _pair(setup: ClusterJobSetup) -> str:
    return f"{setup.job}|{setup.device.name}"


def _one(setup: ClusterJobSetup, measured: dict[ClusterJobSetup, float], weights: dict[str, float]) -> float:
    alone = replace(setup, gpus=1)
    return measured[alone] if alone in measured else log_speed(alone, weights)


def predict_jobs(weights: dict[str, float], setups: Sequence[ClusterJobSetup]) -> Vector:
    """Logarithm of batches per second."""
    return np.array([log_speed(setup, weights) for setup in setups])
