"""Image networks: non-negative coefficients of the kinds of work, then a ridge correction, then single networks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fitting.power import per_joule
from fitting.ridge import Vector, design, robust, selected
from fitting.tables import shipped_catalog
from stallwise.model.compute.host import device_alone_s, joined_s
from stallwise.model.compute.image import ImageSetup, demand, features, host_s
from stallwise.model.compute.roofline import ComputeDemand, shares, step_s

Coefficients = dict[str, dict[str, float]]
_SCALE = 0.03  # residuals beyond this count less
_ALONE = 1.0  # rows of one network that its own effect is held back by
_PENALTIES = {
    "family": (3.0, 6.0),
    "branch": (3.0, 6.0),
    "software": (0.5, 10.0),
    "layout": (0.5, 5.0),
    "gpu": (1.0, 15.0),
}


@dataclass(frozen=True)
class ImageFit:
    """Coefficients by layout, and weights of the correction."""

    coefficients: Coefficients
    weights: dict[str, float]


def penalty(name: str) -> float:
    """Plain values 2, the intercept next to nothing, labels by kind; single networks come later."""
    if name == "1":
        return 0.01
    if name.startswith("network="):
        return np.inf
    kind = name.partition("=")[0]
    return _PENALTIES[kind]["×" in name] if kind in _PENALTIES else 2.0


def _labelled(name: str) -> bool:
    """Whether a feature tells families or GPUs apart."""
    return name.startswith(("family=", "branch=", "gpu="))


def demands(setups: Sequence[ImageSetup]) -> list[ComputeDemand]:
    """What every set-up asks of its GPU."""
    listed = per_joule(shipped_catalog())
    return [demand(setup, listed) for setup in setups]


def fit(setups: Sequence[ImageSetup], asked: Sequence[ComputeDemand], log_s: Vector) -> ImageFit:
    """Physics, correction, networks, of what is left for the device beside the host."""
    log_s = np.array([np.log(device_alone_s(float(np.exp(y)), host_s(s))) for s, y in zip(setups, log_s, strict=True)])
    coefficients = _coefficients(setups, asked, log_s)
    physics = np.array([_physics(s, d, coefficients) for s, d in zip(setups, asked, strict=True)])
    rows = [_features(s, d, coefficients) for s, d in zip(setups, asked, strict=True)]
    found = design(rows, penalty)
    penalties = selected(found, log_s - physics, [s.family for s in setups], _labelled, _SCALE, count=3)
    beta = robust(found.values, log_s - physics, penalties, scale=_SCALE)
    weights = dict(zip(found.names, beta.tolist(), strict=True))
    residual = log_s - physics - found.values @ beta
    return ImageFit(coefficients, weights | _single(setups, residual))


def predict(fitted: ImageFit, setups: Sequence[ImageSetup], asked: Sequence[ComputeDemand]) -> Vector:
    """Logarithm of the seconds of one image."""
    found = []
    for setup, wanted in zip(setups, asked, strict=True):
        row = _features(setup, wanted, fitted.coefficients)
        value = sum(fitted.weights.get(name, 0.0) * x for name, x in row.items())
        device_s = float(np.exp(_physics(setup, wanted, fitted.coefficients) + value))
        found.append(np.log(joined_s(device_s, host_s(setup))))
    return np.array(found)


def _coefficients(setups: Sequence[ImageSetup], asked: Sequence[ComputeDemand], log_s: Vector) -> Coefficients:
    """Least squares of relative errors by layout, alternating with one factor per software; outliers count less."""
    kinds = sorted({kind for wanted in asked for kind in wanted.seconds})
    work = np.array([[wanted.seconds.get(kind, 0.0) for kind in kinds] for wanted in asked])
    layouts = np.array([setup.layout for setup in setups])
    software = np.array([setup.software for setup in setups])
    factor, physics = np.zeros(len(log_s)), np.zeros(len(log_s))
    found: Coefficients = {}
    for _ in range(3):
        for layout in sorted(set(layouts)):
            here = layouts == layout
            best = _relative(work[here] / np.exp(log_s - factor)[here][:, None])
            found[layout] = dict(zip(kinds, best.tolist(), strict=True))
            physics[here] = np.log(work[here] @ best)
        for name in set(software):
            factor[software == name] = np.median((log_s - physics)[software == name])
    return found


def _relative(ratios: Vector) -> Vector:
    weights = np.ones(len(ratios))
    for _ in range(3):
        best, _ = nnls(ratios * weights[:, None], weights)
        weights = 1 / np.sqrt(1 + ((ratios @ best - 1) / 0.3) ** 2)
    return np.asarray(best)


def _physics(setup: ImageSetup, wanted: ComputeDemand, coefficients: Coefficients) -> float:
    return float(np.log(step_s(wanted, coefficients.get(setup.layout, coefficients["nchw"]))))


def _features(setup: ImageSetup, wanted: ComputeDemand, coefficients: Coefficients) -> dict[str, float]:
    return features(setup, shares(wanted, coefficients.get(setup.layout, coefficients["nchw"])))


def _single(setups: Sequence[ImageSetup], residual: Vector) -> dict[str, float]:
    """What is left of each network, and of it in each layout, drawn towards zero by how few rows say so."""
    found: dict[str, float] = {}
    for labels in (lambda s: f"network={s.network}", lambda s: f"network={s.network}×layout={s.layout}"):
        names = np.array([labels(setup) for setup in setups])
        order, where = np.unique(names, return_inverse=True)
        clipped = np.clip(residual, -0.5, 0.5)
        effect = np.bincount(where, clipped) / (np.bincount(where) + _ALONE)
        residual = residual - effect[where]
        found |= {name: value for name, value in zip(order.tolist(), effect.tolist(), strict=True) if abs(value) > 0.01}
    return found
