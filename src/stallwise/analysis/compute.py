"""Compute of a step on any GPU, at any batch and number of passes, in columns; devices and machines it depends on.

    seconds(GPU, b, p) = factor · ((arithmetic + activations) · b + parameters + starts · p)

Arithmetic and activations grow with the batch, the traffic of the parameters does not, and no step is shorter than
starting its kernels takes: on small batches a GPU does not become faster for ever. `factor` is what was measured over
what the formula gives on the run's own GPU, so whatever the physics misses is scaled alike. On the machine of the run,
where nothing was counted, passes grow with the batch and the update does not.

Where standard networks, decoding or disks were measured on both machines, their ratio says more about going from one to
the other than listed rates do (`machine_ratios`):

    compute   geometric mean over the standard networks that both trained in the same precision, of G here / G there
    decode    samples/s that one core prepares with all at work, here / there
    disk      bytes/s read cold, here / there
"""

import contextlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from stallwise.analysis.job import JobModel
from stallwise.errors import InputError
from stallwise.hardware.board import is_consumer
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.coefficients import known_names, load_fitted
from stallwise.hardware.gpu import Gpu
from stallwise.hardware.machine import LinkRecord, MachineRecord
from stallwise.hardware.processors import cpu_class
from stallwise.model.compute.host import joined_s
from stallwise.model.compute.roofline import Device
from stallwise.model.compute.transfer import BEST_FRACTION, StepParts, gpu_effect, reach, step_parts
from stallwise.model.exchange.collectives import AlphaBeta, Segments
from stallwise.model.statistics.conformal import ErrorSpread, choose
from stallwise.model.step.prediction import Columns
from stallwise.model.step.setups import Numbers
from stallwise.sentences import Sentence
from stallwise.units import GIB

_LAPTOP = ("MaxQ", "Laptop", "QuadroT", "QuadroRTX3000", "RTXA3000", "RTX3500Ada")
_LARGE_DIES = ("8.0", "10.0")  # of Ampere and Blackwell
# Before their fourth generation AMD's matrix units take FP32 at twice the vector rate.
_MATRIX_FP32 = {"CDNA": 2.0, "CDNA 2": 2.0}

# Kepler has 192 lanes to a multiprocessor, of which its schedulers feed 128 unless a warp has two instructions that do
# not wait for each other (NVIDIA's Kepler tuning guide); products seldom have.
_FED = {"Kepler": 2 / 3}

# Words that vendors, drivers and shops add.
_NOISE = re.compile(
    r"\b(NVIDIA|AMD|INSTINCT|RADEON|TESLA|GEFORCE|GPU|GENERATION|BLACKWELL|SERVER|EDITION|CORPORATION|TENSOR|CORE)\b|"
    r"\bHBM\d?E?\b"
)
_FORM = re.compile(r"(?:SXM|PCIE|NVL)\d?")
_MEMORY = re.compile(r"(\d+)\s*GI?B")


def find_gpu(name: str, catalog: Catalog) -> Gpu | None:
    """The GPU that any spelling means: `NVIDIA H100-SXM5-80GB`, `a100 pcie 80gb`; None where none of the catalog does.

    Base name, form and memory are told apart; what a name leaves open is taken as the catalog lists it first.
    """
    base, form, memory = _parts(name)
    for gpu in catalog.gpus.values():
        its_base, its_form, its_memory = _parts(gpu.name)
        if base and base == its_base and form in ("", its_form) and memory in (0, its_memory or _gib(gpu)):
            return gpu
    return catalog.gpu_of_label(base) if base and not form and not memory else None


@cache
def _parts(name: str) -> tuple[str, str, int]:
    """`NVIDIA A100-SXM4-80GB` is (`A100`, `SXM`, 80)."""
    upper = re.sub(r"[-_/(),.]+", " ", name.upper())
    upper = upper.replace("MAX Q", "MAXQ")
    upper = upper.replace("WORKSTATION", "" if "MAXQ" in upper else "WS")
    text = _NOISE.sub(" ", upper)
    memory, form = _MEMORY.search(text), _FORM.search(text)
    base = _FORM.sub(" ", _MEMORY.sub(" ", text))
    return re.sub(r"\s+", "", base), form[0].rstrip("0123456789") if form else "", int(memory[1]) if memory else 0


