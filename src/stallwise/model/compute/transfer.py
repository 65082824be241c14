"""A measured step on another GPU: divided by what limits it, each part scaled by the rate of its limit.

    t(target) = t(source) · [φ_c R_s/R_t + φ_m B_s/B_t + φ_l L_s/L_t]

φ are the parts of the step that arithmetic, memory and starting kernels take on the source, as far as FLOPs, bytes
and the number of kernels tell; they add up to 1, so that whatever the physics misses is scaled like the rest.
R is attainable arithmetic, B bandwidth, L how fast kernels are started (the host's, taken as the same). Without a
measurement the same sum stands alone and is much less certain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute.roofline import (
    Device,
    Features,
    correction,
    crossed,
    indicators,
    matrix_rate,
)

BEST_FRACTION = 0.95  # of the peak; nothing in the measurements attains more
_LIKE_YEARS = 4
# The figures of a V100, from which logarithms are taken.
_MATRIX, _VECTOR, _BYTES, _MEMORY, _TDP = 1.25e14, 1.57e13, 9e11, 16e9, 300.0
_PASSES_OVER_ACTIVATIONS = 3.0  # written, read for backward, gradients written and read


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Work of one step of one GPU, as counted in a run."""

    flop: float
    """Of forward and backward."""
    activation_bytes: float
    """Kept for backward."""
    parameters: float
    kernels: float
    """Number started in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of a step by what limits them: arithmetic, memory bandwidth, starting kernels."""

    arithmetic_s: float
    memory_s: float
    start_s: float

    @property
    def whole_s(self) -> float:
        """The sum of all three."""
        return self.arithmetic_s + self.memory_s + self.start_s


def step_parts(work: StepWork, device: Device, constants: Mapping[str, float]) -> StepParts:
    """Seconds of the step by physics alone."""
    moved = constants["moved"] * _PASSES_OVER_ACTIVATIONS * work.activation_bytes + 16 * work.parameters
    fraction = constants["matrix_fraction" if device.has_matrix_units else "fraction"]
    return StepParts(
        arithmetic_s=work.flop / (fraction * matrix_rate(device, constants)),
        memory_s=moved / device.memory_bytes_per_s,
        start_s=work.kernels * constants["kernel_s"],
    )


def reach(source: Device, target: Device) -> str:
    """`near` between GPUs of similar years with the same kind of units, else `far`."""
    years = abs((source.year or target.year or 0) - (target.year or source.year or 0))
    return "near" if years <= _LIKE_YEARS and source.has_matrix_units == target.has_matrix_units else "far"


def log_s(work: StepWork, device: Device, constants: Mapping[str, float]) -> float:
    """Logarithm of the seconds of a step: physics and the effect of the GPU."""
    return math.log(step_parts(work, device, constants).whole_s) + gpu_effect(device, constants)


def gpu_effect(device: Device, constants: Mapping[str, float]) -> float:
    """Logarithm of how much slower the GPU is than physics says: by its figures, generation and name.

    A GPU that was never measured has no constant, only the effect of its figures and its generation.
    """
    return correction(constants, effect_features(device))


def effect_features(device: Device) -> Features:
    """Features of the effect, separate for matrix and vector units; figures as logarithms over those of a V100."""
    units = "matrix" if device.has_matrix_units else "vector"
    peak = device.matrix_flop_per_s / (_MATRIX if device.has_matrix_units else _VECTOR)
    values = {
        "slope:peak": math.log(peak),
        "slope:bytes": math.log(device.memory_bytes_per_s / _BYTES),
        "slope:tdp": math.log(device.tdp_w / _TDP),
        "slope:memory": math.log(device.memory_bytes / _MEMORY),
        "slope:consumer": float(device.consumer),
        "slope:laptop": float(device.laptop),
    }
    return {
        **values,
        **crossed((units,), values),
        **indicators(f"effect:{units}:{device.architecture}", f"gpu:{units}:{device.name}", f"units:{units}"),
    }
