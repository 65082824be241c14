"""DDP's buckets as they were before the interruption.

DDP puts gradients into buckets in reverse order of the parameters for its first step, and from the second on in the
order in which gradients became ready. A sum over three or more ranks depends on where in a bucket a number lies (ring
all-reduce adds in another order for each part), so a resumed run whose first step uses other buckets than the
uninterrupted one's ends with other bits. The order is learnt in the first step of a job, kept in its checkpoints, and
shown to DDP again by one backward pass over a sum of all parameters, in that order, whose gradients are thrown away.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ReadyOrder:
    """Names of parameters in the order their gradients became ready, in the first backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.names: list[str] = []
        self._handles: list[Any] = []
        if isinstance(model, DistributedDataParallel):
            for name, parameter in model.module.named_parameters():
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._noter(name)))

    def _noter(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            if name not in self.names:
                self.names.append(name)

        return note

    def close(self) -> None:
        """The first step is over."""
        while self._handles:
            self._handles.pop().remove()


def show_order(model: nn.Module, names: Sequence[str]) -> None:
    """Make DDP rebuild its buckets as in a job whose gradients became ready in this order. All ranks together."""
    if not isinstance(model, DistributedDataParallel) or not names:
        return
    parameters = dict(model.module.named_parameters())
    wanted = [parameters[name] for name in names if name in parameters and parameters[name].requires_grad]
    if len(wanted) != sum(p.requires_grad for p in parameters.values()):
        return  # another model, or parameters without gradients: DDP finds its own way

    def summed(*_: Any) -> torch.Tensor:
        # What is made last is undone first.
        total = torch.zeros((), device=wanted[0].device)
        for parameter in reversed(wanted):
            total = total + parameter.sum().to(total.dtype)
        return total

    inner = model.module
    inner.forward = summed
    try:
        model(torch.zeros(())).backward()
    finally:
        del inner.forward
    for parameter in wanted:
        parameter.grad = None
