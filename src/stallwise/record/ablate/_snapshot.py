"""The training state before ablated blocks, restored after them.

Without exchange the ranks' weights drift apart, and replayed batches are trained on twice; training must not go on
from that. Kept: parameters, their gradients and optimizer state, every buffer of every live module, averages of the
weights wherever they are, schedulers and gradient scalers of any class, and the state of every random generator that
can be found. Tensors of a GPU are copied there only where they take a small part of what is free, else to the host;
where that has no room either they are not kept, which the record says: the job is thrown away in the end.
"""

import copy
import gc
import random
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any, Literal

import psutil
import torch
from torch.optim import Optimizer

from stallwise.record.processes import without_collection

# An update in place of a parameter that no optimizer owns (an average of the weights) shows in its version.
_UPDATED_VERSION = 5
_DEVICE_SHARE = 0.25
_HOST_SHARE = 0.5
_PLAIN = (int, float, bool, str, type(None))

Groups = list[dict[str, Any]]
States = dict[Any, dict[str, Any]]
Place = Literal["device", "host", "nowhere"]


class TrainingSnapshot:
    """A copy of everything that a training step changes. `place` says where its tensors are."""

    def __init__(self, optimizers: Iterable[Optimizer], *, processes: int = 1) -> None:
        self._live: dict[int, torch.Tensor] = {}
        optimizers = list(optimizers)
        self._optimizers = [(o, self._keep_groups(o), self._keep_states(o)) for o in optimizers]
        modules, stateful = self._used_modules_and_stateful()
        self._keep_modules(modules)
        scripts = _ScriptObjects(optimizers)
        self._containers = [(container, copy.copy(container)) for container in scripts.averages]
        for _, saved in self._containers:
            for value in saved.values() if isinstance(saved, dict) else saved:
                if isinstance(value, torch.Tensor):
                    self._keep_tensor(value)
        stateful = _distinct([*stateful, *scripts.stateful])
        self._others = [(o, state) for o in stateful if (state := _state_of(o))]
        self._counters = [(o, _plain_attributes(o)) for o in scripts.schedulers]
        self._generators = [(g, _generator_state(g)) for g in scripts.generators]
        self._random = _random_state()
        trained = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        # Sparse gradients are made anew by every backward.
        trained = [p for p in trained if p.grad is None or p.grad.layout == torch.strided]
        self.place: Place = _place(self._live.values(), trained, processes)
        self._tensors = [(live, self._copied(live)) for live in self._live.values()] if self.place != "nowhere" else []
        self._kept_gradients = (
            [(p, None if p.grad is None else self._copied(p.grad)) for p in trained] if self.place != "nowhere" else []
        )

    def restore(self) -> None:
        """Restore everything, in place."""
        for container, saved in self._containers:
            _restore_entries(container, saved)
        with torch.no_grad():
            for live, copied in self._tensors:
                live.copy_(copied)
            for parameter, gradient in self._kept_gradients:
                _restore_gradient(parameter, gradient)
        for optimizer, groups, states in self._optimizers:
            _restore_groups(optimizer, groups)
            _restore_states(optimizer, states)
        for owner, state in self._others:
            owner.load_state_dict(copy.deepcopy(state))
        for owner, attributes in self._counters:
            vars(owner).update(copy.deepcopy(attributes))
        for generator, state in self._generators:
            _set_generator_state(generator, state)
        _set_random_state(self._random)

    def _copied(self, live: torch.Tensor) -> torch.Tensor:
        live = live.detach()
        return live.to("cpu", copy=True) if self.place == "host" else live.clone()

    def _keep_groups(self, optimizer: Optimizer) -> Groups:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._keep_tensor(parameter)
        return [
            {name: self._keep_value(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]

    def _keep_states(self, optimizer: Optimizer) -> States:
        return {
            parameter: {name: self._keep_value(value) for name, value in state.items()}
            for parameter, state in optimizer.state.items()
        }

    def _keep_modules(self, modules: list[torch.nn.Module]) -> None:
        """Keep buffers, and parameters outside the optimizers, of which averages of the weights are made.

        Frozen weights never change and can be many times the trained ones: they are not copied.
        """
        others, few = self._others_of(modules), self._are_few(modules)
        for parameter in others.values():
            if few or parameter._version >= _UPDATED_VERSION:
                self._keep_tensor(parameter)
        for module in modules:
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._keep_tensor(buffer)

    def _used_modules_and_stateful(self) -> tuple[list[torch.nn.Module], list[Any]]:
        """Models that nobody uses any more are no reason to leave out an average of the weights."""
        modules, stateful = _live_modules_and_stateful()
        if self._are_few(modules):
            return modules, stateful
        del modules, stateful
        gc.collect()
        return _live_modules_and_stateful()

    def _others_of(self, modules: list[torch.nn.Module]) -> dict[int, torch.Tensor]:
        """Parameters outside the optimizers."""
        every = {id(p): p for m in modules for p in m._parameters.values() if p is not None}
        return {key: p for key, p in every.items() if key not in self._live}

    def _are_few(self, modules: list[torch.nn.Module]) -> bool:
        """Whether the parameters outside the optimizers are at most twice what the optimizers hold."""
        trained_bytes = sum(live.nbytes for live in self._live.values())
        return sum(p.nbytes for p in self._others_of(modules).values()) <= 2 * trained_bytes

    def _keep_value(self, value: Any) -> Any:
        """A tensor keeps its identity and is copied back; anything else (counters, lists) is copied now."""
        if isinstance(value, torch.Tensor):
            self._keep_tensor(value)
            return value
        return copy.deepcopy(value)

    def _keep_tensor(self, live: torch.Tensor) -> None:
        self._live.setdefault(id(live), live)


def _place(live: Iterable[torch.Tensor], parameters: Iterable[torch.Tensor], processes: int) -> Place:
    """Where copies of these tensors and gradients find room; `processes` of this machine do the same at once."""
    tensors = [*live, *(p.grad for p in parameters if p.grad is not None)]
    on_gpu: dict[torch.device, int] = {}
    for tensor in tensors:
        if tensor.is_cuda:
            on_gpu[tensor.device] = on_gpu.get(tensor.device, 0) + tensor.nbytes
    host_bytes = sum(tensor.nbytes for tensor in tensors if not tensor.is_cuda)
    room_bytes = _HOST_SHARE * psutil.virtual_memory().available / processes
    if host_bytes > room_bytes:
        return "nowhere"
    if all(size <= _DEVICE_SHARE * _free_bytes(device) for device, size in on_gpu.items()):
        return "device"
    return "host" if host_bytes + sum(on_gpu.values()) <= room_bytes else "nowhere"


def _free_bytes(device: torch.device) -> int:
    """Memory of a GPU that can be had: free, or cached by torch and not in use."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _restore_gradient(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    if gradient is None:
        parameter.grad = None
    elif parameter.grad is not None and parameter.grad.shape == gradient.shape:
        parameter.grad.copy_(gradient)
    else:
        parameter.grad = gradient.to(parameter.device, copy=True)


def _restore_groups(optimizer: Optimizer, groups: Groups) -> None:
    for group, snapshot in zip(optimizer.param_groups, groups, strict=False):
        for name in group.keys() - snapshot.keys() - {"params"}:
            del group[name]
        group.update(_copied(snapshot))


def _restore_states(optimizer: Optimizer, states: States) -> None:
    """Restore optimizer state; state that did not exist then is removed, so that the optimizer creates it anew."""
    for parameter in list(optimizer.state):
        if parameter in states:
            optimizer.state[parameter].clear()
            optimizer.state[parameter].update(_copied(states[parameter]))
        else:
            del optimizer.state[parameter]


def _restore_entries(container: Any, saved: Any) -> None:
    """Put the tensors of a list or dictionary back: averages are often replaced by new ones instead of changed."""
    entries = saved.items() if isinstance(saved, dict) else enumerate(saved)
    if len(container) == len(saved):
        for key, value in list(entries):
            if isinstance(value, torch.Tensor) and (not isinstance(container, dict) or key in container):
                container[key] = value


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value if isinstance(value, torch.Tensor) else copy.deepcopy(value) for name, value in state.items()}


def _state_of(thing: Any) -> Any:
    """A copy of an object's `state_dict()`; None where it gives none that can be copied."""
    try:
        return copy.deepcopy(thing.state_dict())
    except Exception:
        return None


def _plain_attributes(thing: Any) -> dict[str, Any]:
    """Numbers, texts and lists of them among an object's attributes."""
    return {name: copy.deepcopy(value) for name, value in vars(thing).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, _PLAIN) for item in value)
    return isinstance(value, _PLAIN)


def _distinct(things: Iterable[Any]) -> list[Any]:
    return list({id(thing): thing for thing in things}.values())


def live_modules() -> list[torch.nn.Module]:
    """All live modules, wherever the script keeps them."""
    return _live_modules_and_stateful()[0]


def _live_modules_and_stateful() -> tuple[list[torch.nn.Module], list[Any]]:
    """All live modules, and all learning-rate schedulers and gradient scalers, wherever the script keeps them."""
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


class _ScriptObjects:
    """What else a step may change, among the script's variables and the attributes of its objects.

    Looked for from the frames that are running and from the script's modules, a few references deep: all live objects
    are millions.
    """

    _DEEPEST = 3
    _MOST = 20_000

    def __init__(self, optimizers: list[Optimizer]) -> None:
        self.averages: list[Any] = []
        self.stateful: list[Any] = []
        self.schedulers: list[Any] = []
        self.generators: list[Any] = []
        self._optimizers = {id(o) for o in optimizers}
        self._shapes = {p.shape for o in optimizers for group in o.param_groups for p in group["params"]}
        self._parameters = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
        self._seen: set[int] = set()
        self._left = self._MOST
        for variables in _variables():
            for value in variables.values():
                self._look(value, 0)

    def _look(self, thing: Any, depth: int) -> None:
        kind = type(thing)
        if kind in _PLAIN or id(thing) in self._seen or self._left <= 0:
            return
        self._seen.add(id(thing))
        self._left -= 1
        if _is_generator(kind):
            self.generators.append(thing)
        elif kind in (list, dict):
            self._look_inside(thing, depth)
        elif _is_the_scripts(kind):
            self._note(thing, kind)
            if depth < self._DEEPEST:
                for value in list(vars(thing).values()) if hasattr(thing, "__dict__") else ():
                    self._look(value, depth + 1)

    def _look_inside(self, container: Any, depth: int) -> None:
        values = list(container.values()) if type(container) is dict else list(container)
        tensors = [value for value in values if type(value) is torch.Tensor]
        if any(t.shape in self._shapes and id(t) not in self._parameters and not t.requires_grad for t in tensors):
            self.averages.append(container)
        if depth < self._DEEPEST and len(values) <= 1000:
            for value in values:
                self._look(value, depth + 1)

    def _note(self, thing: Any, kind: type) -> None:
        if issubclass(kind, (torch.nn.Module, Optimizer, torch.utils.data.DataLoader)) or not callable(
            getattr(kind, "step", None) or getattr(kind, "step_update", None) or getattr(kind, "update", None)
        ):
            return
        if callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None)):
            self.stateful.append(thing)
        elif any(id(value) in self._optimizers for value in getattr(thing, "__dict__", {}).values()):
            self.schedulers.append(thing)


