"""Compute of a step on any GPU at any batch: `compute_transfer` in columns.

    seconds(GPU, b) = measured · t(GPU, b) / t(source, 1),   t = arithmetic · b + memory(b) + starts · passes

Arithmetic and activations grow with the batch, the traffic of the parameters does not, and no step is shorter than
starting its kernels takes: on small batches a GPU does not become faster for ever.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from stallwise.cloud.subject import Subject
from stallwise.hardware.fitted import known, load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.model.compute import Device
from stallwise.model.compute_transfer import StepParts, effect, parts, reach
from stallwise.model.conformal import Spread, choose
from stallwise.model.steps import Columns
from stallwise.record.against import Against
from stallwise.record.devices import device_of

_BEST = 0.95  # of the peak; nothing in the measurements attains more


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """One GPU's part in the formula: seconds at the measured batch, and what of them does not grow with it."""

    arithmetic_s: float
    activations_s: float
    parameters_s: float
    starts_s: float
    factor: float
    """What all of it is multiplied by: measured over worked out on the source, and the architecture's own effect."""
    least_s: float
    """At the best fraction of peak ever attained."""
    low: float
    high: float
    """Bounds of the answer, as factors (80 %)."""

    def seconds(self, batch: Columns, passes: Columns) -> Columns:
        """At `batch` times the measured batch, in `passes` times the passes."""
        busy = (self.arithmetic_s + self.activations_s) * batch + self.parameters_s
        return np.maximum(self.factor * (busy + self.starts_s * passes), self.least_s * batch)


def precision_on(subject: Subject, gpu: Gpu) -> str:
    """What multiplies there: TF32 and bf16 only where the GPU has them."""
    chosen = subject.precision
    if chosen == "tf32" and gpu.tf32_flop_per_s is None:
        return "fp32"
    return "fp16" if chosen == "bf16" and gpu.bf16_flop_per_s is None else chosen


def gpu_time(subject: Subject, gpu: Gpu, known: Against | None = None) -> GpuTime:
    """The job's compute on `gpu`; an `InputError` where the catalog lists no rates for it.

    Where standard networks were measured on both machines (`known`), compute at the measured batch takes as many times
    as long as they do. Bounds stay those of the transfer, and are never narrower than the networks lie apart.
    """
    constants = load_fitted("transfer").constants
    device = _device(subject, gpu)
    here = parts(subject.work, device, constants)
    bare = parts(replace(subject.work, activation_bytes=0.0), device, constants)
    scale = _scale(subject, gpu, device, here)
    same = subject.source is not None and subject.source.name == gpu.name
    own = subject.job.compute_factors or (1.0, 1.0)
    spread = Spread(0.0, 0.0) if same else subject.spread or _spread(subject, device)
    if known is not None and known.compute is not None and subject.source is not None:
        scale = known.compute * subject.measured_compute_s / here.whole_s
        low, high = math.log(known.compute_low), math.log(known.compute_high)
        spread = Spread(min(spread.low, low), max(spread.high, high))
    return GpuTime(
        arithmetic_s=here.arithmetic_s,
        activations_s=here.memory_s - bare.memory_s,
        parameters_s=bare.memory_s,
        starts_s=here.start_s,
        factor=scale,
        least_s=0.0 if same else subject.work.flop / (_BEST * device.matrix_flop_per_s),
        low=own[0] * math.exp(spread.low),
        high=own[1] * math.exp(spread.high),
    )


def _device(subject: Subject, gpu: Gpu) -> Device:
    precision = precision_on(subject, gpu)
    return device_of(gpu, "ieee" if precision in ("fp32", "fp64") else precision)


def _scale(subject: Subject, gpu: Gpu, device: Device, here: StepParts) -> float:
    """1 where nothing was measured on a GPU; else measured over worked out on the source, with both effects."""
    if subject.source is None:
        return 1.0
    constants = load_fitted("transfer").constants
    if subject.source.name == gpu.name:
        return subject.measured_compute_s / here.whole_s
    source = _device(subject, subject.source)
    there = parts(subject.work, source, constants).whole_s
    return subject.measured_compute_s / there * math.exp(effect(device, constants) - effect(source, constants))


def _spread(subject: Subject, target: Device) -> Spread:
    """As `predict` has it: both GPUs measured by others or not, alike or not."""
    assert subject.source is not None  # noqa: S101 - asked only then
    fitted, source = load_fitted("transfer"), _device(subject, subject.source)
    case = f"measured|{'known' if {source.name, target.name} <= known(fitted, 'gpu') else 'new'} gpu"
    spreads = {key: Spread(*found) for key, found in fitted.spreads.items()}
    return choose(spreads, f"{case}|{reach(source, target)}", case, "measured")
