"""A measured step taken to another GPU: split by what limits it, each part at the rate of its limit.

    t(target) = t(source) · [φ_c R_s/R_t + φ_m B_s/B_t + φ_l L_s/L_t]

φ are the parts of the step that arithmetic, memory and starting kernels take on the source, as far as FLOPs, bytes
and the number of kernels tell; they add up to 1, so that whatever the physics misses is scaled like the rest.
R is attainable arithmetic, B bandwidth, L how fast kernels are started (the host's, taken as the same). Without a
measurement the same sum stands alone and is much less certain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute import Device, bounded_step_s, matrix_rate

_BEST = 0.95  # of the peak; nothing in the measurements attains more
_LIKE_YEARS = 4
_PASSES_OVER_ACTIVATIONS = 3.0  # written, read for backward, gradients written and read


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step of one GPU does, as counted in a run."""

    flop: float
    """Forward and backward."""
    activation_bytes: float
    """Kept for backward."""
    parameters: float
    kernels: float
    """Started in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """Seconds of a step by what limits it."""

    arithmetic_s: float
    memory_s: float
    start_s: float

    @property
    def whole_s(self) -> float:
        """What the GPU is busy for, or the host where starting kernels takes longer."""
        return max(self.arithmetic_s + self.memory_s, self.start_s)


def parts(work: StepWork, device: Device, constants: Mapping[str, float]) -> StepParts:
    """The step by physics alone."""
    moved = constants["moved"] * _PASSES_OVER_ACTIVATIONS * work.activation_bytes + 16 * work.parameters
    fraction = constants["matrix_fraction" if device.has_matrix_units else "fraction"]
    return StepParts(
        arithmetic_s=work.flop / (fraction * matrix_rate(device, constants)),
        memory_s=moved / device.memory_bytes_per_s,
        start_s=work.kernels * constants["kernel_s"],
    )


def transferred_s(
    measured_s: float, work: StepWork, source: Device, target: Device, constants: Mapping[str, float]
) -> float:
    """`measured_s` of compute on `source`, on `target`."""
    scaled_s = measured_s * math.exp(log_ratio(work, source, target, constants))
    return bounded_step_s(scaled_s, work.flop, target, _BEST)


def log_ratio(work: StepWork, source: Device, target: Device, constants: Mapping[str, float]) -> float:
    """Logarithm of the time on `target` over that on `source`, without the bound."""
    return log_s(work, target, constants) - log_s(work, source, constants)


def reach(source: Device, target: Device) -> str:
    """How far a step is taken: `near` between GPUs of like years and like units, else `far`."""
    years = abs((source.year or target.year or 0) - (target.year or source.year or 0))
    return "near" if years <= _LIKE_YEARS and source.has_matrix_units == target.has_matrix_units else "far"


def log_s(work: StepWork, device: Device, constants: Mapping[str, float]) -> float:
    """Logarithm of the seconds of a step: physics and the effect of the GPU."""
    return math.log(parts(work, device, constants).whole_s) + effect(device, constants)


def effect(device: Device, constants: Mapping[str, float]) -> float:
    """How much slower (a logarithm) the GPU, or else its architecture, was found to be than physics says."""
    return constants.get(own_effect(device), constants.get(effect_name(device), 0.0))


def effect_name(device: Device) -> str:
    """The constant of an architecture, of its matrix units apart from its vector units."""
    return f"effect:{_units(device)}:{device.architecture}"


def own_effect(device: Device) -> str:
    """The constant of a single GPU, likewise."""
    return f"gpu:{_units(device)}:{device.name}"


def _units(device: Device) -> str:
    return "matrix" if device.has_matrix_units else "vector"
