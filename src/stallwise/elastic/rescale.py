"""Learning rate for another number of workers, with the batch of each worker as it was.

Goyal et al. 2017: when the batch grows k-fold, so does the rate (`linear`); `sqrt` keeps the gradient's noise instead.
The schedule's own bases follow, so that its next step does not undo it.
"""

import math
from typing import Any, Literal

Scaling = Literal["linear", "sqrt", "none"]


def factor(before: int, now: int, scaling: Scaling) -> float:
    """By which the rate changes when `before` workers become `now`."""
    ratio = now / before
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[scaling]


def rescale(optimizer: Any, scheduler: Any, by: float) -> None:
    """Multiply every learning rate, and what the schedule computes rates from."""
    if by == 1.0:
        return
    for one in optimizer if isinstance(optimizer, list | tuple) else [optimizer]:
        for group in one.param_groups:
            for name in ("lr", "initial_lr", "max_lr", "min_lr"):
                if name in group:
                    group[name] = group[name] * by
    for one in _all(scheduler):
        for name in ("base_lrs", "_last_lr", "max_lrs", "min_lrs"):
            if isinstance(rates := getattr(one, name, None), list):
                setattr(one, name, [rate * by for rate in rates])


def _all(scheduler: Any) -> list[Any]:
    """The scheduler and those inside it."""
    if scheduler is None:
        return []
    inside = getattr(scheduler, "_schedulers", [])
    return [scheduler, *(one for part in inside for one in _all(part))]
