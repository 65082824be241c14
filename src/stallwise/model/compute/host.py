"""The host's part of a step: launching what the device works on, and what follows for the step.

A step without a graph is launched operator by operator, forward and backward and the update, by one Python process.
Launching runs ahead of the device; the step is as long as the slower of the two, and somewhat longer where both take
about as long, since the faster one waits for the other in some stretches and not in others:

    step = (device^4 + launches^4)^(1/4)

What a forward operator and everything that follows from it (its backward, its part of the update, casts) costs the host
hardly depends on its shape: 184 to 188 µs on one host for four ResNets from 68 to 514 operators (gpemu, A100, torch
1.x), 95 to 100 µs for ResNet-50, BERT-base and EfficientNet-B0 under autocast on another (H200, torch 2.11). It does
depend on the CPU (`hardware.processors`), on torch, on compiling, and on the update: Adam's launches more than plain
momentum's (1.3 times as much per operator for BERT, GPT-2 and Llama as for two convolutional networks on an H200; the
constant is lower, since their operators differ too).
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_SHARPNESS = 4.0
Seconds = TypeVar("Seconds", float, npt.NDArray[np.float64])

TRAINING_S = 75e-6
"""Host seconds of one forward operator in an eager training step (torch 2, foreach update, reference CPU)."""
FORWARD_S = 28e-6
AUTOCAST = 1.25
"""Autocast looks at every operator and casts weights."""
ADAM = 1.2
"""Adam's update of many tensors is a dozen passes over lists of them, momentum's three."""
COMPILED_TRAINING, COMPILED_CONVOLUTIONS = 0.6, 0.9
"""A compiled step launches its kernels from Python too. It has far fewer where attention's many small operators are
fused, hardly fewer where convolutions stay as they are (five and four compiled steps on an H200)."""
COMPILED_FORWARD = 0.35
COMPILED_FIXED_S = 1.5e-3
"""Guards, the compiled function's own prologue, and an update that is not compiled."""
LOOPED_UPDATE = 1.75
"""Before torch 2.0 optimizers looped over parameters in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """What the host does for one step: forward operators that it launches, and how."""

    operators: float
    training: bool = True
    autocast: bool = False
    compiled: bool = False
    looped_update: bool = False
    adam: bool = False
    convolutional: bool = False


def launch_s(work: HostWork, cpu_speed: float = 1.0) -> float:
    """Seconds that launching a step takes on a CPU `cpu_speed` times as fast as the reference."""
    each = TRAINING_S if work.training else FORWARD_S
    if work.autocast and not work.compiled:
        each *= AUTOCAST
    if work.looped_update and work.training:
        each *= LOOPED_UPDATE
    if work.adam and work.training:
        each *= ADAM
    if work.compiled:
        training = COMPILED_CONVOLUTIONS if work.convolutional else COMPILED_TRAINING
        each *= training if work.training else COMPILED_FORWARD
    fixed = (COMPILED_FIXED_S if work.training else COMPILED_FIXED_S / 3) if work.compiled else 0.0
    return (work.operators * each + fixed) / cpu_speed


def joined_s(device_s: Seconds, host_s: Seconds) -> Seconds:
    """Seconds of a step whose device works for `device_s` while the host launches for `host_s`."""
    scale = np.maximum(np.maximum(device_s, host_s), 1e-30)
    joined: Seconds = scale * ((device_s / scale) ** _SHARPNESS + (host_s / scale) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return joined


def launching_s(step_s: float, device_s: float) -> float:
    """The launching that makes a device which works for `device_s` take `step_s`: the inverse of `joined_s`."""
    if step_s <= device_s or step_s <= 0:
        return 0.0
    return float(step_s * (1 - (device_s / step_s) ** _SHARPNESS) ** (1 / _SHARPNESS))


def device_alone_s(step_s: float, host_s: float) -> float:
    """What the device works in a step of `step_s` launched in `host_s`; at least a tenth of the step."""
    return max(0.1 * step_s, launching_s(step_s, host_s))
