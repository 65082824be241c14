"""A network of the stand-in accelerator: layers that sleep for as long as a GPU would compute, with real gradients.

On processors that ranks share, computing does not scale over ranks, so it cannot be the truth for a study of stalls.
Layers that sleep for their time in forward and backward leave the cores to the exchange, as an accelerator does.
"""

import time
from itertools import groupby
from typing import Any

import torch
from torch import nn

from stallwise.workload.families import Network, Tensor

_BACKWARD = 2.0
"""Backward computes two products where forward computes one."""


class _Asleep(torch.autograd.Function):
    """Takes a time in forward and in backward without a core, and gives each of its tensors a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.forward_s = forward_s
        ctx.save_for_backward(*tensors)
        time.sleep(forward_s)
        return x + 0.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(_BACKWARD * ctx.forward_s)
        return gradients[0], None, *(torch.ones_like(tensor) for tensor in ctx.saved_tensors)


class SleepingNetwork(nn.Module):
    """`network` with one in `scale` of its elements, each layer sleeping `s_per_mac` for its work."""

    def __init__(self, network: Network, *, scale: int, s_per_mac: float) -> None:
        super().__init__()
        self._forward_s: list[float] = []
        self._names: list[list[str]] = []
        for number, tensors in groupby(network.tensors, key=lambda tensor: tensor.layer):
            self._layer(number, list(tensors), scale, s_per_mac)

    def _layer(self, number: int, tensors: list[Tensor], scale: int, s_per_mac: float) -> None:
        names = []
        for place, tensor in enumerate(tensors):
            name = f"layer{number}_{place}"
            self.register_parameter(name, nn.Parameter(torch.zeros(scaled_elements(tensor, scale))))
            names.append(name)
        self._names.append(names)
        self._forward_s.append(s_per_mac * sum(tensor.macs for tensor in tensors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every layer in turn."""
        for names, forward_s in zip(self._names, self._forward_s, strict=True):
            x = _Asleep.apply(x, forward_s, *(getattr(self, name) for name in names))  # type: ignore[no-untyped-call]
        return x


def scaled_elements(tensor: Tensor, scale: int) -> int:
    """One in `scale`, at least one."""
    return max(1, tensor.elements // scale)
