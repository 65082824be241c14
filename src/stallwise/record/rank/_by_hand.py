"""Steps of loops that update their weights by hand: without any optimizer, a step is a backward pass."""

from collections.abc import Callable
from typing import Any

import torch

_BACKWARDS = 32
"""So many backward passes without an optimizer's step, and there is none: more than gradients are accumulated over."""


class BackwardSteps:
    """Calls `step` after every backward pass, once so many came without an optimizer; it leaves with the first one."""

    def __init__(self, step: Callable[[torch.device | None], None]) -> None:
        self._step = step
        self._count = 0
        self._backward: Callable[..., None] | None = None

    def watch(self) -> None:
        """Count the backward passes of this process."""
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._counted

    def release(self) -> None:
        """Undo `watch`; where something else was put on top of it, only fall silent."""
        if self._backward is not None and torch.autograd.backward == self._counted:
            torch.autograd.backward = self._backward
        self._count = -1

    def _counted(self, tensors: Any, *arguments: Any, **options: Any) -> None:
        assert self._backward is not None  # noqa: S101 - it is what was replaced
        self._backward(tensors, *arguments, **options)
        if self._count < 0:
            return
        self._count += 1
        if self._count > _BACKWARDS:
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
            self._step(first.device if isinstance(first, torch.Tensor) else None)
