"""numba's njit, kept on disk where there is a place to keep it.

`compiled` is for what Python calls, `inner` for what only compiled code calls and is kept inside it: called from Python
it ends the process, for it has no door. What was kept is used again only while no file of this folder has changed:
numba itself looks at the one file a function is in. Of processes that start together one compiles, and the others wait
for what it keeps.
"""

import contextlib
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from numba import njit

# Its stubs know only some of the options.
_njit: Any = njit
# Nothing here makes an array, so none is counted: half the time to compile, and code several times as quick.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use; later processes load what was kept."""
    try:
        made = _njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile it in every process
        return _njit(**_OPTIONS)(function)
    file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = _STAMP
        _share(made._cache)
    return made


def inner(function: Callable[..., Any]) -> Any:
    """Compile as part of what calls it."""
    return _njit(no_cpython_wrapper=True, **_OPTIONS)(function)


def _stamp() -> tuple[float, int]:
    """Changes with any file of the folder."""
    found = [path.stat() for path in Path(__file__).parent.glob("*.py")]
    return max(stat.st_mtime for stat in found), sum(stat.st_size for stat in found)


_STAMP = _stamp()


def _without_scipy() -> None:
    """numba looks for scipy's BLAS when it starts, which takes as long as the rest of it; nothing here multiplies."""
    name = "scipy.linalg.cython_blas"
    if name in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    sys.modules[name] = None  # type: ignore[assignment] # an import of it fails at once
    try:
        from numba.np import arraymath
    finally:
        del sys.modules[name]
    # Whoever compiles linear algebra in this process still gets it.
    arraymath._HAVE_BLAS = importlib.util.find_spec("scipy") is not None


_without_scipy()


class _Turn:
    """Held by the process that compiles. One function compiles others on the way, so it counts."""

    def __init__(self) -> None:
        self.depth = 0
        self.file: IO[bytes] | None = None

    def take(self, folder: str) -> None:
        if self.depth == 0:
            with contextlib.suppress(ImportError, OSError):  # without locks every process compiles for itself
                import fcntl

                Path(folder).mkdir(parents=True, exist_ok=True)
                self.file = (Path(folder) / "compiling").open("wb")
                fcntl.flock(self.file, fcntl.LOCK_EX)
        self.depth += 1

    def give(self) -> None:
        self.depth -= 1
        if self.depth == 0 and self.file is not None:
            self.file.close()


_TURN = _Turn()


def _share(cache: Any) -> None:
    """Make a cache take turns; numba calls it under its own lock, so threads do not meet here."""
    load, save = cache.load_overload, cache.save_overload

    def load_overload(signature: Any, context: Any) -> Any:
        found = _loaded(cache, load, signature, context)
        if found is None:
            _TURN.take(cache.cache_path)
            found = _loaded(cache, load, signature, context)  # somebody may have compiled it meanwhile
            if found is not None:
                _TURN.give()
        return found

    def save_overload(signature: Any, made: Any) -> None:
        try:
            save(signature, made)
        finally:
            _TURN.give()

    cache.load_overload, cache.save_overload = load_overload, save_overload


def _loaded(cache: Any, load: Callable[[Any, Any], Any], signature: Any, context: Any) -> Any:
    try:
        return load(signature, context)
    except (AttributeError, ImportError, EOFError, pickle.UnpicklingError):  # kept by another version of this package
        cache.flush()
        return None
