"""Training that survives losing machines: notice, agreement, checkpoints, restore, membership."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stallwise.elastic.augment import Augmented
    from stallwise.elastic.joining import Member, join
    from stallwise.elastic.order import Resumable
    from stallwise.elastic.session import Session

__all__ = ["Augmented", "Member", "Resumable", "Session", "join"]

_HOMES = {
    "Augmented": "augment",
    "Member": "joining",
    "Resumable": "order",
    "Session": "session",
    "join": "joining",
}


def __getattr__(name: str) -> Any:
    # Torch is needed by the training side only; the watch and its arithmetic do without.
    if name not in _HOMES:
        raise AttributeError(f"module 'stallwise.elastic' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"stallwise.elastic.{_HOMES[name]}"), name)
