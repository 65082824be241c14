"""Running the user's script as if nobody watched.

`sys.argv`, `__main__`, `sys.path[0]` and the working directory are what `python train.py …` would give.
`runpy` is not used: it takes `__main__` away again when the script ends, and threads, exit handlers and
`spawn`ed children still need it then.
"""

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from stallwise.errors import InputError


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Execute the file `script` as `__main__`; what it raises comes through."""
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
    _lead_path(os.path.dirname(os.path.realpath(absolute)))
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def run_module(name: str, arguments: Sequence[str]) -> None:
    """Execute the module `name` as `python -m name` would."""
    _lead_path(os.getcwd())
    found = _find_main(name)
    if found is None or found.origin is None or not isinstance(found.loader, importlib.machinery.SourceFileLoader):
        raise InputError(f"There is no module {name} to run. Give a module that `python -m` would run.")
    code = found.loader.get_code(found.name)
    if code is None:
        raise InputError(f"The module {name} has no code to run.")
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=found.origin,
        __builtins__=builtins,
        __loader__=found.loader,
        __package__=found.parent,
        __spec__=found,
    )
    sys.argv = [found.origin, *arguments]
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _lead_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _find_main(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if found is not None and found.submodule_search_locations is not None:
        return importlib.util.find_spec(f"{name}.__main__")
    return found