def _gib(gpu: Gpu) -> int:
    return round(gpu.memory_bytes / GIB)


def device_of(gpu: Gpu, precision: str) -> Device:
    """The device at `precision`: amp, fp16, bf16, fp32 (TF32 where the GPU has it), or `ieee` for FP32 without it."""
    if gpu.fp32_flop_per_s is None or gpu.memory_bytes_per_s is None:
        raise InputError(
            f"The catalog lists no FP32 rate or no memory bandwidth for {gpu.name}. Add them to your own gpus.csv."
        )
    fp32 = gpu.fp32_flop_per_s * _FED.get(gpu.architecture or "", 1.0)
    return Device(
        name=gpu.name,
        architecture=architecture_of(gpu),
        matrix_flop_per_s=_matrix_flop_per_s(gpu, precision, fp32),
        vector_flop_per_s=fp32,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        memory_bytes=gpu.memory_bytes,
        tdp_w=gpu.tdp_w or 250.0,
        processors=gpu.sm_count,
        year=gpu.year,
        consumer=is_consumer(gpu),
        laptop=any(word in gpu.name for word in _LAPTOP) and not gpu.name.startswith("RTXPRO"),
        link_bytes_per_s=gpu.nvlink_bytes_per_s or 0.0,
        bridge=gpu.nvlink_bridge_gpus is not None,
        host_bytes_per_s=(gpu.host_link.bytes_per_s if gpu.host_link else None) or 16e9,
    )


def architecture_of(gpu: Gpu) -> str:
    """The generation; the large dies of Ampere and Blackwell apart from those that also draw pictures."""
    apart = f" {gpu.compute_capability}" if gpu.compute_capability in _LARGE_DIES else ""
    return f"{gpu.architecture or ''}{apart}"


def _matrix_flop_per_s(gpu: Gpu, precision: str, fp32: float) -> float:
    if precision == "ieee":
        return fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision in ("fp32", "tf32"):
        return gpu.tf32_flop_per_s or fp32 * _MATRIX_FP32.get(gpu.architecture or "", 1.0)
    if precision == "bf16" and gpu.bf16_flop_per_s:
        return gpu.bf16_flop_per_s
    # Autocast falls back on FP32 where halves are no faster.
    return max(gpu.fp16_flop_per_s or 0.0, fp32)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRatios:
    """Times on the target machine over times on the run's own; None where one of the two was not measured."""

    compute: float | None = None
    compute_low: float = 1.0
    compute_high: float = 1.0
    """The networks' own ratios around their mean, as factors."""
    networks: tuple[str, ...] = ()
    decode: float | None = None
    disk: float | None = None

    @property
    def text(self) -> str:
        """The ratios that are used, in words; empty where none is."""
        parts = []
        if self.compute is not None:
            parts.append(f"compute {self.compute:.3g} × as long ({', '.join(self.networks)})")
        if self.decode is not None:
            parts.append(f"preparing a sample {self.decode:.3g} × as long")
        if self.disk is not None:
            parts.append(f"reading from disk {self.disk:.3g} × as long")
        return ", ".join(parts)


def machine_ratios(target: MachineRecord, own: MachineRecord, precision: str | None = None) -> MachineRatios:
    """Compare two machine records; `precision` is the job's, and networks trained in another do not count."""
    rates = {one.name: one for one in own.networks}
    logs = {
        one.name: math.log(rates[one.name].samples_per_s / one.samples_per_s)
        for one in target.networks
        if one.name in rates
        and one.precision == rates[one.name].precision
        and precision in (None, one.precision)
        and one.samples_per_s > 0
    }
    middle = math.fsum(logs.values()) / len(logs) if logs else 0.0
    return MachineRatios(
        compute=math.exp(middle) if logs else None,
        compute_low=math.exp(min(logs.values()) - middle) if logs else 1.0,
        compute_high=math.exp(max(logs.values()) - middle) if logs else 1.0,
        networks=tuple(f"{name} in {rates[name].precision}" for name in logs),
        decode=_decode(target, own),
        disk=_ratio(own.disk_read_bytes_per_s, target.disk_read_bytes_per_s),
    )


