"""Training that survives losing machines: notice, agreement, checkpoints, restore, membership."""

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.elastic.augment import Augmented
    from stallwise.elastic.joining import Member, join
    from stallwise.elastic.order import Resumable
    from stallwise.elastic.session import Session

__all__ = ["Augmented", "Member", "Resumable", "Session", "join"]

# Torch is needed by the training side only; the watch and its arithmetic do without.
__getattr__ = loader(
    __name__,
    {
        "Augmented": "augment",
        "Member": "joining",
        "Resumable": "order",
        "Session": "session",
        "join": "joining",
    },
)
