"""Batches kept for replay: a ring of the last ones, and copies of them that the script may change or empty.

A copy shares the memory of its tensors and has containers, objects and tensor handles of its own: `batch.pop(name)`,
`data.x = conv(data.x)` and `x.requires_grad_()` do not reach the batch in the ring. A script that changes the values of
its batches in place is recognised by the tensors' version counters; from then on whole copies are kept and handed out.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Batches from loader workers live in shared memory and hold file descriptors; leave most of both to the job.
_SHARED_SHARE = 0.25
_MOST_BATCHES = 64
_DEEPEST = 6

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, FunctionType, BuiltinFunctionType, ModuleType)
_VALUES = (*_PLAIN, torch.Size, torch.dtype, torch.device, torch.nn.Module, torch.Generator)


class ReplayRing:
    """The last batches of one loader, in order; replaying goes round and round."""

    def __init__(self, limit_bytes: int) -> None:
        self.changed_in_place = False
        self._limit_bytes = min(limit_bytes, _shared_memory_bytes())
        self._batches: list[Any] = []
        self._on_device: list[Any] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._size_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._batches)

    def clear(self) -> None:
        """Drop all batches, because a new as-is block begins."""
        self._batches, self._on_device, self._versions, self._size_bytes, self._next = [], [], [], 0, 0

    def add(self, batch: Any) -> None:
        """Keep a copy of a batch, if it fits; the first is always kept."""
        size = batch_bytes(batch)
        if self._batches and (self._size_bytes + size > self._limit_bytes or len(self._batches) >= _MOST_BATCHES):
            return
        self._batches.append(copied(batch, values=self.changed_in_place))
        if not self.changed_in_place:
            self._versions += [(tensor, _version(tensor)) for tensor in tensors_in(batch)]
        self._size_bytes += size

    def check(self) -> bool:
        """Look for batches whose values the script has changed since they were kept; True where they were dropped."""
        if all(_version(tensor) == version for tensor, version in self._versions):
            return False
        self.changed_in_place = True
        self.clear()
        return True

    def move_to(self, device: torch.device) -> None:
        """Copy the batches to the device for the next replay."""
        self._on_device = [to_device(batch, device) for batch in self._batches]
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def take(self, *, on_device: bool) -> Any:
        """A copy of the next batch in turn."""
        batches = self._on_device if on_device else self._batches
        batch = batches[self._next % len(batches)]
        self._next += 1
        return copied(batch, values=self.changed_in_place)


def copied(batch: Any, *, values: bool = False, depth: int = 0) -> Any:
    """A batch with containers and objects of its own; tensors share their memory unless `values`."""
    if isinstance(batch, torch.Tensor):
        return _copied_tensor(batch, values=values)
    if isinstance(batch, _VALUES) or depth > _DEEPEST:
        return batch
    if type(batch) is list:
        return [copied(item, values=values, depth=depth + 1) for item in batch]
    if type(batch) is dict:
        return {key: copied(value, values=values, depth=depth + 1) for key, value in batch.items()}
    if isinstance(batch, tuple):
        items = [copied(item, values=values, depth=depth + 1) for item in batch]
        try:
            return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
        except Exception:
            return batch
    return _copied_object(batch, values=values, depth=depth)


def _copied_tensor(tensor: torch.Tensor, *, values: bool) -> torch.Tensor:
    """Another handle on the same memory, so that flags and gradients which the script sets stay on its own."""
    try:
        handle = tensor.detach()
        if values:
            handle = handle.clone()
        if type(handle) is not type(tensor):
            return tensor
        if tensor.requires_grad:
            handle.requires_grad_()
        if tensor.__dict__:
            handle.__dict__.update(tensor.__dict__)
        return handle
    except Exception:
        return tensor


def _copied_object(thing: Any, *, values: bool, depth: int) -> Any:
    """A shallow copy of any other object with copies of what it holds; the object itself where it has no copy."""
    try:
        twin = copy.copy(thing)
    except Exception:
        return thing
    if twin is thing:
        return thing
    try:
        state = vars(twin)
    except TypeError:
        state = {}
    # Some copies share their attributes' dictionary with the original.
    if state and state is not vars(thing):
        state.update({name: copied(value, values=values, depth=depth + 1) for name, value in state.items()})
    try:
        if isinstance(twin, dict):
            for key, value in dict.items(thing):
                dict.__setitem__(twin, key, copied(value, values=values, depth=depth + 1))
        elif isinstance(twin, list):
            twin[:] = [copied(item, values=values, depth=depth + 1) for item in thing]
    except Exception:
        return thing
    return twin


def tensors_in(batch: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Every tensor of a batch: in containers, mappings, and the attributes of objects."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, _VALUES) or depth > _DEEPEST:
        return
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value, depth + 1)
    elif isinstance(batch, (list, tuple, set)):
        for item in batch:
            yield from tensors_in(item, depth + 1)
    elif hasattr(batch, "__dict__"):
        for value in list(vars(batch).values()):
            yield from tensors_in(value, depth + 1)


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch, however nested."""
    return sum(tensor.nbytes for tensor in tensors_in(batch))


def batch_counts(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, by its first tensor; None where it cannot be told.

    Samples are what the batch itself says (`num_graphs`), else the length of its first tensor's first dimension. Where
    that is a matrix of integers, as token ids are, its elements are the tokens.
    """
    first = batch
    if not isinstance(first, torch.Tensor):
        # The usual shapes of a batch at once; anything else by walking through it.
        if isinstance(first, (tuple, list)) and first:
            first = first[0]
        elif isinstance(first, dict) and first:
            first = next(iter(first.values()))
        if not isinstance(first, torch.Tensor):
            graphs = getattr(first, "num_graphs", None) if hasattr(first, "__dict__") else None
            if isinstance(graphs, int):
                return graphs, None
            first = next((tensor for tensor in tensors_in(batch) if tensor.ndim), None)
    if first is None or first.ndim == 0:
        return None, None
    is_text = first.ndim == 2 and first.dtype in (torch.int64, torch.int32, torch.int16)
    return first.shape[0], first.numel() if is_text else None


def to_device(batch: Any, device: torch.device) -> Any:
    """A copy of the batch with its tensors on `device`; objects with a `to` of their own are asked."""

    def move(leaf: Any) -> Any:
        mover: Callable[..., Any] | None = getattr(leaf, "to", None)
        return mover(device) if callable(mover) else leaf

    # Some objects move themselves instead of returning a moved copy.
    return pytree.tree_map(move, copied(batch))


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # made in inference mode: not counted
        return 0


def _shared_memory_bytes() -> int:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return 2**62
    return int(state.f_bavail * state.f_frsize * _SHARED_SHARE)
