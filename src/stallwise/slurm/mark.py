"""What a job asked for before it was pinned, kept in Slurm itself: `AdminComment=stallwise:{"least":1,"most":8,…}`.

A pin overwrites the nodes a job asked for. They are in the state, and here, so that a lost state is no loss: the next
controller, or the command that takes it off, reads them back. The mark also tells a pin from what somebody wrote into
the job since. Only administrators and operators write this field; where one has, no mark is made.
"""

import zlib
from collections.abc import Iterable
from typing import Self

import msgspec

PREFIX = "stallwise:"
LONG = PREFIX + "long"
_LONGEST = 1000
"""Characters; Slurm takes 1024 in a comment."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job's own words about nodes."""

    least: int = 1
    most: int = 0
    required: tuple[str, ...] = ()
    nodes: int = 0
    """It was pinned to so many."""
    pin: int = 0
    """To these: a sum of their names."""

    @classmethod
    def of(cls, least: int, most: int, required: tuple[str, ...], pinned: Iterable[str]) -> Self:
        """For a job about to be pinned."""
        names = tuple(pinned)
        return cls(least=least, most=most, required=required, nodes=len(names), pin=_sum(names))

    def pinned_to(self, nodes: Iterable[str]) -> bool:
        """Whether a job's required nodes are still those of the pin."""
        return _sum(nodes) == self.pin


def _sum(nodes: Iterable[str]) -> int:
    return zlib.crc32(",".join(sorted(nodes)).encode())


def text_of(mark: Mark) -> str:
    """As it goes into the comment. Where it is too long for one, a word that is no mark: only the state has it then."""
    text = PREFIX + msgspec.json.encode(mark).decode()
    return text if len(text) <= _LONGEST else LONG


def mark_in(comment: str) -> Mark | None:
    """The mark in an administrator's comment; None where there is none."""
    if not comment.startswith(PREFIX):
        return None
    try:
        return msgspec.json.decode(comment[len(PREFIX) :], type=Mark)
    except (msgspec.DecodeError, UnicodeError):
        return None
