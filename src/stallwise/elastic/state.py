"""What a job is, as tensors and small objects, and the job again from them.

    model, optimizer      by parameter names (torch.distributed.checkpoint.state_dict): on any number of ranks again
    shared                schedule, scaler: the same everywhere, written by rank 0
    ranks                 random state and position in the data, each rank its own

Where ranks hold the same tensor (DDP) each is one rank's to copy and write, by size in turn, so that a save costs every
rank its part only. What is no parameter (batch-norm statistics) is rank 0's: DDP itself takes it from there.
"""

import io
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

State = dict[str, Any]
_WHOLE = StateDictOptions()


def module_state(model: nn.Module, optimizer: Any) -> State:
    """Model and optimizer by name; tensors are the job's own, not copies."""
    kept = [_state_of(one) for one in _list(optimizer)]
    found, optimizers = get_state_dict(model, _list(optimizer), options=_WHOLE)
    for one, empty in zip(_list(optimizer), kept, strict=True):
        if empty:
            one.state.clear()  # it was made only to be asked
    return {"model": found, "optimizer": optimizers}


def _state_of(optimizer: Any) -> bool:
    return not optimizer.state


def load_module_state(model: nn.Module, optimizer: Any, state: State) -> None:
    """Put it back."""
    set_state_dict(
        model,
        _list(optimizer),
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_WHOLE,
    )


def _list(optimizer: Any) -> list[Any]:
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def flat(state: State) -> State:
    """Names with dots, as DCP makes them."""
    found: State = flatten_state_dict(state)[0]
    return found


def share(flattened: Mapping[str, Any], buffers: frozenset[str], rank: int, world: int) -> State:
    """This rank's part of what all hold, and all of what is its own already (sharded tensors)."""
    load = [0] * world
    mine: State = {}
    for name in sorted(flattened, key=lambda name: (-_bytes(flattened[name]), name)):
        value = flattened[name]
        if isinstance(value, DTensor):
            mine[name] = value
            continue
        owner = 0 if name in buffers or not isinstance(value, torch.Tensor) else load.index(min(load))
        load[owner] += _bytes(value)
        if owner == rank:
            mine[name] = value
    return mine


def buffer_names(model: nn.Module) -> frozenset[str]:
    """Names, in the state, of what is no parameter."""
    inner = model.module if hasattr(model, "module") and isinstance(model.module, nn.Module) else model
    return frozenset(f"model.{name}" for name, _ in inner.named_buffers())


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


class Stage:
    """Copies of tensors in memory of the host, kept from save to save; pinned where the tensor is on a GPU."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def copy(self, mine: State) -> State:
        """The same names, with tensors that training does not touch any more. Returns when all are copied."""
        on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in mine.values())
        if on_gpu:
            torch.cuda.synchronize()  # the step may have been made on other streams than the copy is
        copied = {name: self._one(name, value) for name, value in mine.items()}
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return copied

    def _one(self, name: str, value: Any) -> Any:
        if isinstance(value, DTensor):
            local = self._one(name, value.to_local())
            return DTensor.from_local(
                local, value.device_mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
            )
        if not isinstance(value, torch.Tensor):
            return value
        kept = self._kept.get(name)
        if kept is None or kept.shape != value.shape or kept.dtype != value.dtype:
            kept = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=value.is_cuda)
            self._kept[name] = kept
        kept.copy_(value.detach(), non_blocking=True)
        return kept


def packed(value: Any) -> bytes:
    """Any small object as bytes."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def unpacked(data: bytes) -> Any:
    """And back. Checkpoints are the user's own; their checksums were checked before."""
    return torch.load(io.BytesIO(data), weights_only=False)


def random_state() -> State:
    """Of Python, NumPy, torch and this rank's GPU."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: State) -> None:
    """As it was."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
