"""Stallwise: where a training job's time and money go, what would change it, and what to rent.

The public names are flat; heavy modules load when a name is first used, so that `import stallwise` stays
cheap inside a training script.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwise.errors import StallwiseError
    from stallwise.notebook import open_profile
    from stallwise.record.marks import batches, step

__version__ = "0.1.0.dev0"

__all__ = ["StallwiseError", "__version__", "batches", "open_profile", "step"]

_HOMES = {
    "StallwiseError": "stallwise.errors",
    "batches": "stallwise.record.marks",
    "open_profile": "stallwise.notebook",
    "step": "stallwise.record.marks",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stallwise' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
