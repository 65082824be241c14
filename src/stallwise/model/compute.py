"""How fast a GPU computes: a roofline whose roofs are what was ever attained, not what is advertised.

A step is a sum over kinds of work, each at the rate of what limits it:

    t = Σ_k c_k · flop_k / R(GPU) + Σ_k c_k · bytes_k / (bandwidth) + c · kernels

R is the peak of the units that do the work (matrix units where the precision has them, else the vector units), bounded
by power: a card with little power for its peak never reaches it (an L4 attains 0.29 of its FP32 peak in large matrix
products, a T4 0.49, a V100 0.96; NeuSight's kernel measurements). The two bounds meet smoothly,

    R = ((f · peak)^-8 + (e · TDP)^-8)^(-1/8)

with f the best fraction of peak attained on the GPU's class and e the work per joule of its generation. The c_k are
fitted on public measurements; c_k = 1 would be perfect. What the sum misses is left to a small linear correction of
its logarithm (`compute_linear`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Precision = Literal["amp", "fp32", "tf32", "fp16", "bf16"]

_MEET = 8.0  # how sharply the two bounds meet

# What a GPU of unknown power is taken to have, per byte/s of memory bandwidth and flop/s of FP32.
_USUAL_TDP_W = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as a model of compute takes it: listed figures for one precision."""

    name: str
    architecture: str
    matrix_flop_per_s: float
    """Dense peak of what multiplies matrices in this precision."""
    vector_flop_per_s: float
    """FP32 outside the matrix units."""
    memory_bytes_per_s: float
    memory_bytes: float
    tdp_w: float = _USUAL_TDP_W
    processors: int | None = None
    """SMs or compute units."""
    year: int | None = None
    consumer: bool = False
    """GeForce and Titan: no peer access over PCIe, slower sustained clocks in dense racks."""
    laptop: bool = False
    link_bytes_per_s: float = 0.0
    """NVLink of one GPU in one direction; 0: none."""
    bridge: bool = False
    """NVLink joins pairs of cards only."""
    host_bytes_per_s: float = 16e9

    @property
    def has_matrix_units(self) -> bool:
        """Whether the precision runs on units of its own."""
        return self.matrix_flop_per_s > 1.2 * self.vector_flop_per_s


def smaller(one: float, other: float) -> float:
    """A minimum that is smooth where the two are alike."""
    return float((one**-_MEET + other**-_MEET) ** (-1 / _MEET))


def attainable_flop_per_s(peak: float, tdp_w: float, flop_per_joule: float, fraction: float = 1.0) -> float:
    """What a GPU sustains: a fraction of its peak, as far as its power goes."""
    return smaller(fraction * peak, flop_per_joule * tdp_w)


def matrix_rate(device: Device, per_joule: Mapping[str, float], fraction: float = 1.0) -> float:
    """Attainable flop/s of matrix products; `per_joule` holds `matrix:ARCH` and `vector:ARCH` in flop per joule."""
    kind = "matrix" if device.has_matrix_units else "vector"
    return attainable_flop_per_s(device.matrix_flop_per_s, device.tdp_w, _per_joule(device, kind, per_joule), fraction)


def vector_rate(device: Device, per_joule: Mapping[str, float]) -> float:
    """Attainable FP32 flop/s outside the matrix units."""
    return attainable_flop_per_s(device.vector_flop_per_s, device.tdp_w, _per_joule(device, "vector", per_joule))


def _per_joule(device: Device, kind: str, per_joule: Mapping[str, float]) -> float:
    return per_joule.get(f"{kind}:{device.architecture}", per_joule[f"{kind}:"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one step asks of a GPU: seconds it would take at the attainable rates, by kind of work."""

    seconds: Mapping[str, float]

    def scaled(self, coefficients: Mapping[str, float]) -> dict[str, float]:
        """Each kind times its coefficient; a kind nobody fitted counts as it is."""
        return {kind: coefficients.get(kind, 1.0) * value for kind, value in self.seconds.items()}


def step_s(demand: Demand, coefficients: Mapping[str, float]) -> float:
    """The sum of the fitted model."""
    return math.fsum(demand.scaled(coefficients).values())


def shares(demand: Demand, coefficients: Mapping[str, float]) -> dict[str, float]:
    """Part of the step that goes to each kind of work; they add up to 1."""
    scaled = demand.scaled(coefficients)
    whole = math.fsum(scaled.values())
    return {kind: value / whole for kind, value in scaled.items()} if whole > 0 else scaled


def bounded_step_s(step: float, flop: float, device: Device, best_fraction: float) -> float:
    """`step`, or what it takes at the best fraction of peak ever attained where that is longer."""
    return max(step, flop / (best_fraction * device.matrix_flop_per_s))
