"""How fast a GPU computes: a roofline with attained rates, not advertised ones.

A step is a sum over kinds of work, each at the rate of what limits it:

    t = Σ_k c_k · flop_k / R(GPU) + Σ_k c_k · bytes_k / (bandwidth) + c · kernels

R is the peak of the units that do the work (matrix units where the precision has them, else the vector units), bounded
by power: a card with little power for its peak never reaches it (an L4 attains 0.29 of its FP32 peak in large matrix
products, a T4 0.49, a V100 0.96; NeuSight's kernel measurements). The two bounds meet smoothly,

    R = ((f · peak)^-8 + (e · TDP)^-8)^(-1/8)

with f the best fraction of peak attained on the GPU's class and e the work per joule of its generation. The c_k are
fitted on public measurements; c_k = 1 would be perfect. What the sum misses is left to a small linear correction of
its logarithm, with features by name. A feature that was never seen has no weight and changes nothing, so an unknown GPU
or network falls back on what it shares with known ones: its figures, its family, in the end the physics alone. Weights
come from a ridge regression in which rarer features are held closer to zero (`fitting/`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MEET = 8.0  # how sharply the two bounds meet

# What a GPU of unknown power is taken to have, per byte/s of memory bandwidth and flop/s of FP32.
_USUAL_TDP_W = 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as a model of compute takes it: listed figures for one precision."""

    name: str
    architecture: str
    matrix_flop_per_s: float
    """Dense peak of the units that multiply matrices in this precision."""
    vector_flop_per_s: float
    """FP32 peak outside the matrix units."""
    memory_bytes_per_s: float
    memory_bytes: float
    tdp_w: float = _USUAL_TDP_W
    processors: int | None = None
    """Number of SMs or compute units."""
    year: int | None = None
    consumer: bool = False
    """GeForce and Titan: no peer access over PCIe, slower sustained clocks in dense racks."""
    laptop: bool = False
    link_bytes_per_s: float = 0.0
    """Rate of NVLink of one GPU in one direction; 0: none."""
    bridge: bool = False
    """NVLink joins pairs of cards only."""
    host_bytes_per_s: float = 16e9

    @property
    def has_matrix_units(self) -> bool:
        """Whether matrix products in this precision run on matrix units."""
        return self.matrix_flop_per_s > 1.2 * self.vector_flop_per_s


def smooth_minimum(one: float, other: float) -> float:
    """A minimum that is smooth where the two values are similar."""
    return float((one**-_MEET + other**-_MEET) ** (-1 / _MEET))


def attainable_flop_per_s(peak: float, tdp_w: float, flop_per_joule: float, fraction: float = 1.0) -> float:
    """Sustained rate: a fraction of the peak, bounded by power."""
    return smooth_minimum(fraction * peak, flop_per_joule * tdp_w)


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
class ComputeDemand:
    """Work of one step on a GPU: seconds at the attainable rates, by kind of work."""

    seconds: Mapping[str, float]

    def scaled(self, coefficients: Mapping[str, float]) -> dict[str, float]:
        """Each kind times its coefficient; a kind without a coefficient is not scaled."""
        return {kind: coefficients.get(kind, 1.0) * value for kind, value in self.seconds.items()}


def step_s(demand: ComputeDemand, coefficients: Mapping[str, float]) -> float:
    """Seconds of a step by the fitted model."""
    return math.fsum(demand.scaled(coefficients).values())


def shares(demand: ComputeDemand, coefficients: Mapping[str, float]) -> dict[str, float]:
    """Fraction of the step taken by each kind of work; they add up to 1."""
    scaled = demand.scaled(coefficients)
    whole = math.fsum(scaled.values())
    return {kind: value / whole for kind, value in scaled.items()} if whole > 0 else scaled


def bounded_step_s(step: float, flop: float, device: Device, best_fraction: float) -> float:
    """`step`, or its time at the best fraction of peak ever attained where that is longer."""
    return max(step, flop / (best_fraction * device.matrix_flop_per_s))


Features = dict[str, float]


def correction(weights: Mapping[str, float], features: Mapping[str, float]) -> float:
    """Σ weight · value; a feature without a weight counts 0."""
    return math.fsum(weights.get(name, 0.0) * value for name, value in features.items())


def indicators(*names: str) -> Features:
    """Indicator features: each name with the value 1."""
    return dict.fromkeys(names, 1.0)


def crossed(labels: Iterable[str], values: Mapping[str, float]) -> Features:
    """Each value once per label: `net=bert×log_peak`."""
    return {f"{label}×{name}": value for label in labels for name, value in values.items()}
