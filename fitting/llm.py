"""Language models: a dozen physical constants by least squares of logarithms, each held near what is plausible."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import least_squares

from fitting.power import per_joule, usual_fraction
from fitting.ridge import Vector
from fitting.tables import shipped_catalog
from stallwise.analysis.compute import device_of
from stallwise.model.compute.llm import LlmSetup, log_step_s
from stallwise.model.compute.roofline import matrix_rate

# Constant: plausible value, and by what part (of its logarithm) it may differ.
_PRIORS: Mapping[str, tuple[float, float]] = {
    "fraction": (0.9, 0.15),
    "narrow_width": (100.0, 0.7),
    "attention": (1.0, 0.3),
    "softmax": (6.0, 0.5),
    "elementwise": (1.0, 0.5),
    "vocabulary": (4.0, 0.5),
    "backward": (1.9, 0.04),
    "experts": (1.15, 0.2),
    "fused_softmax": (0.5, 0.3),
    "fused_elementwise": (0.6, 0.3),
    "fraction:CDNA": (0.75, 0.2),
    "fraction:CDNA 2": (0.75, 0.2),
}
_NOISE = 0.08
_ALONE = 3.0


def fit_llm(setups: Sequence[LlmSetup], log_s: Vector, attained: Mapping[str, float]) -> dict[str, float]:
    """All constants, with those that were not fitted here."""
    fixed = _attaining(attained)
    start = np.log([value for value, _ in _PRIORS.values()])
    wide = np.array([spread for _, spread in _PRIORS.values()])

    def constants(logs: Vector) -> dict[str, float]:
        return {**fixed, **dict(zip(_PRIORS, np.exp(logs).tolist(), strict=True))}

    def off(logs: Vector) -> Vector:
        found = constants(logs)
        errors = np.array([log_step_s(setup, found) for setup in setups]) - log_s
        return np.r_[errors / _NOISE, (logs - start) / wide]

    return constants(least_squares(off, start, loss="soft_l1", max_nfev=40).x)


def _attaining(attained: Mapping[str, float]) -> dict[str, float]:
    """What GPUs attain in large products: by what the measured ones say of peak and power.

    A GPU's own kernels are timed alone, in a loop that heats it; a model's mix is not. Where they were measured the
    mean (of logarithms) of the two is taken.
    """
    catalog = shipped_catalog()
    fraction, factor = usual_fraction(attained, catalog)
    found = {k: (factor if k.startswith("vector:") else 1.0) * value for k, value in per_joule(catalog).items()}
    found["attained:"] = fraction
    for name, part in attained.items():
        device = device_of(catalog.gpus[name], "ieee")
        usual = matrix_rate(device, found, fraction) / device.matrix_flop_per_s
        found[f"attained:{name}"] = float(np.sqrt(part * usual))
    return found


def gpu_effects(setups: Sequence[LlmSetup], residual: Vector) -> dict[str, float]:
    """What is left of each GPU, drawn towards zero by how few rows say so."""
    names = np.array([setup.device.name for setup in setups])
    return {
        f"gpu={name}": float(np.clip(residual[names == name], -0.3, 0.3).sum() / ((names == name).sum() + _ALONE))
        for name in sorted(set(names))
    }


def predict_llm(constants: Mapping[str, float], effects: Mapping[str, float], setups: Sequence[LlmSetup]) -> Vector:
    """Logarithm of the seconds of a step."""
    return np.array([log_step_s(s, constants) + effects.get(f"gpu={s.device.name}", 0.0) for s in setups])
