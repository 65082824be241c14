"""numba's njit, kept on disk where there is a place to keep it.

`compiled` is for what Python calls, `inner` for what only compiled code calls and is kept inside it. What was kept is
used again only while no file of this folder has changed: numba itself looks at the one file a function is in.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

# Its stubs know only some of the options.
_njit: Any = njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on first use; later processes load what was kept."""
    try:
        made = _njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    except RuntimeError:  # nowhere to keep the compiled code: compile it in every process
        return _njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    file = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if file is not None:
        file._source_stamp = _STAMP
    return made


def inner(function: Callable[..., Any]) -> Any:
    """Compile as part of what calls it."""
    return _njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)


def _stamp() -> tuple[float, int]:
    """Changes with any file of the folder."""
    found = [path.stat() for path in Path(__file__).parent.glob("*.py")]
    return max(stat.st_mtime for stat in found), sum(stat.st_size for stat in found)


_STAMP = _stamp()
