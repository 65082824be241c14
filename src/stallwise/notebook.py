"""The door for Python sessions: a run's profile as an object that a notebook draws."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stallwise.report.html import ShownProfile


def open_profile(run: str | os.PathLike[str]) -> "ShownProfile":
    """Where the time of a run goes: its split, rates and verdict, typed; drawn as a page in notebooks."""
    from stallwise.record.detail import detail_of
    from stallwise.record.profile import profile_of
    from stallwise.report.html import show
    from stallwise.run.reader import Run

    opened = Run.open(Path(run))
    return show(profile_of(opened), detail_of(opened))
