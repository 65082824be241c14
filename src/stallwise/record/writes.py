"""What the script saves while it is profiled goes to a scratch folder, and is found there again.

A profile trains on replayed batches; a checkpoint of that must not overwrite a real one. `torch.save`, distributed
checkpoints and safetensors write from C++ or to names of their own and are led aside here; everything that goes
through Python's own file functions is led aside in `scratch`. Trackers (Weights & Biases, MLflow …) are switched off
or pointed there by their own variables.
"""

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from stallwise.record.on_import import when_imported
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
    _guard_tokenizers(scratch)
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

    when_imported("torch.distributed.checkpoint", patch)


def _guard_safetensors(scratch: Scratch, told: Told) -> None:
    def patch(module: Any) -> None:
        save, load = module.save_file, module.load_file
        _replace_everywhere(save, _timed(save, _redirected(scratch.write_to, 1, "filename"), told))
        _replace_everywhere(load, _plain(load, _redirected(scratch.read_from, 0, "filename")))

    when_imported("safetensors.torch", patch)


def _replace_everywhere(function: Callable[..., Any], guarded: Callable[..., Any]) -> None:
    """Where a profile begins late, frameworks have the function under names of their own already."""
    for module in list(sys.modules.values()):
        names = [name for name, value in list(getattr(module, "__dict__", {}).items()) if value is function]
        for name in names:
            setattr(module, name, guarded)


def _guard_tokenizers(scratch: Scratch) -> None:
    """Hugging Face's fast tokenizers write from Rust."""

    def patch(module: Any) -> None:
        kind = module.PreTrainedTokenizerBase
        kind.save_pretrained = _plain(kind.save_pretrained, _redirected(scratch.write_to, 1, "save_directory"))

    when_imported("transformers.tokenization_utils_base", patch)


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
