"""The errors a user can meet.

    StallwiseError                 anything Stallwise says no to, with one clear sentence
    ├── InputError                 a file, argument or value that cannot be used as given
    │   ├── CacheError             a folder that cannot serve as a cache
    │   ├── CatalogError           a catalog table or price list that cannot be read
    │   ├── QuantityError          a text that is no size, time, rate … or lacks its unit; carries the text
    │   └── UnknownNameError       a GPU, instance, region … nobody knows; carries the nearest names
    ├── RunError                   a run record that cannot be read or written
    │   └── RunVersionError        written by a newer Stallwise
    ├── ObjectError                an object of a bucket that cannot be read
    ├── MeasurementError           something that cannot be measured here and now
    ├── MissingFeatureError        an optional package or program is not installed
    └── OfflineError               the network was needed and could not be reached

Each message says what happened, on which input, and what to do next, in words that fit every caller. Which
parameters it is about stands in `fields`, by their Python names: the command line turns them into its options, the
web page into fields of its form. A traceback means a bug in Stallwise.
"""

import difflib
from collections.abc import Iterable, Sequence

__all__ = [
    "CacheError",
    "CatalogError",
    "InputError",
    "MeasurementError",
    "MissingFeatureError",
    "ObjectError",
    "OfflineError",
    "QuantityError",
    "RunError",
    "RunVersionError",
    "StallwiseError",
    "UnknownNameError",
]


class StallwiseError(Exception):
    """Root of everything Stallwise raises on purpose.

    Attributes:
        fields: Parameters that the error is about, as a Python caller writes them (`network`, `dataset_size`).
        code: What a program can compare; by default the name of the class.

    Examples:
        >>> import stallwise
        >>> try:
        ...     stallwise.open_run("no-such-run")
        ... except stallwise.StallwiseError as error:
        ...     print(error.code, error)
        run There is no run at no-such-run. Check the path.
    """

    def __init__(self, message: str = "", *, fields: Sequence[str] = (), code: str | None = None) -> None:
        super().__init__(message)
        self.fields = tuple(fields)
        self.code = code or type(self).__name__.removesuffix("Error").lower()


class InputError(StallwiseError):
    """A file, argument or value cannot be used as given."""


class CacheError(InputError):
    """A folder cannot serve as a cache: not ours, not writable, another format, or in use in another way."""


class CatalogError(InputError):
    """A catalog table or price list cannot be read."""


class QuantityError(InputError):
    """A text is no size, time, rate … or lacks its unit; `text` is what was given, which tells whose value it was."""

    def __init__(self, message: str, text: str) -> None:
        self.text = text
        super().__init__(message)


class UnknownNameError(InputError):
    """No such GPU, instance, region …; `nearest` holds the closest known names. `listing` says where they all stand."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listing: str = "") -> None:
        names = tuple(known)
        self.name = name
        self.nearest = nearest_names(name, names)
        hint = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        if not hint and not listing and 0 < len(names) <= _FEW_NAMES:
            hint = f" Known: {', '.join(names)}."
        super().__init__(f"No {kind} is called {name!r}.{hint}{f' {listing}' if listing else ''}")


class RunError(StallwiseError):
    """A run record cannot be read or written."""


class RunVersionError(RunError):
    """The run record was written by a newer Stallwise than this one."""


class ObjectError(StallwiseError):
    """An object of a bucket cannot be read: gone, changed, forbidden, or out of reach after the last of `tries`."""

    def __init__(self, message: str, tries: int = 1) -> None:
        self.tries = tries
        super().__init__(message)


class MeasurementError(StallwiseError):
    """Something cannot be measured here and now: too noisy, too short, or nothing there."""


class MissingFeatureError(StallwiseError):
    """An optional package or program that this command needs is not installed."""


INSTALL_TORCH = "PyTorch is not installed here. Install it as https://pytorch.org says; Stallwise never does."


def missing_torch(purpose: str) -> MissingFeatureError:
    """The error for what runs inside a training environment where there is no torch."""
    return MissingFeatureError(f"{purpose} needs PyTorch. {INSTALL_TORCH}")


def missing_extra(package: str, extra: str, purpose: str) -> MissingFeatureError:
    """The error for an optional package that is not installed, with the command that installs it."""
    return MissingFeatureError(f"{purpose} needs {package}: pip install 'stallwise[{extra}]'")


class OfflineError(StallwiseError):
    """The network was needed and could not be reached."""


_FEW_NAMES = 12


def nearest_names(name: str, names: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The known names closest to `name`, ignoring case, `-`, `_` and spaces; names that contain it come first."""

    def plain(text: str) -> str:
        return "".join(c for c in text.lower() if c.isalnum())

    candidates = {plain(k): k for k in sorted(set(names), reverse=True)}
    target = plain(name)
    inside = sorted((k for k in candidates if target and target in k), key=lambda k: (len(k), k))
    close = difflib.get_close_matches(target, candidates, n=limit, cutoff=0.5)
    return tuple(candidates[k] for k in dict.fromkeys([*inside, *close]))[:limit]
