"""Batches kept to be handed out again, bounded in bytes."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

# Batches from loader workers live in shared memory and hold file descriptors; leave most of both to the job.
_SHARED_SHARE = 0.25
_MOST_BATCHES = 64


class Ring:
    """The last batches of one loader, in order; replaying goes round and round."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = min(limit_bytes, _shared_memory_bytes())
        self._batches: list[Any] = []
        self._on_device: list[Any] = []
        self._size_bytes = 0
        self._next = 0

    def __len__(self) -> int:
        return len(self._batches)

    def clear(self) -> None:
        """Forget everything: a new as-is block begins."""
        self._batches, self._on_device, self._size_bytes, self._next = [], [], 0, 0

    def add(self, batch: Any) -> None:
        """Keep a batch by reference, if it fits. The first always does."""
        size = batch_bytes(batch)
        if self._batches and (self._size_bytes + size > self._limit_bytes or len(self._batches) >= _MOST_BATCHES):
            return
        self._batches.append(batch)
        self._size_bytes += size

    def move_to(self, device: torch.device) -> None:
        """Have copies on the device for the next replay."""
        self._on_device = [to_device(batch, device) for batch in self._batches]
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def take(self, *, on_device: bool) -> Any:
        """The next batch of the round."""
        batches = self._on_device if on_device else self._batches
        batch = batches[self._next % len(batches)]
        self._next += 1
        return batch


def batch_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch, however nested."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def batch_counts(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, by its first tensor; None where it cannot be told.

    Samples are the length of its first dimension. Where it is a matrix of integers, as token ids are, its elements are
    the tokens.
    """
    first = batch
    if not isinstance(first, torch.Tensor):
        # The usual shapes of a batch at once; anything else by walking through it.
        if isinstance(first, (tuple, list)) and first:
            first = first[0]
        elif isinstance(first, dict) and first:
            first = next(iter(first.values()))
        if not isinstance(first, torch.Tensor):
            first = next((leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)), None)
    if first is None or first.ndim == 0:
        return None, None
    is_text = first.ndim == 2 and first.dtype in (torch.int64, torch.int32, torch.int16)
    return first.shape[0], first.numel() if is_text else None


def to_device(batch: Any, device: torch.device) -> Any:
    """A copy of the batch with its tensors on `device`; objects with a `to` of their own are asked."""

    def move(leaf: Any) -> Any:
        mover: Callable[..., Any] | None = getattr(leaf, "to", None)
        return mover(device) if callable(mover) else leaf

    return pytree.tree_map(move, batch)


def _shared_memory_bytes() -> int:
    try:
        state = os.statvfs("/dev/shm")
    except OSError:
        return 2**62
    return int(state.f_bavail * state.f_frsize * _SHARED_SHARE)
