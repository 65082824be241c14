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

# An update in place of a parameter that no optimizer owns (an average of the weights) shows in its version.
_UPDATED_VERSION = 5

Groups = list[dict[str, Any]]
States = dict[Any, dict[str, Any]]


class Snapshot:
    """Everything a training step changes, as it was when this was made."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._optimizers = [(o, self._remember_groups(o), self._remember_states(o)) for o in optimizers]
        modules, stateful = _live_modules_and_stateful()
        self._remember_modules(modules)
        self._others = [(o, copy.deepcopy(o.state_dict())) for o in stateful]
        self._random = _random_state()

    def restore(self) -> None:
        """Put everything back, in place."""
        with torch.no_grad():
            for live, kept in self._tensors.values():
                live.copy_(kept)
        for optimizer, groups, states in self._optimizers:
            _restore_groups(optimizer, groups)
            _restore_states(optimizer, states)
        for owner, state in self._others:
            owner.load_state_dict(copy.deepcopy(state))
        _set_random_state(self._random)

    def _remember_groups(self, optimizer: Optimizer) -> Groups:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._remember(parameter)
        return [
            {name: self._kept(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def _remember_states(self, optimizer: Optimizer) -> States:
        return {
            parameter: {name: self._kept(value) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }

    def _remember_modules(self, modules: list[torch.nn.Module]) -> None:
        """Buffers; and parameters outside the optimizers, which averages of the weights are made of.

        Frozen weights never change and can be many times the trained ones: they are not copied.
        """
        trained = sum(live.nbytes for live, _ in self._tensors.values())
        others = {id(p): p for m in modules for p in m._parameters.values() if p is not None}
        others = {key: p for key, p in others.items() if key not in self._tensors}
        few = sum(p.nbytes for p in others.values()) <= 2 * trained
        for parameter in others.values():
            if few or parameter._version >= _UPDATED_VERSION:
                self._remember(parameter)
        for module in modules:
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._remember(buffer)

    def _kept(self, value: Any) -> Any:
        """A tensor keeps its identity and is copied back; anything else (counters, lists) is copied now."""
        if isinstance(value, torch.Tensor):
            self._remember(value)
            return value
        return copy.deepcopy(value)

    def _remember(self, live: torch.Tensor) -> None:
        if id(live) not in self._tensors:
            self._tensors[id(live)] = (live, live.detach().clone())


def _restore_groups(optimizer: Optimizer, groups: Groups) -> None:
    for group, kept in zip(optimizer.param_groups, groups, strict=False):
        for name in group.keys() - kept.keys() - {"params"}:
            del group[name]
        group.update(_fresh(kept))


def _restore_states(optimizer: Optimizer, states: States) -> None:
    """State that did not exist then is forgotten, so that the optimizer makes it anew."""
    for parameter in list(optimizer.state):
        if parameter in states:
            optimizer.state[parameter].clear()
            optimizer.state[parameter].update(_fresh(states[parameter]))
        else:
            del optimizer.state[parameter]


def _fresh(kept: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, torch.Tensor) else copy.deepcopy(value) for name, value in kept.items()}


def live_modules() -> list[torch.nn.Module]:
    """All modules, wherever the script keeps them."""
    return _live_modules_and_stateful()[0]


def _live_modules_and_stateful() -> tuple[list[torch.nn.Module], list[Any]]:
    """All modules, and all learning-rate schedulers and gradient scalers, wherever the script keeps them."""
    modules, stateful = [], []
    kinds = (torch.optim.lr_scheduler.LRScheduler, torch.amp.grad_scaler.GradScaler)
    for thing in gc.get_objects():
        # type() and not isinstance(): lazy proxies among live objects run code when asked for their class.
        kind = type(thing)
        if issubclass(kind, torch.nn.Module) and "_parameters" in thing.__dict__:
            modules.append(thing)
        elif issubclass(kind, kinds):
            stateful.append(thing)
    return modules, [thing for thing in stateful if thing.state_dict()]


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
