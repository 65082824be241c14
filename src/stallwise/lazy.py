"""Names of a package that load when they are first used.

A package's public names are flat, and importing it must stay cheap: torch is needed by few of them.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of `package` (PEP 562): `homes` maps public names to the modules below it that define them."""

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return find
