"""What a job says about itself beyond Slurm's fields, in its comment: `stallwise:{"speeds":[1,0.9,0.6],…}`.

Comments are the user's own text. What does not decode, or lies outside its bounds, counts as not said.
"""

import math
from typing import Annotated

import msgspec

from stallwise.errors import InputError

PREFIX = "stallwise:"
_LONGEST = 1024
"""Characters that Slurm takes in a comment."""

Speed = Annotated[float, msgspec.Meta(gt=0, le=1)]


class Ask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job's own words."""

    speeds: Annotated[tuple[Speed, ...], msgspec.Meta(max_length=8)] = ()
    """Speed inside a machine, inside a rack, beyond: 1 is full. Empty: placement does not matter."""
    model: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """Jobs of one model learn from each other."""
    step_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """One step at full speed; makes a single observed speed worth something."""
    work_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """How long it will run at full speed, where somebody knows."""
    record: Annotated[str, msgspec.Meta(max_length=1000)] | None = None
    """Folder of the run record it writes."""


def comment_of(ask: Ask) -> str:
    """As it goes to `sbatch --comment`."""
    text = PREFIX + msgspec.json.encode(ask).decode()
    if len(text) > _LONGEST:
        raise InputError(f"What the job says about itself is {len(text)} characters long; Slurm takes {_LONGEST}.")
    return text


def ask_in(comment: str) -> Ask | None:
    """What a comment says; None where it is not ours or cannot be used."""
    at = comment.find(PREFIX)
    if at < 0 or len(comment) > 2 * _LONGEST:
        return None
    try:
        found = msgspec.json.decode(comment[at + len(PREFIX) :], type=Ask)
    except (msgspec.DecodeError, UnicodeError):
        return None
    numbers = (*found.speeds, found.step_s or 1.0, found.work_s or 1.0)
    return found if all(math.isfinite(value) for value in numbers) else None
