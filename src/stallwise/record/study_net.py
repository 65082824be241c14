"""A network of the stand-in accelerator: layers that sleep for as long as a GPU would compute, with real gradients.

On processors that ranks share, computing does not scale over ranks, so it cannot be the truth for a study of stalls.
Layers that sleep for their time in forward and backward leave the cores to the exchange, as an accelerator does.

They sleep by the accelerator's clock. A host launches ahead of its accelerator, so a kernel begins when the one before
it ends, not when a process was woken up: what a core's other work delays in one layer, the next sleeps less.
"""

import time
from itertools import groupby
from typing import Any

import torch
from torch import nn

from stallwise.workload.families import BACKWARD, Network, Tensor

_AHEAD_S = 2e-3
"""A host that is later than this did not launch ahead: then the accelerator waited for it."""


class _Clock:
    """When the accelerator is done with what it was given."""

    def __init__(self) -> None:
        self._done_s = 0.0

    def begin(self) -> None:
        """A step: nothing was launched before, as its weights had to be there."""
        self._done_s = time.perf_counter()

    def run(self, for_s: float) -> None:
        """One layer: until it is done."""
        now_s = time.perf_counter()
        begin_s = self._done_s if now_s - self._done_s <= _AHEAD_S else now_s
        self._done_s = begin_s + for_s
        time.sleep(max(0.0, self._done_s - now_s))


class _Asleep(torch.autograd.Function):
    """Takes a time in forward and in backward without a core, and gives each of its tensors a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: _Clock, forward_s: float, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.clock, ctx.forward_s = clock, forward_s
        ctx.save_for_backward(*tensors)
        clock.run(forward_s)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.clock.run(BACKWARD * ctx.forward_s)
        return gradients[0], None, None, *(torch.ones_like(tensor) for tensor in ctx.saved_tensors)


class SleepingNetwork(nn.Module):
    """`network` with one in `scale` of its elements, each layer sleeping `s_per_mac` for its work, or `least_s`."""

    def __init__(self, network: Network, *, scale: int, s_per_mac: float, least_s: float = 0.0) -> None:
        super().__init__()
        self._names: list[list[str]] = []
        self._clock = _Clock()
        for number, tensors in groupby(network.tensors, key=lambda tensor: tensor.layer):
            self._layer(number, list(tensors), scale)
        self._forward_s = network.forward_s(s_per_mac, least_s)

    def _layer(self, number: int, tensors: list[Tensor], scale: int) -> None:
        names = []
        for place, tensor in enumerate(tensors):
            name = f"layer{number}_{place}"
            self.register_parameter(name, nn.Parameter(torch.zeros(tensor.scaled(scale))))
            names.append(name)
        self._names.append(names)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every layer in turn."""
        self._clock.begin()
        for names, forward_s in zip(self._names, self._forward_s, strict=True):
            weights = (getattr(self, name) for name in names)
            x = _Asleep.apply(x, self._clock, forward_s, *weights)  # type: ignore[no-untyped-call]
        return x
