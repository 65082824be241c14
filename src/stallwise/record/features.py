"""The trained model as numbers: parameters, FLOPs, activations, precision; taken from the live job in one step."""

import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from stallwise.record.clock import Clock
from stallwise.record.safety import live_modules

_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


class OneStep:
    """Counts FLOPs and the bytes saved for backward while one step runs, and sees which precision multiplies.

    The counter is torch's own (a dispatch mode); both are left at the step's end. A step watched like this is slow
    and never kept.
    """

    def __init__(self, parameters: Iterable[Parameter], clock: Clock) -> None:
        self.flops: int | None = None
        self.activation_bytes: int | None = None
        self.autocast: torch.dtype | None = None
        self.mostly_convolves = False
        self._kind = clock.device.type if clock.device is not None else "cpu"
        self._weights = {p.untyped_storage().data_ptr() for p in parameters if _has_storage(p)}
        self._saved: dict[int, int] = {}
        self._counter = FlopCounterMode(display=False)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def begin(self) -> None:
        """From here on."""
        self._counter.__enter__()  # type: ignore[no-untyped-call]
        self._hooks.__enter__()

    def end(self) -> None:
        """Up to here."""
        self._hooks.__exit__(None, None, None)
        self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        counts = {str(op): int(flops) for op, flops in self._counter.get_flop_counts().get("Global", {}).items()}
        self.flops = sum(counts.values()) or None
        self.mostly_convolves = 2 * sum(n for op, n in counts.items() if "conv" in op) > (self.flops or 0)
        self.activation_bytes = sum(self._saved.values()) or None

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled(self._kind):
            self.autocast = torch.get_autocast_dtype(self._kind)
        if _has_storage(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._weights:
                self._saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def precision(self, parameters: Sequence[Parameter]) -> str | None:
        """What most of the arithmetic runs in: autocast's type, else the weights', TF32 where the GPU may use it."""
        if self.autocast is not None:
            return _NAMES.get(self.autocast)
        sizes: dict[torch.dtype, int] = {}
        for parameter in parameters:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
        if not sizes:
            return None
        most = max(sizes, key=lambda dtype: sizes[dtype])
        if most is torch.float32 and self._kind == "cuda" and _uses_tf32(convolutions=self.mostly_convolves):
            return "tf32"
        return _NAMES.get(most)


def trained_roots(optimizers: Iterable[Optimizer]) -> list[Module]:
    """The outermost live modules that hold what the optimizers train."""
    trained = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    modules = live_modules()
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [module for module in modules if id(module) not in inner]
    holding = [root for root in outermost if any(id(p) in trained for p in root.parameters())]
    return _without_doubles(holding)


def is_compiled(roots: Sequence[Module]) -> bool:
    """Whether torch.compile has compiled any of the job's code."""
    if "torch._dynamo" in sys.modules:
        counters: Any = sys.modules["torch._dynamo"].utils.counters
        if counters["stats"].get("unique_graphs", 0) or counters["frames"].get("ok", 0):
            return True
    return any(module._compiled_call_impl is not None for root in roots for module in root.modules())


def _without_doubles(roots: list[Module]) -> list[Module]:
    """One root per set of weights: a second wrapper around the same model (an evaluation copy) says nothing new."""
    kept: list[Module] = []
    seen: set[int] = set()
    for root in sorted(roots, key=lambda root: -sum(1 for _ in root.modules())):
        weights = {id(p) for p in root.parameters()}
        if not weights <= seen:
            kept.append(root)
            seen |= weights
    return kept


def _uses_tf32(*, convolutions: bool) -> bool:
    """Convolutions may use TF32 unless the script forbids it, matrix products only where it allows it."""
    backend: Any = torch.backends.cudnn if convolutions else torch.backends.cuda
    chosen = getattr(backend.conv if convolutions else backend.matmul, "fp32_precision", "")
    if chosen in ("tf32", "ieee"):
        return bool(chosen == "tf32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = torch.backends.cudnn.allow_tf32 if convolutions else torch.backends.cuda.matmul.allow_tf32
    return bool(old)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Wrappers (DTensor, fake tensors) have none to ask for."""
    return type(tensor) in (torch.Tensor, Parameter)
