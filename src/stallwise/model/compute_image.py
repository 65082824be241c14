"""Image networks: seconds per image from the operators of a forward pass, on any GPU.

Training is taken as three forward passes by kind of operator; what really differs is in the fitted coefficients, one
set for training and one for inference, each with contiguous (`nchw`) and channels-last (`nhwc`) layout apart.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute import Demand, Device, bounded_step_s, matrix_rate, shares, step_s, vector_rate
from stallwise.model.compute_linear import Features, correction, crossed, one

_HALF = 2.0  # bytes of an element under autocast
_FULL = 4.0
_FLOP = 2.0  # of a multiply-accumulate
_LAUNCH_S = 1e-5
_TENSOR_S = 1e-5
_BEST = 0.95  # of the peak; no network in the measurements attains more
_UPDATE_BYTES = 16.0  # of a parameter read and written by an update with momentum


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSetup:
    """A network at a batch on a GPU, with what its software does."""

    device: Device
    network: str
    family: str
    branch: str
    known: bool
    """Whether the network itself was counted, and not only one of its kin."""
    macs: Mapping[str, float]
    """Of one image, by kind."""
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
    """Version of torch, and whether compiled."""


def demand(setup: ImageSetup, per_joule: Mapping[str, float]) -> Demand:
    """Seconds per image at attainable rates, by kind."""
    matrix, vector = matrix_rate(setup.device, per_joule), vector_rate(setup.device, per_joule)
    passes = 3.0 if setup.training else 1.0
    width = _FULL if setup.precision == "fp32" else _HALF
    moved = passes * width / setup.device.memory_bytes_per_s
    found = {
        # Depthwise convolutions have nothing for a matrix unit to do.
        f"flop:{kind}": passes * _FLOP * macs / (vector if kind == "depthwise" else matrix)
        for kind, macs in setup.macs.items()
    }
    found["flop:narrow"] = passes * _FLOP * setup.narrow_macs / matrix
    found |= {f"bytes:{kind}": moved * elements for kind, elements in setup.elements.items()}
    found["kernels"] = passes * setup.kernels / setup.batch * _LAUNCH_S
    weights = _UPDATE_BYTES if setup.training else width
    found["parameters"] = weights * setup.parameters / setup.batch / setup.device.memory_bytes_per_s
    if setup.training:
        found["tensors"] = setup.tensors / setup.batch * _TENSOR_S
    return Demand(seconds=found)


def log_image_s(
    setup: ImageSetup,
    per_joule: Mapping[str, float],
    coefficients: Mapping[str, Mapping[str, float]],
    weights: Mapping[str, float],
) -> float:
    """Logarithm of the seconds one image takes: physics, and the correction."""
    asked = demand(setup, per_joule)
    fitted = coefficients[setup.layout if setup.layout in coefficients else "nchw"]
    found = math.log(step_s(asked, fitted)) + correction(weights, features(setup, shares(asked, fitted)))
    best = per_joule.get("best_fraction", _BEST)
    return math.log(bounded_step_s(math.exp(found), matrix_flop(setup), setup.device, best))


def matrix_flop(setup: ImageSetup) -> float:
    """FLOPs of one image that matrix units can do."""
    macs = sum(value for kind, value in setup.macs.items() if kind != "depthwise")
    return (3.0 if setup.training else 1.0) * _FLOP * macs


def features(setup: ImageSetup, parts: Mapping[str, float]) -> Features:
    """What the correction sees: where the time goes, in which software, on which GPU, of which family."""
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
        **one(f"software={software}", f"gpu={setup.device.name}"),
        **values,
        **crossed((f"software={software}", f"layout={setup.layout}", f"gpu={setup.device.name}"), values),
        **one(f"family={setup.family}", f"branch={setup.branch}", f"network={setup.network}"),
        **one(
            f"family={setup.family}×layout={setup.layout}",
            f"branch={setup.branch}×layout={setup.layout}",
            f"family={setup.family}×software={software}",
            f"family={setup.family}×gpu={setup.device.name}",
            f"network={setup.network}×layout={setup.layout}",
        ),
    }
