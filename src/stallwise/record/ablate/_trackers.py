"""Experiment trackers are silent during a profile, whatever the script passes to them: nothing leaves the machine.

Their own variables switch most of them off. Arguments of the script would win over those, so the functions that take
such arguments are patched when the script imports them.
"""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stallwise.record.ablate._scratch import replace_everywhere
from stallwise.record.rank.script import when_imported

TRACKERS = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:{folder}/mlflow",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}

_COMET_KINDS = ("Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment")
_NEPTUNE_STARTS = ("init_run", "init_model", "init_model_version", "init_project", "Run", "Model", "Project")


def silence_trackers(folder: Path) -> None:
    """Switch trackers off, or have them write to `folder`."""
    for name, value in TRACKERS.items():
        os.environ[name] = value.format(folder=folder)
    uri = TRACKERS["MLFLOW_TRACKING_URI"].format(folder=folder)
    when_imported("wandb", _silence_wandb)
    when_imported("mlflow", lambda module: _silence_mlflow(module, uri))
    when_imported("comet_ml", _silence_comet)
    when_imported("neptune", _silence_neptune)


def _silence_wandb(module: Any) -> None:
    _force(module, "init", mode="disabled")
    if callable(getattr(module, "login", None)):
        replace_everywhere(module.login, functools.wraps(module.login)(lambda *_, **__: True))


def _silence_mlflow(module: Any, uri: str) -> None:
    """Keep the script from naming a server; set here once, as it would be by the variable."""
    for name in ("set_tracking_uri", "set_registry_uri"):
        if callable(real := getattr(module, name, None)):
            replace_everywhere(real, _with_uri(real, uri))
    client = getattr(module, "MlflowClient", None)
    if client is not None:
        client.__init__ = _forcing(client.__init__, {"tracking_uri": uri, "registry_uri": uri})


def _with_uri(real: Callable[..., Any], uri: str) -> Callable[..., Any]:
    @functools.wraps(real)
    def called(*_: Any, **__: Any) -> Any:
        return real(uri)

    return called


def _silence_comet(module: Any) -> None:
    for name in _COMET_KINDS:
        kind = getattr(module, name, None)
        if isinstance(kind, type):
            kind.__init__ = _forcing(kind.__init__, {"disabled": True})  # type: ignore[misc]
    _force(module, "start", online=False)


def _silence_neptune(module: Any) -> None:
    for name in _NEPTUNE_STARTS:
        start = getattr(module, name, None)
        if isinstance(start, type):
            start.__init__ = _forcing(start.__init__, {"mode": "debug"})  # type: ignore[misc]
        elif callable(start):
            _force(module, name, mode="debug")


def _force(module: Any, name: str, **arguments: Any) -> None:
    real = getattr(module, name, None)
    if callable(real):
        replace_everywhere(real, _forcing(real, arguments))


def _forcing(function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., Any]:
    """Have a function take `arguments` instead of what its caller passes, where it takes them at all."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return function
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    forced = {name: value for name, value in arguments.items() if takes_any or name in signature.parameters}

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs)
        for name in forced:
            bound.arguments.pop(name, None)
        positional = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        if any(name in forced for name in positional[: len(args)]):
            # It was passed by position: everything is passed by name instead.
            named = {name: value for name, value in bound.arguments.items() if name in positional}
            return function(**(named | bound.kwargs | forced))
        kept = {name: value for name, value in kwargs.items() if name not in forced}
        return function(*args, **kept, **forced)

    return called
