"""Simulations cut into portions of about equal time, by what simulations of that kind took so far.

A small simulation takes a millisecond, a large one minutes; handing each out alone would cost more than many of them
take. A portion is worth `target_s`, and towards the end less, so that all workers finish together: never more than an
even share of half of what is left (guided self-scheduling, Polychronopoulos and Kuck, 1987).
"""

import threading
from collections import deque
from collections.abc import Iterable

from stallwise.cluster.sweep import Made, Numbered

_ROUNDING_S = 1e-9
_LATEST = 0.3
"""Weight of the latest time: the first one of a worker also loads the compiled loop, and is soon forgotten."""


class Portions:
    """What is left to simulate. Several threads may take from it."""

    def __init__(self, cases: Iterable[Numbered], *, workers: int, target_s: float) -> None:
        self.workers, self._target_s = workers, target_s
        self._left = deque(cases)
        self._took_s: dict[tuple[str, int], float] = {}
        self._any_s: float | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._left)

    @property
    def remaining_s(self) -> float:
        """How long all workers need for what is left, as far as one can tell; 0 before anything was heard."""
        return (self._any_s or 0.0) * len(self._left) / self.workers

    def one(self) -> list[Numbered]:
        """The next simulation alone; nothing when all are taken."""
        with self._lock:
            return [self._left.popleft()] if self._left else []

    def take(self) -> list[Numbered]:
        """The next portion; nothing when all are taken."""
        if self._any_s is None:
            return self.one()
        with self._lock:
            worth_s = min(self._target_s, self.remaining_s / 2)
            taken: list[Numbered] = []
            while self._left and worth_s > _ROUNDING_S:
                taken.append(self._left.popleft())
                worth_s -= self._expected_s(taken[-1])
            return taken or ([self._left.popleft()] if self._left else [])

    def heard(self, made: Made) -> None:
        """How long one took."""
        kind = made.run.case.policy, made.run.case.cluster
        with self._lock:
            self._took_s[kind] = _mixed(self._took_s.get(kind), made.seconds)
            self._any_s = _mixed(self._any_s, made.seconds)

    def _expected_s(self, numbered: Numbered) -> float:
        case = numbered[1]
        return max(self._took_s.get((case.policy, case.cluster), self._any_s or 0.0), 1e-6)


def _mixed(before_s: float | None, now_s: float) -> float:
    return now_s if before_s is None else before_s + _LATEST * (now_s - before_s)
