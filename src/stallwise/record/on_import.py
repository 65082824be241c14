"""Patching modules that are not ours to import: as soon as the script has imported them."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


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
