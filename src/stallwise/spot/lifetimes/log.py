"""What an event log says: lives of machines, and how many there were at each moment.

A **life** ends by being *lost* (the cloud took the machine) or is *censored*: its owner stopped it, or the log ended
while it ran. A censored life says "at least so long"; counting it as a loss makes machines look worse than they are,
leaving it out worse still.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError, UnknownNameError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One machine from the moment it was obtained to its end, or to the end of what is known."""

    lived_s: float
    lost: bool
    gpu: str | None = None
    region: str | None = None
    machine: str | None = None
    began: dt.datetime | None = None
    """Local time where the log gives it."""


@dataclass(frozen=True)
class Trace:
    """How many machines were to be had over time: `counts[i]` from `at_s[i]` to `at_s[i + 1]`, the last to `end_s`."""

    at_s: Floats
    counts: npt.NDArray[np.int64]
    end_s: float

    def __post_init__(self) -> None:
        if len(self.at_s) == 0 or np.any(np.diff(self.at_s) < 0) or self.end_s < self.at_s[-1]:
            raise ValueError("a trace needs times that do not go back")

    @property
    def most(self) -> int:
        """The largest count."""
        return int(self.counts.max())

    def availability(self, machines: int) -> float:
        """The part of the time in which at least so many machines were to be had."""
        spans_s = np.diff(np.append(self.at_s, self.end_s))
        return float(spans_s[self.counts >= machines].sum() / max(spans_s.sum(), 1e-9))


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log as read: lives, the trace where it has one, and what the reader had to assume."""

    source: str
    lives: tuple[Life, ...]
    trace: Trace | None = None
    notes: tuple[str, ...] = ()


def check_life(life: Life, where: str) -> Life:
    """The life, or a sentence about why it cannot be one."""
    if not np.isfinite(life.lived_s) or life.lived_s < 0:
        raise InputError(
            f"{where}: a machine that lived {life.lived_s:g} s. Lifetimes are finite and not negative; "
            "check which column is the start and which the end."
        )
    return life


def select(log: Log, *, gpu: str | None = None, region: str | None = None) -> Log:
    """The lives of one GPU or machine type, one region; an empty choice is an error that names what there is."""
    kept = log.lives
    for what, wanted in (("gpu", gpu), ("region", region)):
        if wanted is None:
            continue
        known = {label for life in kept if (label := getattr(life, what))}
        if not known:
            raise InputError(
                f"{log.source} names no {what} for its machines, so none can be chosen. Leave --{what} out."
            )
        chosen = tuple(life for life in kept if _same(getattr(life, what), wanted))
        if not chosen:
            raise _empty(log.source, what, wanted, known)
        kept = chosen
    return Log(source=log.source, lives=kept, trace=log.trace, notes=log.notes)


def _empty(source: str, what: str, wanted: str, known: set[str]) -> UnknownNameError:
    error = UnknownNameError(f"{what} with lifetimes in {source}", wanted, known)
    if not error.nearest:
        error.args = (f"{error.args[0]} There are {', '.join(sorted(known)[:12])}.",)
    return error


def _same(label: str | None, wanted: str) -> bool:
    """A region also stands for its zones: us-east1 for us-east1-b."""
    if label is None:
        return False
    return label.lower() == wanted.lower() or label.lower().startswith(f"{wanted.lower()}-")


def grouped(lives: Iterable[Life], label: Callable[[Life], str | None]) -> dict[str, tuple[Life, ...]]:
    """Lives by their label, in the order of names; those without one are left out."""
    found: dict[str, list[Life]] = {}
    for life in lives:
        name = label(life)
        if name is not None:
            found.setdefault(name, []).append(life)
    return {name: tuple(found[name]) for name in sorted(found)}


def arrays(lives: Sequence[Life]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Lengths of life and whether each ended in a loss."""
    lived_s = np.array([life.lived_s for life in lives], dtype=np.float64)
    return lived_s, np.array([life.lost for life in lives], dtype=np.bool_)


def lives_of_counts(trace: Trace, *, gpu: str | None = None, region: str | None = None) -> tuple[tuple[Life, ...], int]:
    """Lives from counts alone, and how many machines were there before the log began.

    Counts do not say which machine was lost. The one that lived longest is taken: total time and losses, and so the
    mean life, do not depend on that choice; the shape does. Machines that are there at the first moment began at a time
    nobody saw and are left out.
    """
    running: list[float] = []
    unseen = before = int(trace.counts[0])
    found: list[Life] = []
    for at_s, now in zip(trace.at_s[1:].tolist(), trace.counts[1:].tolist(), strict=True):
        for _ in range(max(0, before - now)):
            if unseen:
                unseen -= 1
            else:
                found.append(Life(lived_s=at_s - running.pop(0), lost=True, gpu=gpu, region=region))
        running += [at_s] * max(0, now - before)
        before = now
    found += [Life(lived_s=trace.end_s - began_s, lost=False, gpu=gpu, region=region) for began_s in running]
    return tuple(life for life in found if life.lived_s > 0 or life.lost), int(trace.counts[0])


def waits_of(trace: Trace, machines: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """How long fewer than `machines` were to be had, each time; whether the wait ended within the log."""
    enough = trace.counts >= machines
    edges = np.append(trace.at_s, trace.end_s)
    starts = np.flatnonzero(~enough & np.append(True, enough[:-1]))
    waits, ended = [], []
    for start in starts.tolist():
        later = np.flatnonzero(enough[start:])
        stop = start + int(later[0]) if len(later) else len(enough)
        if start == 0:
            continue  # its beginning was not seen
        waits.append(edges[stop] - edges[start])
        ended.append(bool(len(later)))
    return np.array(waits, dtype=np.float64), np.array(ended, dtype=np.bool_)
