"""Dally's auto-tuner: how long to wait for a tight placement, from how long other jobs of that size had to.

Per gang size two windows of past waits in leases: until a machine was had, until a rack was had (arXiv 2401.16492 and
the released simulator):

    estimate = 1 if the window is empty, else mean + `deviations` · standard deviation (of the population)
    T_machine = min(⌈share · H⌉, max(least_machine, ⌈estimate_machine⌉))
    T_rack    = min(H,           max(least_rack,    ⌈estimate_rack⌉))

H is the history in leases. Waits under one lease are not kept; a wait is dropped when it is older than H at the time a
newer one is added. The released loop leaves out the neighbour of what it deletes (`skips`), and so keeps some.
"""

import math
from dataclasses import dataclass, field

_FLOAT_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The constants of the auto-tuner; defaults are the released ones."""

    history_leases: float = 24.0
    deviations: float = 2.0
    least_machine: float = 6.0
    least_rack: float = 12.0
    share: float = 0.8
    skips: bool = True


@dataclass(slots=True)
class AutoTuner:
    """Windows of past waits of one gang size (`engine/_queue.py` has the same over arrays; a test compares them)."""

    tuning: Tuning = field(default_factory=Tuning)
    machine: list[tuple[float, float]] = field(default_factory=list)
    """(time in leases, wait in leases)"""
    rack: list[tuple[float, float]] = field(default_factory=list)

    def add(self, level: str, time_leases: float, wait_leases: float) -> None:
        """Add the wait of a job that got a machine (or a rack), in leases."""
        if wait_leases < 1:
            return
        window = self.machine if level == "machine" else self.rack
        window.append((time_leases, wait_leases))
        self._drop(window, time_leases - self.tuning.history_leases)

    def _drop(self, window: list[tuple[float, float]], before: float) -> None:
        index = 0
        while index < len(window):
            if window[index][0] < before:
                del window[index]
                index += 1 if self.tuning.skips else 0
            else:
                index += 1

    def timers_leases(self) -> tuple[float, float]:
        """Return the patience for a machine and for a rack, in leases."""
        tuning = self.tuning
        return (
            min(
                _ceil(tuning.share * tuning.history_leases),
                max(tuning.least_machine, _ceil(self.estimate(self.machine))),
            ),
            min(tuning.history_leases, max(tuning.least_rack, _ceil(self.estimate(self.rack)))),
        )

    def estimate(self, window: list[tuple[float, float]]) -> float:
        """Return mean plus some deviations of the waits in a window, in leases."""
        if not window:
            return 1.0
        waits = [wait for _, wait in window]
        mean = sum(waits) / len(waits)
        variance = sum((wait - mean) ** 2 for wait in waits) / len(waits)
        return mean + self.tuning.deviations * math.sqrt(variance)


def _ceil(value: float) -> float:
    # 0.8 · 25 is 20.000000000000004 in binary; that is not 21.
    return float(math.ceil(value - _FLOAT_SLACK))