def _variables() -> list[dict[str, Any]]:
    """Variables of the script's running functions, of all threads, and of its main module."""
    variables = []
    with without_collection():
        threads = sys._current_frames()
        main = threads.pop(threading.main_thread().ident or 0, None)
        for innermost in (main, *threads.values()):
            frame: FrameType | None = innermost
            while frame is not None:
                if not frame.f_globals.get("__name__", "").startswith(("stallwise.", "threading", "importlib")):
                    variables.append(dict(frame.f_locals))
                frame = frame.f_back
    return [*variables, dict(vars(sys.modules["__main__"]))]


_NOT_THE_SCRIPTS = ("stallwise", "builtins", "torch", "numpy", "typing", "functools", "_thread", "threading", "logging")


def _is_the_scripts(kind: type) -> bool:
    """Whether objects of a class may be the script's own, or of a library that trains for it."""
    module = getattr(kind, "__module__", "")
    return isinstance(module, str) and module.partition(".")[0] not in _NOT_THE_SCRIPTS and kind is not type


def _is_generator(kind: type) -> bool:
    if issubclass(kind, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, (numpy.random.Generator, numpy.random.RandomState))


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return copy.deepcopy(generator.bit_generator.state)
    return generator.get_state()


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = copy.deepcopy(state)
    else:
        generator.set_state(state)


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
