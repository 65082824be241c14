"""The compute of one training step, layer by layer: what the iteration graph is built from.

A layer here is anything with one backward time and one gradient message: a whole layer in published traces, a
single tensor in our own records. A trace holds layers in forward order; backward visits them in reverse.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from stallwise.errors import InputError

_WRAPPERS = {"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_UNNAMED = re.compile(r"(?:gradient|bucket) \d+(?: \[.*\])?")


def plain_name(name: str) -> str:
    """A module's or parameter's name without what wrappers (DDP, compile, checkpointing) put into it."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS - {"module"})


def unnamed(order: int, shape: Sequence[int] | None = None) -> str:
    """Name a gradient of which only its position is known; without a shape, a whole gradient bucket."""
    return f"bucket {order}" if shape is None else f"gradient {order} {list(shape)}"


def is_unnamed(name: str) -> bool:
    """Whether a name is one of `unnamed`, not a parameter's."""
    return _UNNAMED.fullmatch(name) is not None


def is_bucket(name: str) -> bool:
    """Whether the name stands for a whole gradient bucket."""
    return is_unnamed(name) and name.startswith("bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer. `exchange_s` is the time its own all-reduce took where somebody measured it."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int
    exchange_s: float | None = None

    def __post_init__(self) -> None:
        for field in ("forward_s", "backward_s", "gradient_bytes", "exchange_s"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise InputError(f"Layer {self.name!r} has {field} = {value}; it must be a number of at least 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTrace:
    """Layers in forward order, and what else one step does on one GPU."""

    layers: tuple[Layer, ...]
    source: str
    """Where it comes from, for people: a file, a run."""
    samples: int | None = None
    """Samples in the step it was measured over."""
    read_s: float = 0.0
    """Time to get one batch from storage, decoded."""
    copy_s: float = 0.0
    """Host to device, of one batch; of a recorded run, what compute did not hide of it."""
    update_s: float = 0.0
    """Optimizer."""
    times: str = "measured"
    """`measured`, or in words how the times of the layers came about."""

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError(f"{self.source} holds no layers.")

    @property
    def forward_s(self) -> float:
        """Seconds of the whole forward pass."""
        return math.fsum(layer.forward_s for layer in self.layers)

    @property
    def backward_s(self) -> float:
        """Seconds of the whole backward pass."""
        return math.fsum(layer.backward_s for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients, which a step exchanges."""
        return sum(layer.gradient_bytes for layer in self.layers)

    @classmethod
    def of(cls, layers: Iterable[Layer], *, source: str) -> Self:
        """A trace that has layers and no other times."""
        return cls(layers=tuple(layers), source=source)
