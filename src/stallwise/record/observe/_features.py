"""Features of the trained model: FLOPs, activation bytes and precision, measured in one step of the live job."""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

from stallwise.record.ablate._snapshot import live_modules
from stallwise.record.rank._steps import StepClock
from stallwise.sentences import Sentence

_AUTOGRAD: Any = torch._C._autograd

_NAMES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


class _NoTracker:
    """Stands in for the module tracker of torch's counter, whose hooks make `autograd.grad` with a leaf input fail."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        """Enter without installing hooks."""

    def __exit__(self, *_: object) -> None:
        """Leave: there are no hooks to remove."""


class _FlopCounter(FlopCounterMode):
    """torch's counter without its hooks on modules; an operator that cannot be counted is left out."""

    def __init__(self) -> None:
        super().__init__(display=False)
        self.mod_tracker: Any = _NoTracker()

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]
        return out


class StepCounter:
    """Counts FLOPs and the bytes saved for backward during one step, and notes the precision of its arithmetic.

    The counter is torch's own (a dispatch mode); both are left at the step's end. A step watched like this is slow
    and never kept. `torch.func` refuses to run under hooks on saved tensors: ours leave as soon as it begins, and the
    bytes are then unknown.
    """

    def __init__(self, parameters: Iterable[Parameter], clock: StepClock) -> None:
        self.flops: int | None = None
        self.notes: list[Sentence] = []
        self.activation_bytes: int | None = None
        self.autocast: torch.dtype | None = None
        self.mostly_convolves = False
        self._kind = clock.device.type if clock.device is not None else "cpu"
        self._weights = {p.untyped_storage().data_ptr() for p in parameters if _has_storage(p)}
        self._saved: dict[int, int] = {}
        self._counter: _FlopCounter | None = None
        self._hooks: Any = None
        self._disable: Any = None

    def begin(self) -> None:
        """Start to count, on this thread."""
        counter = _FlopCounter()
        counter.__enter__()  # type: ignore[no-untyped-call]
        self._counter = counter
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        self._disable = _AUTOGRAD._saved_tensors_hooks_disable
        _AUTOGRAD._saved_tensors_hooks_disable = self._give_way

    def end(self) -> None:
        """Stop counting and sum up."""
        whole = self._leave_hooks()
        counter, self._counter = self._counter, None
        if counter is None:
            return
        counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        counts = {str(op): int(flops) for op, flops in counter.get_flop_counts().get("Global", {}).items()}
        self.flops = sum(counts.values()) or None
        self.mostly_convolves = 2 * sum(n for op, n in counts.items() if "conv" in op) > (self.flops or 0)
        self.activation_bytes = (sum(self._saved.values()) or None) if whole else None

    def _give_way(self, *args: Any, **kwargs: Any) -> Any:
        """Take our hooks away before somebody forbids hooks: forbidding them while there are some is an error."""
        disable = self._disable
        if self._leave_hooks():
            self.notes.append(
                Sentence(
                    "activations.unknown", "The script uses torch.func, so the memory of its activations is unknown."
                )
            )
        return disable(*args, **kwargs)

    def _leave_hooks(self) -> bool:
        """Take our hooks on saved tensors away; whether they were there."""
        hooks, self._hooks = self._hooks, None
        if hooks is None:
            return False
        _AUTOGRAD._saved_tensors_hooks_disable = self._disable
        hooks.__exit__(None, None, None)
        return True

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(Exception):
            if torch.is_autocast_enabled(self._kind):
                self.autocast = torch.get_autocast_dtype(self._kind)
            if _has_storage(tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self._weights:
                    self._saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    def precision(self, parameters: Sequence[Parameter]) -> str | None:
        """The precision of most of the arithmetic: autocast's type, else the weights', or TF32 if allowed."""
        if self.autocast is not None:
            return _NAMES.get(self.autocast)
        sizes: dict[torch.dtype, int] = {}
        for parameter in parameters:
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
        if not sizes:
            return None
        common = max(sizes, key=lambda dtype: sizes[dtype])
        if common is torch.float32 and self._kind == "cuda" and _uses_tf32(convolutions=self.mostly_convolves):
            return "tf32"
        return _NAMES.get(common)


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
    distinct: list[Module] = []
    covered: set[int] = set()
    for root in sorted(roots, key=lambda root: -sum(1 for _ in root.modules())):
        weights = {id(p) for p in root.parameters()}
        if not weights <= covered:
            distinct.append(root)
            covered |= weights
    return distinct


def _uses_tf32(*, convolutions: bool) -> bool:
    """Convolutions may use TF32 unless the script forbids it, matrix products only where it allows it."""
    backend: Any = torch.backends.cudnn if convolutions else torch.backends.cuda
    setting = getattr(backend.conv if convolutions else backend.matmul, "fp32_precision", "")
    if setting in ("tf32", "ieee"):
        return bool(setting == "tf32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        allowed = torch.backends.cudnn.allow_tf32 if convolutions else torch.backends.cuda.matmul.allow_tf32
    return bool(allowed)


def _has_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor has storage of its own; wrappers (DTensor, fake tensors) have none."""
    return type(tensor) in (torch.Tensor, Parameter)
