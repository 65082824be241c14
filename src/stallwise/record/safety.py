"""The training state before ablated blocks, put back after them.

Without exchange the ranks' weights drift apart, and replayed batches are trained on twice; nobody may go on from
that. Kept: parameters and their optimizer state, every buffer of every live module, learning-rate schedulers,
gradient scalers, and the random state of Python, NumPy and torch on all devices.
"""

import copy
import gc
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class Snapshot:
    """Everything a training step changes, as it was when this was made."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._optimizers = [(o, self._remember_optimizer(o)) for o in optimizers]
        self._remember_buffers()
        self._others = [(o, copy.deepcopy(o.state_dict())) for o in _live_schedulers_and_scalers()]
        self._random = _random_state()

    def restore(self) -> None:
        """Put everything back, in place."""
        with torch.no_grad():
            for live, kept in self._tensors:
                live.copy_(kept)
        for optimizer, (groups, states) in self._optimizers:
            for group, kept_group in zip(optimizer.param_groups, groups, strict=True):
                group.update(kept_group)
            _restore_states(optimizer, states)
        for owner, state in self._others:
            owner.load_state_dict(copy.deepcopy(state))
        _set_random_state(self._random)

    def _remember_optimizer(self, optimizer: Optimizer) -> tuple[list[dict[str, Any]], dict[Any, dict[str, Any]]]:
        groups = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._remember(parameter)
            groups.append({name: copy.copy(value) for name, value in group.items() if name != "params"})
        states = {}
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._remember(value)
            states[parameter] = dict(state)
        return groups, states

    def _remember_buffers(self) -> None:
        known = {id(live) for live, _ in self._tensors}
        for thing in gc.get_objects():
            # type() and not isinstance(): lazy proxies among live objects run code when asked for their class.
            if issubclass(type(thing), torch.nn.Module):
                for buffer in thing.__dict__.get("_buffers", {}).values():
                    if isinstance(buffer, torch.Tensor) and id(buffer) not in known:
                        known.add(id(buffer))
                        self._remember(buffer)

    def _remember(self, live: torch.Tensor) -> None:
        self._tensors.append((live, live.detach().clone()))


def _restore_states(optimizer: Optimizer, states: dict[Any, dict[str, Any]]) -> None:
    """Tensors were copied back in place; counters are set, and state that did not exist then is forgotten."""
    for parameter in list(optimizer.state):
        if parameter not in states:
            del optimizer.state[parameter]
        else:
            optimizer.state[parameter].update(states[parameter])


def _live_schedulers_and_scalers() -> list[Any]:
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.amp.grad_scaler.GradScaler)
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])
