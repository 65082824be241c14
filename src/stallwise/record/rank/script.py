"""Running the user's script as Python would, and patching modules when the script imports them.

`sys.argv`, `__main__`, `sys.path[0]` and the working directory are what `python train.py …` would give.
`runpy` is not used: it removes `__main__` again when the script ends, and threads, exit handlers and
`spawn`ed children still need it then.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stallwise.errors import InputError


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Execute the file `script` as `__main__`; exceptions propagate."""
    path = Path(script)
    if not path.is_file():
        raise InputError(f"There is no script {script}. Give the path of the training script.")
    absolute = os.path.abspath(script)
    code = compile(path.read_bytes(), absolute, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=absolute,
        __builtins__=builtins,
        __cached__=None,
        # A file loader lets tracebacks and inspect show source lines; spec stays None, as for `python file`.
        __loader__=importlib.machinery.SourceFileLoader("__main__", absolute),
    )
    sys.argv = [script, *arguments]
    # Python follows a link to the script here, but not in __file__.
    _set_first_path(os.path.dirname(os.path.realpath(absolute)))
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Execute the module `name` as `python -m name` would."""
    _set_first_path(os.getcwd())
    spec = _find_main(name)
    if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise InputError(f"There is no module {name} to run. Give a module that `python -m` would run.")
    code = spec.loader.get_code(spec.name)
    if code is None:
        raise InputError(f"The module {name} has no code to run.")
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=spec.origin,
        __builtins__=builtins,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    sys.argv = [spec.origin, *arguments]
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _find_main(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if spec is not None and spec.submodule_search_locations is not None:
        return importlib.util.find_spec(f"{name}.__main__")
    return spec


def when_imported(name: str, patch: Callable[[Any], None]) -> None:
    """Call `patch` with the module `name`: now, or as soon as the script has imported it."""
    if name in sys.modules:
        patch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, patch))


class _AfterImport:
    """A finder that lets the others find `name`, and calls `patch` with the module once it has been executed."""

    def __init__(self, name: str, patch: Callable[[Any], None]) -> None:
        self._name = name
        self._patch = patch
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Called by the import system, and by code that only checks whether the module exists."""
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
