"""Logs of spot machines: how long each lived, and how many were available over time.

A **life** ends by being *lost* (the cloud took the machine) or is *censored*: its owner stopped it, or the log ended
while it ran. A censored life is a lower bound; counting it as a loss makes machines look worse than they are, leaving
it out worse still.
"""

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.errors import InputError, UnknownNameError, nearest_names
from stallwise.sentences import Sentence

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLife:
    """One machine from the moment it was obtained to its end, or to the end of what is known."""

    lived_s: float
    lost: bool
    gpu: str | None = None
    region: str | None = None
    machine: str | None = None
    began: dt.datetime | None = None
    """Local time where the log gives it."""


@dataclass(frozen=True)
class AvailabilityTrace:
    """Machines available over time: `counts[i]` from `at_s[i]` to `at_s[i + 1]`, the last to `end_s`."""

    at_s: Floats
    counts: npt.NDArray[np.int64]
    end_s: float

    def __post_init__(self) -> None:
        if len(self.at_s) == 0 or np.any(np.diff(self.at_s) < 0) or self.end_s < self.at_s[-1]:
            raise ValueError("a trace needs times that do not go back")

    @property
    def most(self) -> int:
        return int(self.counts.max())

    def availability(self, machines: int) -> float:
        """Fraction of the time in which at least `machines` machines were available."""
        spans_s = np.diff(np.append(self.at_s, self.end_s))
        return float(spans_s[self.counts >= machines].sum() / max(spans_s.sum(), 1e-9))


@dataclass(frozen=True, kw_only=True)
class LifetimeLog:
    """A log as read: lives, availability over time where it has it, and what the reader had to assume."""

    source: str
    lives: tuple[MachineLife, ...]
    trace: AvailabilityTrace | None = None
    notes: tuple[Sentence, ...] = ()


def check_life(life: MachineLife, where: str) -> MachineLife:
    """Return the life, or raise `InputError` where its length is impossible."""
    if not np.isfinite(life.lived_s) or life.lived_s < 0:
        raise InputError(
            f"{where}: a machine that lived {life.lived_s:g} s. Lifetimes are finite and not negative; "
            "check which column is the start and which the end."
        )
    return life


def select(log: LifetimeLog, *, gpu: str | None = None, region: str | None = None) -> LifetimeLog:
    """Keep the lives of one GPU or machine type and one region; raise an error that names what there is for none."""
    kept = log.lives
    for what, name in (("gpu", gpu), ("region", region)):
        if name is None:
            continue
        labels = {label for life in kept if (label := getattr(life, what))}
        if not labels:
            raise InputError(f"{log.source} names no {what} for its machines, so none can be chosen.", fields=(what,))
        chosen = tuple(life for life in kept if _same(getattr(life, what), name))
        if not chosen:
            raise _empty(log.source, what, name, labels)
        kept = chosen
    return LifetimeLog(source=log.source, lives=kept, trace=log.trace, notes=log.notes)


def _empty(source: str, what: str, name: str, labels: set[str]) -> UnknownNameError:
    listing = "" if nearest_names(name, labels) else f"There are {', '.join(sorted(labels)[:12])}."
    return UnknownNameError(f"{what} with lifetimes in {source}", name, sorted(labels), listing=listing)


def _same(label: str | None, name: str) -> bool:
    """Compare labels; a region also stands for its zones: us-east1 for us-east1-b."""
    if label is None:
        return False
    return label.lower() == name.lower() or label.lower().startswith(f"{name.lower()}-")


def grouped(
    lives: Iterable[MachineLife], label: Callable[[MachineLife], str | None]
) -> dict[str, tuple[MachineLife, ...]]:
    """Group lives by label, in the order of names; those without a label are left out."""
    groups: dict[str, list[MachineLife]] = {}
    for life in lives:
        name = label(life)
        if name is not None:
            groups.setdefault(name, []).append(life)
    return {name: tuple(groups[name]) for name in sorted(groups)}


def arrays(lives: Sequence[MachineLife]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return lifetimes in seconds and whether each ended in a loss."""
    lived_s = np.array([life.lived_s for life in lives], dtype=np.float64)
    return lived_s, np.array([life.lost for life in lives], dtype=np.bool_)


_MOST_MACHINES = 10_000_000


def lives_of_counts(
    trace: AvailabilityTrace, *, gpu: str | None = None, region: str | None = None
) -> tuple[tuple[MachineLife, ...], int]:
    """Derive lives from counts alone, and the number of machines that were there before the log began.

    Counts do not say which machine was lost. The one that lived longest is taken: total time and losses, and so the
    mean life, do not depend on that choice; the shape does. Machines that are there at the first moment began at an
    unknown time and are left out.
    """
    if int(np.maximum(np.diff(trace.counts.astype(np.float64)), 0).sum()) > _MOST_MACHINES:
        raise InputError(f"The counts of a log add up to more than {_MOST_MACHINES:,} machines. Check the file.")
    running: list[float] = []
    unseen = before = int(trace.counts[0])
    lives: list[MachineLife] = []
    for at_s, now in zip(trace.at_s[1:].tolist(), trace.counts[1:].tolist(), strict=True):
        for _ in range(max(0, before - now)):
            if unseen:
                unseen -= 1
            else:
                lives.append(MachineLife(lived_s=at_s - running.pop(0), lost=True, gpu=gpu, region=region))
        running += [at_s] * max(0, now - before)
        before = now
    lives += [MachineLife(lived_s=trace.end_s - began_s, lost=False, gpu=gpu, region=region) for began_s in running]
    return tuple(life for life in lives if life.lived_s > 0 or life.lost), int(trace.counts[0])
