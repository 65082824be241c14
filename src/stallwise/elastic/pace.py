"""When to save, so that a loss costs no more than one interval.

A checkpoint protects from when it is *visible*, not from when it was begun. So one is begun early enough to be visible
when the interval is over, by the time the last ones took; and where one is late all the same, training waits for it
rather than to risk more than the interval.

The interval is the user's, in steps or seconds, or Young and Daly's √(2 δ M): δ is what a save really costs training
here, measured, and M the mean time between losses of the fleet, given or from a plan of `stallwise spot plan --json`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwise.errors import InputError
from stallwise.spot.plan.interval import young_daly_s

DEFAULT_S = 600.0
_SHORTEST_S = 1.0
_EARLIER = 1.5
"""How much longer than the last save the next may take without being late."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Work between checkpoints: steps, seconds, or the best for a mean time between losses."""

    steps: int | None = None
    seconds: float | None = None
    mean_to_loss_s: float | None = None


def interval_of(
    steps: int | None, seconds: float | None, mean_life_s: float | None, plan: str | Path | None, machines: int
) -> Interval:
    """From what a session was given; more than one way is an error."""
    if sum(given is not None for given in (steps, seconds, mean_life_s, plan)) > 1:
        raise InputError("How often to save is said once: interval_steps, interval_s, mean_life_s or plan.")
    if plan is not None:
        return Interval(seconds=_planned_s(Path(plan)))
    if mean_life_s is not None:
        if mean_life_s <= 0:
            raise InputError("mean_life_s, the mean life of a machine, must be above 0.")
        return Interval(mean_to_loss_s=mean_life_s / machines)
    if (steps is not None and steps < 1) or (seconds is not None and seconds <= 0):
        raise InputError("An interval between checkpoints is at least one step, or more than 0 seconds.")
    return Interval(steps, DEFAULT_S if steps is None and seconds is None else seconds)


def _planned_s(path: Path) -> float:
    try:
        document: Any = json.loads(path.read_text())
        found = float(document["interval"]["used_s"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is no plan: write one with stallwise spot plan RUN … --json > {path}.") from None
    if not found > 0:
        raise InputError(f"{path} has an interval of {found:g} s between checkpoints. Plan again.")
    return found


class Pace:
    """One rank's view of what is protected. The clock is `now_s`, handed in."""

    def __init__(self, interval: Interval, step: int, now_s: float) -> None:
        self._interval = interval
        self._begun = self._visible = (step, now_s)
        self._last = (step, now_s)
        self._step_s = 0.0
        self._write_s = 0.0
        self._cost_s: float | None = None

    @property
    def visible(self) -> int:
        """The step of the newest checkpoint."""
        return self._visible[0]

    @property
    def seconds(self) -> float:
        """The interval as it is now; infinite where only steps count."""
        if self._interval.seconds is not None:
            return self._interval.seconds
        if self._interval.mean_to_loss_s is not None:
            cost_s = self._cost_s if self._cost_s is not None else 1.0
            return max(_SHORTEST_S, young_daly_s(cost_s, self._interval.mean_to_loss_s))
        return math.inf

    def stepped(self, step: int, now_s: float) -> None:
        """A step was made; its mean time follows slowly."""
        lasted_s = now_s - self._last[1]
        self._step_s = lasted_s if self._step_s == 0 else 0.9 * self._step_s + 0.1 * lasted_s
        self._last = step, now_s

    def due(self, step: int, now_s: float) -> bool:
        """Whether to begin one now: it takes two steps until all ranks do, and then the time to write."""
        lead_s = _EARLIER * self._write_s + 2 * self._step_s
        lead_steps = 2 + (math.ceil(_EARLIER * self._write_s / self._step_s) if self._step_s else 0)
        in_steps = self._interval.steps is not None and step - self._begun[0] + lead_steps >= self._interval.steps
        return (in_steps or now_s - self._begun[1] + lead_s >= self.seconds) and step > self._begun[0]

    def overdue(self, step: int, now_s: float) -> bool:
        """Whether one more step would risk more than the interval."""
        in_steps = self._interval.steps is not None and step - self._visible[0] >= self._interval.steps
        return in_steps or now_s - self._visible[1] >= self.seconds

    def began(self, step: int, now_s: float, cost_s: float) -> None:
        """A save was begun; the training thread was held up for `cost_s`."""
        self._begun = step, now_s
        self._cost_s = cost_s if self._cost_s is None else 0.7 * self._cost_s + 0.3 * cost_s

    def saved(self, step: int, write_s: float, began_s: float | None = None) -> None:
        """It is visible."""
        self._visible = step, self._begun[1] if began_s is None else began_s
        self._write_s = max(write_s, 0.7 * self._write_s)
