"""Image networks: seconds per image from the operators of a forward pass, on any GPU.

Training is taken as three forward passes by kind of operator; what really differs is in the fitted coefficients, one
set for training and one for inference, each with contiguous (`nchw`) and channels-last (`nhwc`) layout apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute.host import HostWork, joined_s, launch_s
from stallwise.model.compute.roofline import (
    ComputeDemand,
    Device,
    Features,
    bounded_step_s,
    correction,
    crossed,
    indicators,
    matrix_rate,
    shares,
    step_s,
    vector_rate,
)

_HALF = 2.0  # bytes of an element under autocast
_FULL = 4.0
_FLOP = 2.0  # of a multiply-accumulate
_TENSOR_S = 1e-5
_FUSED = 0.4  # of the bytes between products that a compiled training step still moves
_FUSABLE = ("bytes:curved", "bytes:straight", "bytes:moved", "bytes:batch_norm", "bytes:layer_norm")
_BEST = 0.95  # of the peak; no network in the measurements attains more
_PLAIN_FP32 = 2.0  # of what products in FP32 without TF32 take by its peak, on an H200 (`fitting/own_steps.csv`)
_UPDATE_BYTES = 16.0  # of a parameter read and written by an update with momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSetup:
    """A network at a batch size on a GPU with its software."""

    device: Device
    network: str
    family: str
    branch: str
    is_counted: bool
    """Whether the network itself was counted, and not only one of its family."""
    macs: Mapping[str, float]
    """Multiply-accumulates of one image, by kind of operator."""
    narrow_macs: float
    elements: Mapping[str, float]
    kernels: int
    tensors: int
    parameters: float
    batch: float
    image_size: float
    training: bool
    precision: str = "amp"
    layout: str = "nchw"
    software: str = ""
    """Version of torch, and whether compiled; the nearest one that was measured."""
    cpu_speed: float = 1.0
    """Of the host's CPU over the reference's (`hardware.processors`)."""
    looped_update: bool = False
    """Whether the optimizer loops over parameters in Python, as before torch 2.0."""
    compiled: bool = False
    adam: bool = False
    """Whether Adam or AdamW updates the parameters."""


def demand(setup: ImageSetup, per_joule: Mapping[str, float]) -> ComputeDemand:
    """Device seconds per image at attainable rates, by kind of work."""
    matrix, vector = matrix_rate(setup.device, per_joule), vector_rate(setup.device, per_joule)
    matrix /= _PLAIN_FP32 if setup.precision == "fp32" and setup.training else 1.0
    passes = 3.0 if setup.training else 1.0
    width = _FULL if setup.precision in ("fp32", "tf32") else _HALF
    moved = passes * width / setup.device.memory_bytes_per_s
    seconds = {
        # Depthwise convolutions have nothing for a matrix unit to do.
        f"flop:{kind}": passes * _FLOP * macs / (vector if kind == "depthwise" else matrix)
        for kind, macs in setup.macs.items()
    }
    seconds["flop:narrow"] = passes * _FLOP * setup.narrow_macs / matrix
    seconds |= {f"bytes:{kind}": moved * elements for kind, elements in setup.elements.items()}
    if setup.compiled and setup.training:
        seconds |= {kind: _FUSED * seconds[kind] for kind in _FUSABLE if kind in seconds}
    weights = _UPDATE_BYTES if setup.training else width
    seconds["parameters"] = weights * setup.parameters / setup.batch / setup.device.memory_bytes_per_s
    if setup.training and setup.looped_update:
        seconds["tensors"] = setup.tensors / setup.batch * _TENSOR_S
    return ComputeDemand(seconds=seconds)


def log_image_s(
    setup: ImageSetup,
    per_joule: Mapping[str, float],
    coefficients: Mapping[str, Mapping[str, float]],
    weights: Mapping[str, float],
) -> float:
    """Logarithm of the seconds one image takes: physics and correction of the device, and the host beside it."""
    step_demand = demand(setup, per_joule)
    fitted = coefficients[setup.layout if setup.layout in coefficients else "nchw"]
    log_s = math.log(step_s(step_demand, fitted)) + correction(weights, features(setup, shares(step_demand, fitted)))
    best = per_joule.get("best_fraction", _BEST)
    device_s = bounded_step_s(math.exp(log_s), matrix_flop(setup), setup.device, best)
    return math.log(joined_s(device_s, host_s(setup)))


def host_s(setup: ImageSetup) -> float:
    """Seconds of launching per image."""
    work = HostWork(
        operators=setup.kernels,
        training=setup.training,
        autocast=setup.precision not in ("fp32", "tf32"),
        compiled=setup.compiled,
        looped_update=setup.looped_update,
        adam=setup.adam,
        convolutional=not setup.macs.get("attention"),
    )
    return launch_s(work, setup.cpu_speed) / setup.batch


def matrix_flop(setup: ImageSetup) -> float:
    """FLOPs of one image that matrix units can do."""
    macs = sum(value for kind, value in setup.macs.items() if kind != "depthwise")
    return (3.0 if setup.training else 1.0) * _FLOP * macs


def features(setup: ImageSetup, parts: Mapping[str, float]) -> Features:
    """Features of the correction: split of the time, software, GPU, family of networks."""
    software = f"{setup.layout}|{setup.software}"
    values = {f"part:{kind}": math.sqrt(part) for kind, part in parts.items()}
    values |= {
        "log_batch": math.log(setup.batch / 256) / 3,
        "log_size": math.log(setup.image_size / 224),
        "log_kernels": math.log(setup.kernels / 200) / 2,
        "log_intensity": math.log(sum(setup.macs.values()) / max(1.0, sum(setup.elements.values())) / 100) / 3,
    }
    return {
        "1": 1.0,
        **indicators(f"software={software}", f"gpu={setup.device.name}"),
        **values,
        **crossed((f"software={software}", f"layout={setup.layout}", f"gpu={setup.device.name}"), values),
        **indicators(f"family={setup.family}", f"branch={setup.branch}", f"network={setup.network}"),
        **indicators(
            f"family={setup.family}×layout={setup.layout}",
            f"branch={setup.branch}×layout={setup.layout}",
            f"family={setup.family}×software={software}",
            f"family={setup.family}×gpu={setup.device.name}",
            f"network={setup.network}×layout={setup.layout}",
        ),
    }
