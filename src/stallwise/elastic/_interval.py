"""When to save, so that a loss costs no more than one interval.

A checkpoint protects from when it is *visible*, not from when it was begun. So one is begun early enough to be visible
when the interval is over, by the time the last ones took; and where one is late all the same, training waits for it
rather than to risk more than the interval.

The interval is the user's, in steps or seconds, or Young and Daly's √(2 δ M): δ is what a save really costs training
here, measured, and M the mean time between losses of the fleet, given or from the JSON document of
`stallwise spot plan`.
"""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwise.elastic.protocol import INTERVAL
from stallwise.errors import InputError
from stallwise.inputs import read_bytes
from stallwise.spot.plan.interval import young_daly_s

DEFAULT_S = 600.0
_SHORTEST_S = 1.0
_MAX_PLAN_BYTES = 64 << 20
_EARLIER = 1.5
"""The next save may take this multiple of the last one's time without being late."""


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """Work between checkpoints: steps, seconds, or the best for a mean time between losses."""

    steps: int | None = None
    seconds: float | None = None
    mean_to_loss_s: float | None = None


def save_interval(
    steps: int | None, seconds: float | None, mean_life_s: float | None, plan: str | Path | None, machines: int
) -> SaveInterval:
    """Return the interval from a session's arguments; more than one way is an error."""
    if sum(argument is not None for argument in (steps, seconds, mean_life_s, plan)) > 1:
        raise InputError("Give one of interval_steps, interval_s, mean_life_s and plan: each says how often to save.")
    if plan is not None:
        return SaveInterval(seconds=_planned_s(Path(plan)))
    if mean_life_s is not None:
        if mean_life_s <= 0:
            raise InputError("mean_life_s, the mean life of a machine, must be above 0.")
        return SaveInterval(mean_to_loss_s=mean_life_s / machines)
    if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
        raise InputError("An interval between checkpoints is at least one step, or more than 0 seconds.")
    return SaveInterval(steps, _default_s() if steps is None and seconds is None else seconds)


def _default_s() -> float:
    try:
        seconds = float(os.environ.get(INTERVAL, DEFAULT_S))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InputError(f"{INTERVAL} is {os.environ.get(INTERVAL)!r}; it takes seconds above 0.")
    return seconds


def _planned_s(path: Path) -> float:
    try:
        document: Any = json.loads(read_bytes(path, _MAX_PLAN_BYTES))
        interval_s = float(document["interval"]["used_s"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise InputError(f"{path} is no spot plan: write the JSON document of stallwise spot plan to it.") from None
    if not interval_s > 0:
        raise InputError(f"{path} has an interval of {interval_s:g} s between checkpoints. Plan again.")
    return interval_s


class SaveSchedule:
    """When one rank saves, and what is protected already. `now_s` is a monotonic clock of the caller."""

    def __init__(self, interval: SaveInterval, step: int, now_s: float) -> None:
        self._interval = interval
        self._begun = self._visible = (step, now_s)
        self._last = (step, now_s)
        self._step_s = 0.0
        self._write_s = 0.0
        self._cost_s: float | None = None

    @property
    def visible(self) -> int:
        """Step of the newest visible checkpoint."""
        return self._visible[0]

    @property
    def seconds(self) -> float:
        """The present interval in seconds; infinite where only steps count."""
        if self._interval.seconds is not None:
            return self._interval.seconds
        if self._interval.mean_to_loss_s is not None:
            cost_s = self._cost_s if self._cost_s is not None else 1.0
            return max(_SHORTEST_S, young_daly_s(cost_s, self._interval.mean_to_loss_s))
        return math.inf

    def stepped(self, step: int, now_s: float) -> None:
        """Record a step; the mean step time is an exponential average."""
        lasted_s = now_s - self._last[1]
        self._step_s = lasted_s if self._step_s == 0 else 0.9 * self._step_s + 0.1 * lasted_s
        self._last = step, now_s

    def due(self, step: int, now_s: float) -> bool:
        """Whether to begin a save now: it takes two steps until all ranks do, and then the time to write."""
        lead_s = _EARLIER * self._write_s + 2 * self._step_s
        lead_steps = 2 + (math.ceil(_EARLIER * self._write_s / self._step_s) if self._step_s else 0)
        in_steps = self._interval.steps is not None and step - self._begun[0] + lead_steps >= self._interval.steps
        return (in_steps or now_s - self._begun[1] + lead_s >= self.seconds) and step > self._begun[0]

    def overdue(self, step: int, now_s: float) -> bool:
        """Whether one more step would risk more than the interval."""
        in_steps = self._interval.steps is not None and step - self._visible[0] >= self._interval.steps
        return in_steps or now_s - self._visible[1] >= self.seconds

    def began(self, step: int, now_s: float, cost_s: float) -> None:
        """Record the start of a save, which held up the training thread for `cost_s`."""
        self._begun = step, now_s
        self._cost_s = cost_s if self._cost_s is None else 0.7 * self._cost_s + 0.3 * cost_s

    def saved(self, step: int, write_s: float, began_s: float | None = None) -> None:
        """Record that the checkpoint of `step` is visible."""
        self._visible = step, self._begun[1] if began_s is None else began_s
        self._write_s = max(write_s, 0.7 * self._write_s)
