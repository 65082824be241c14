"""What the script saves while it is profiled goes to a scratch folder, and is found there again.

A profile trains on replayed batches; a checkpoint of that must not overwrite a real one. `torch.save`, distributed
checkpoints and safetensors are led to the scratch folder, and reading, renaming or removing such a file follows it
there. Trackers (Weights & Biases, MLflow, TensorBoard) are switched off or pointed there by their own variables.
Everything else the script writes is the script's own business.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Told = Callable[[str, float, float, str | None], None]
"""(kind, start, duration, detail): a checkpoint was saved."""

TRACKERS = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:{scratch}/mlflow",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}


class Scratch:
    """Maps what the script calls a file to where it really lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._moved: dict[str, Path] = {}

    def write_to(self, path: Any) -> Any:
        """Where a file that the script wants to write goes; other targets (open files) are left alone."""
        if not isinstance(path, (str, os.PathLike)):
            return path
        absolute = os.path.abspath(path)
        target = self.folder / absolute.lstrip(os.sep)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._moved[absolute] = target
        return target

    def read_from(self, path: Any) -> Any:
        """Where a file that the script wants to read lies."""
        if not isinstance(path, (str, os.PathLike)):
            return path
        return self._moved.get(os.path.abspath(path), path)

    def rename(self, old: Any, new: Any, rename: Callable[..., Any], **options: Any) -> Any:
        """Rename a file; one that lies in the scratch folder stays there under its new name."""
        lies = self.read_from(old)
        if lies is old or lies == old:
            return rename(old, new, **options)
        self._moved.pop(os.path.abspath(old), None)
        return rename(lies, self.write_to(new), **options)

    def remove(self, path: Any, remove: Callable[..., Any], **options: Any) -> Any:
        """Remove a file; one that was only ever written to the scratch folder is removed there."""
        lies = self.read_from(path)
        if lies is not path and lies != path:
            self._moved.pop(os.path.abspath(path), None)
        return remove(lies, **options)


def guard_writes(scratch: Scratch, told: Told) -> None:
    """Lead every known way of saving a checkpoint to the scratch folder, and time it."""
    _guard_torch(scratch, told)
    _guard_distributed_checkpoint(scratch, told)
    _guard_safetensors(scratch, told)
    _guard_files(scratch)
    for name, value in TRACKERS.items():
        os.environ[name] = value.format(scratch=scratch.folder)


def time_writes(told: Told) -> None:
    """Time checkpoints without moving them (`--allow-writes`, light mode)."""
    torch.save = _timed(torch.save, lambda args, kwargs: (args, kwargs), told)


def _guard_torch(scratch: Scratch, told: Told) -> None:
    torch.save = _timed(torch.save, _redirected(scratch.write_to, 1, "f"), told)
    torch.load = _plain(torch.load, _redirected(scratch.read_from, 0, "f"))


def _guard_distributed_checkpoint(scratch: Scratch, told: Told) -> None:
    if not torch.distributed.is_available():
        return
    from torch.distributed import checkpoint

    def move(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if kwargs.get("checkpoint_id") is not None:
            kwargs = kwargs | {"checkpoint_id": scratch.write_to(kwargs["checkpoint_id"])}
        writer = kwargs.get("storage_writer")
        if writer is not None and hasattr(writer, "path"):
            writer.path = scratch.write_to(writer.path)
        return args, kwargs

    checkpoint.save = _timed(checkpoint.save, move, told)  # type: ignore[attr-defined]
    checkpoint.async_save = _timed(checkpoint.async_save, move, told)  # type: ignore[attr-defined]


def _guard_safetensors(scratch: Scratch, told: Told) -> None:
    """safetensors is not ours to import: patch it when the script has it, now or at its first import."""

    def patch(module: Any) -> None:
        module.save_file = _timed(module.save_file, _redirected(scratch.write_to, 1, "filename"), told)
        module.load_file = _plain(module.load_file, _redirected(scratch.read_from, 0, "filename"))

    if "safetensors.torch" in sys.modules:
        patch(sys.modules["safetensors.torch"])
    else:
        sys.meta_path.insert(0, _AfterImport("safetensors.torch", patch))


def _guard_files(scratch: Scratch) -> None:
    """Atomic saving (write aside, then rename) and rotating old checkpoints must go on working."""
    for name in ("rename", "replace"):
        original = getattr(os, name)

        def rename(old: Any, new: Any, _original: Any = original, **options: Any) -> Any:
            return scratch.rename(old, new, _original, **options)

        setattr(os, name, rename)
    for name in ("remove", "unlink"):
        original = getattr(os, name)

        def remove(path: Any, _original: Any = original, **options: Any) -> Any:
            return scratch.remove(path, _original, **options)

        setattr(os, name, remove)
    for name in ("exists", "isfile", "getsize"):
        original = getattr(os.path, name)

        def look(path: Any, _original: Any = original) -> Any:
            return _original(scratch.read_from(path))

        setattr(os.path, name, look)


Change = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


def _redirected(where: Callable[[Any], Any], position: int, name: str) -> Change:
    def change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > position:
            return (*args[:position], where(args[position]), *args[position + 1 :]), kwargs
        return args, kwargs | {name: where(kwargs[name])} if name in kwargs else kwargs

    return change


def _plain(function: Callable[..., Any], change: Change) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = change(args, kwargs)
        return function(*args, **kwargs)

    return called


def _timed(function: Callable[..., Any], change: Change, told: Told) -> Callable[..., Any]:
    inner = _plain(function, change)

    def called(*args: Any, **kwargs: Any) -> Any:
        start = time.monotonic()
        try:
            return inner(*args, **kwargs)
        finally:
            told("checkpoint", start, time.monotonic() - start, getattr(function, "__name__", None))

    return called


class _AfterImport:
    """A finder that finds nothing; it lets the real one load `name` and then calls `patch` with the module."""

    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Part of the import system."""
        if name != self._name:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is None or found.loader is None:
            return found
        load = found.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            self._patch(module)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found
