"""What the script saves while it is profiled goes to a scratch folder, and is found there again.

A profile trains on replayed batches; a checkpoint of that must not overwrite a real one. `torch.save`, distributed
checkpoints and safetensors write from C++ or to names of their own and are led aside here; everything that goes
through Python's own file functions is led aside in `scratch`. Trackers (Weights & Biases, MLflow …) are switched off
or pointed there by their own variables.
"""

import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from stallwise.record.scratch import Scratch, guard_files

Told = Callable[[str, float, float, str | None], None]
"""(kind, start, duration, detail): a checkpoint was saved."""

TRACKERS = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:{scratch}/mlflow",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}


def guard_writes(scratch: Scratch, told: Told) -> None:
    """Lead every known way of saving a checkpoint to the scratch folder, and time it."""
    _guard_torch(scratch, told)
    _guard_distributed_checkpoint(scratch, told)
    _guard_safetensors(scratch, told)
    guard_files(scratch)
    for name, value in TRACKERS.items():
        os.environ[name] = value.format(scratch=scratch.folder)


def time_writes(told: Told) -> None:
    """Time checkpoints without moving them (`--allow-writes`, light mode)."""
    torch.save = _timed(torch.save, _unchanged, told)


def _guard_torch(scratch: Scratch, told: Told) -> None:
    torch.save = _timed(torch.save, _redirected(scratch.write_to, 1, "f"), told)
    torch.load = _plain(torch.load, _redirected(scratch.read_from, 0, "f"))


def _guard_distributed_checkpoint(scratch: Scratch, told: Told) -> None:
    """Its readers and writers hold the path; whoever makes or resets one, here is where the path comes in."""

    def patch(checkpoint: Any) -> None:
        held = (
            (checkpoint.filesystem._FileSystemWriter, scratch.write_to),
            (checkpoint.FileSystemReader, scratch.read_from),
        )
        for kind, where in held:
            kind.__init__ = _plain(kind.__init__, _redirected(where, 1, "path"))
            kind.reset = _plain(kind.reset, _redirected(where, 1, "checkpoint_id"))
        for name in ("save", "async_save"):
            setattr(checkpoint, name, _timed(getattr(checkpoint, name), _unchanged, told))

    _when_imported("torch.distributed.checkpoint", patch)


def _guard_safetensors(scratch: Scratch, told: Told) -> None:
    def patch(module: Any) -> None:
        module.save_file = _timed(module.save_file, _redirected(scratch.write_to, 1, "filename"), told)
        module.load_file = _plain(module.load_file, _redirected(scratch.read_from, 0, "filename"))

    _when_imported("safetensors.torch", patch)


Change = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _unchanged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def _redirected(where: Callable[[Any], Any], position: int, name: str) -> Change:
    def change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > position:
            return (*args[:position], where(args[position]), *args[position + 1 :]), kwargs
        return args, kwargs | {name: where(kwargs[name])} if name in kwargs else kwargs

    return change


def _plain(function: Callable[..., Any], change: Change) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return called


def _timed(function: Callable[..., Any], change: Change, told: Told) -> Callable[..., Any]:
    inner = _plain(function, change)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        try:
            return inner(*args, **kwargs)
        finally:
            told("checkpoint", start, time.monotonic() - start, getattr(function, "__name__", None))

    return called


def _when_imported(name: str, patch: Callable[[Any], None]) -> None:
    """Patch a module that is not ours to import: now, or as soon as the script has imported it."""
    if name in sys.modules:
        patch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, patch))


class _AfterImport:
    """A finder that lets the others find `name`, and calls `patch` with the module once it has been executed."""

    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self._name = name
        self._patch = patch
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Part of the import system; also asked by those who only want to know whether the module exists."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if found is None or found.loader is None:
            return found
        load = found.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._patch(module)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found