def _decode(target: MachineRecord, own: MachineRecord) -> float | None:
    if target.decode is None or own.decode is None or target.decode.pixels != own.decode.pixels:
        return None
    return _ratio(own.decode.per_core_samples_per_s, target.decode.per_core_samples_per_s)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above and below else None


def cost_of(link: LinkRecord) -> Segments:
    """What a message on the link as measured costs: `cost_of(link).time_s(bytes)`. Other rank counts: `rescale`."""
    fit = link.fit
    return Segments(
        AlphaBeta(fit.small.latency_s, fit.small.s_per_byte),
        AlphaBeta(fit.large.latency_s, fit.large.s_per_byte),
        fit.break_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTime:
    """The formula of one GPU: seconds at the measured batch, and what of them does not grow with it."""

    arithmetic_s: float
    activations_s: float
    parameters_s: float
    starts_s: float
    factor: float
    least_s: float
    """At the best fraction of peak ever attained."""
    low: float
    high: float
    """Bounds of the answer, as factors: 80 %, or those of the measurement where the GPU is the run's own."""
    note: Sentence
    """How it came about, in a sentence."""
    launching_s: float = 0.0
    """Of the host, beside the device; the longer of the two decides."""
    waits_s: float = 0.0
    """Of the host, while the device has nothing to do."""


def compute_seconds(times: Sequence[ComputeTime], which: Numbers, batch: Columns, passes: Columns) -> Columns:
    """Seconds of a step by column, each by one of `times`.

    `batch` counts samples per GPU and step, `passes` forward and backward passes, both over the measured number.
    """
    names = ("arithmetic_s", "activations_s", "parameters_s", "starts_s", "factor", "least_s", "launching_s", "waits_s")
    arithmetic, activations, parameters, starts, factor, least, launching, waits = (
        np.array([getattr(time, name) for time in times])[which] for name in names
    )
    busy = (arithmetic + activations) * batch + parameters
    device = np.maximum(factor * (busy + starts * passes), least * batch)
    seconds: Columns = joined_s(device, launching * passes) + waits
    return seconds


def precision_on(model: JobModel, gpu: Gpu | None) -> str:
    """What multiplies there: TF32 and bf16 only where the GPU has them."""
    chosen = model.precision
    if gpu is None:
        return chosen
    if chosen == "tf32" and gpu.tf32_flop_per_s is None:
        return "fp32"
    return "fp16" if chosen == "bf16" and gpu.bf16_flop_per_s is None else chosen


def as_measured(model: JobModel, speed: float = 1.0) -> ComputeTime:
    """Compute on the run's own machine, `speed` times as fast; passes grow with the batch, the update does not."""
    job, (low, high) = model.job, model.job.compute_factors or (1.0, 1.0)
    if model.source is not None and model.work is not None and speed == 1.0:
        with contextlib.suppress(InputError):  # its own GPU may be listed without rates
            return compute_time(model, model.source)
    on_device = model.device_s / model.measured_compute_s if model.measured_compute_s > 0 else 1.0
    return ComputeTime(
        arithmetic_s=on_device * job.passes_s,
        activations_s=0.0,
        parameters_s=on_device * job.trace.update_s,
        starts_s=0.0,
        factor=1 / speed,
        least_s=0.0,
        low=low,
        high=high,
        note=_speed_note(model, speed),
        launching_s=model.launching_s,
        waits_s=model.host_waits_s,
    )


def _speed_note(model: JobModel, speed: float) -> Sentence:
    if speed == 1.0:
        return Sentence("compute.as-measured", "Compute is as measured.")
    if model.launching_s or model.host_waits_s:
        return Sentence(
            "compute.device-faster", "The device's work becomes faster; what the host takes to launch it does not."
        )
    return Sentence("compute.alike-faster", "All layers and the update become faster alike.")


def compute_time(
    model: JobModel, gpu: Gpu, against: MachineRatios | None = None, host_cpu: str | None = None
) -> ComputeTime:
    """The job's compute on `gpu`; an `InputError` where the run or the catalog lacks what it takes.

    Where standard networks were measured on both machines (`against`), compute at the measured batch takes as many
    times as long as they do. Bounds stay those of the transfer, and are never narrower than the networks lie apart.
    """
    if model.work is None:
        raise InputError(model.no_transfer)
    constants = load_fitted("transfer").constants
    device = _device(model, gpu)
    target_parts = step_parts(model.work, device, constants)
    bare = step_parts(replace(model.work, activation_bytes=0.0), device, constants)
    factor = _factor(model, gpu, device, target_parts)
    host = host_ratio(model, host_cpu)
    same = model.source is not None and model.source.name == gpu.name
    own_low, own_high = (model.job.compute_factors or (1.0, 1.0)) if model.source is not None else (1.0, 1.0)
    spread = ErrorSpread(0.0, 0.0) if same else model.spread or _spread(model, device)
    if against is not None and against.compute is not None and model.source is not None:
        factor = against.compute * model.device_s / target_parts.whole_s
        spread = ErrorSpread(
            min(spread.low, math.log(against.compute_low)), max(spread.high, math.log(against.compute_high))
        )
    return ComputeTime(
        arithmetic_s=target_parts.arithmetic_s,
        activations_s=target_parts.memory_s - bare.memory_s,
        parameters_s=bare.memory_s,
        starts_s=target_parts.start_s,
        factor=factor,
        least_s=0.0 if same else model.work.flop / (BEST_FRACTION * device.matrix_flop_per_s),
        low=own_low * math.exp(spread.low),
        high=own_high * math.exp(spread.high),
        note=_note(model, gpu, same=same),
        launching_s=model.launching_s * (host or 1.0),
        waits_s=model.host_waits_s * (host or 1.0),
    )


def host_ratio(model: JobModel, host_cpu: str | None) -> float | None:
    """Times as long as the run's host that a CPU takes to launch a step; None where the class of one is not known."""
    own, target = (cpu_class(name) if name else None for name in (model.cpu_model, host_cpu))
    return None if own is None or target is None else own.launch_speed / target.launch_speed


def _note(model: JobModel, gpu: Gpu, *, same: bool) -> Sentence:
    if model.source is None:
        return Sentence(
            "compute.by-flops",
            "The run has seen no GPU: compute is that of its FLOPs, bytes and kernels alone, and much less certain.",
        )
    if same:
        return Sentence("compute.same-gpu", "Compute is as measured: the GPU is the run's own.")
    if model.launching_s or model.host_waits_s:
        return Sentence(
            "compute.scaled-device",
            f"The device's work is scaled from {model.source.name} to {gpu.name} by arithmetic and memory, each by its "
            "limit; what the host takes to launch it is not. Bounds hold 80 %.",
        )
    return Sentence(
        "compute.scaled-all",
        f"Compute is scaled from {model.source.name} to {gpu.name} by arithmetic, memory and starting of kernels, each "
        "by its limit; bounds hold 80 %.",
    )


def _device(model: JobModel, gpu: Gpu) -> Device:
    precision = precision_on(model, gpu)
    return device_of(gpu, "ieee" if precision in ("fp32", "fp64") else precision)


def _factor(model: JobModel, gpu: Gpu, device: Device, target_parts: StepParts) -> float:
    """1 where nothing was measured on a GPU; else measured over worked out on the source, with both effects."""
    if model.source is None or model.work is None:
        return 1.0
    constants = load_fitted("transfer").constants
    if model.source.name == gpu.name:
        return model.device_s / target_parts.whole_s
    source = _device(model, model.source)
    source_s = step_parts(model.work, source, constants).whole_s
    return model.device_s / source_s * math.exp(gpu_effect(device, constants) - gpu_effect(source, constants))


def _spread(model: JobModel, target: Device) -> ErrorSpread:
    """How well a step is taken from one GPU to the other: both measured by others or not, alike or not."""
    if model.source is None:
        return ErrorSpread(0.0, 0.0)
    fitted, source = load_fitted("transfer"), _device(model, model.source)
    case = f"measured|{'known' if {source.name, target.name} <= known_names(fitted, 'gpu') else 'new'} gpu"
    spreads = {key: ErrorSpread(*bounds) for key, bounds in fitted.spreads.items()}
    return choose(spreads, f"{case}|{reach(source, target)}", case, "measured", "")
