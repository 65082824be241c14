"""The errors a user can meet.

    StallwiseError                 anything Stallwise says no to, with one clear sentence
    ├── InputError                 a file, argument or value that cannot be used as given
    │   ├── CacheError             a folder that cannot serve as a cache
    │   ├── CatalogError           a catalog table or price list that cannot be read
    │   └── UnknownNameError       a GPU, instance, region … nobody knows; carries the nearest names
    ├── RunError                   a run record that cannot be read or written
    │   └── RunVersionError        written by a newer Stallwise
    ├── ObjectError                an object of a bucket that cannot be read
    ├── MissingFeatureError        an optional package or program is not installed
    └── OfflineError               the network was needed and could not be reached

Each message says what happened, on which input, and what to do next. The command line prints it and exits
with code 2; a traceback means a bug in Stallwise.
"""

import difflib
from collections.abc import Iterable

__all__ = [
    "CacheError",
    "CatalogError",
    "InputError",
    "MissingFeatureError",
    "ObjectError",
    "OfflineError",
    "RunError",
    "RunVersionError",
    "StallwiseError",
    "UnknownNameError",
]


class StallwiseError(Exception):
    """Root of everything Stallwise raises on purpose."""


class InputError(StallwiseError):
    """A file, argument or value cannot be used as given."""


class CacheError(InputError):
    """A folder cannot serve as a cache: not ours, not writable, another format, or in use in another way."""


class CatalogError(InputError):
    """A catalog table or price list cannot be read."""


class UnknownNameError(InputError):
    """No such GPU, instance, region …; `nearest` holds the closest known names."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.nearest = nearest_names(name, known)
        hint = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        super().__init__(f"No {kind} is called {name!r}.{hint}")


class RunError(StallwiseError):
    """A run record cannot be read or written."""


class RunVersionError(RunError):
    """The run record was written by a newer Stallwise than this one."""


class ObjectError(StallwiseError):
    """An object of a bucket cannot be read: gone, changed, forbidden, or out of reach after the last of `tries`."""

    def __init__(self, message: str, tries: int = 1) -> None:
        self.tries = tries
        super().__init__(message)


class MissingFeatureError(StallwiseError):
    """An optional package or program that this command needs is not installed."""


class OfflineError(StallwiseError):
    """The network was needed and could not be reached."""


def nearest_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The known names closest to `name`, ignoring case, `-`, `_` and spaces; names that contain it come first."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    candidates = {plain(k): k for k in sorted(set(known), reverse=True)}
    wanted = plain(name)
    inside = sorted((k for k in candidates if wanted and wanted in k), key=lambda k: (len(k), k))
    close = difflib.get_close_matches(wanted, candidates, n=limit, cutoff=0.5)
    return tuple(candidates[k] for k in dict.fromkeys([*inside, *close]))[:limit]
