"""numba's njit, with compiled code kept on disk where there is a place to keep it.

`compiled` is for functions that Python calls. `inner` is for functions that only compiled code calls; they have no
Python wrapper, so calling one from the interpreter crashes the process. numba itself compares only the file a function
is in; here kept code is used while no file of its folder and of this one has changed. Of processes that start together
one compiles, and the others wait for the result.
"""

import contextlib
import functools
import importlib.util
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from numba import njit

from stallwise.model import splitmix

# Its stubs know only some of the options.
_njit: Any = njit
# No kernel allocates an array, so reference counting is off: half the compile time, and code several times as fast.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "_nrt": False}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use; later processes load the kept code."""
    try:
        dispatcher = _njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile it in every process
        return _njit(**_OPTIONS)(function)
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
        _share(dispatcher._cache)
    return dispatcher


def inner(function: Callable[..., Any]) -> Any:
    """Compile as part of the functions that call it."""
    return _njit(no_cpython_wrapper=True, **_OPTIONS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile as part of the functions that call it, always copied into them.

    A call passes the descriptors of all arrays, some 250 numbers: for what runs many times per event, or is called from
    one place only, this costs more than the body.
    """
    return _njit(no_cpython_wrapper=True, forceinline=True, **_OPTIONS)(function)


@functools.cache
def _stamp(folder: Path) -> tuple[float, int]:
    """Stamp that changes with any file of the folder, of this one, and with the random numbers that both may draw."""
    paths = {*folder.glob("*.py"), *Path(__file__).parent.glob("*.py"), Path(splitmix.__file__)}
    stats = [path.stat() for path in paths]
    return max(stat.st_mtime for stat in stats), sum(stat.st_size for stat in stats)


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
    # Linear algebra can still be compiled in this process.
    arraymath._HAVE_BLAS = importlib.util.find_spec("scipy") is not None


_without_scipy()


class _CompileLock:
    """Lock held by the process that compiles. One function compiles others on the way, so it counts."""

    def __init__(self) -> None:
        self.depth = 0
        self.file: IO[bytes] | None = None

    def acquire(self, folder: str) -> None:
        if self.depth == 0:
            with contextlib.suppress(ImportError, OSError):  # without locks every process compiles for itself
                import fcntl

                Path(folder).mkdir(parents=True, exist_ok=True)
                self.file = (Path(folder) / "compiling").open("wb")
                fcntl.flock(self.file, fcntl.LOCK_EX)
        self.depth += 1

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0 and self.file is not None:
            self.file.close()


_LOCK = _CompileLock()


def _share(cache: Any) -> None:
    """Make a cache compile under the lock; numba calls it under a lock of its own, so threads do not meet here."""
    load, save = cache.load_overload, cache.save_overload

    def load_overload(signature: Any, context: Any) -> Any:
        overload = _loaded(cache, load, signature, context)
        if overload is None:
            _LOCK.acquire(cache.cache_path)
            overload = _loaded(cache, load, signature, context)  # another process may have compiled it meanwhile
            if overload is not None:
                _LOCK.release()
        return overload

    def save_overload(signature: Any, overload: Any) -> None:
        try:
            save(signature, overload)
        finally:
            _LOCK.release()

    cache.load_overload, cache.save_overload = load_overload, save_overload


def _loaded(cache: Any, load: Callable[[Any, Any], Any], signature: Any, context: Any) -> Any:
    try:
        return load(signature, context)
    except (AttributeError, ImportError, EOFError, pickle.UnpicklingError):  # kept by another version of this package
        cache.flush()
        return None
