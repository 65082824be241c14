"""How fast jobs run by placement: what they said, corrected by what was seen. A `Speed` for the policies.

Said: speeds inside a machine, inside a rack, beyond (`ask.py`). Seen: steps per second of a model's gangs at one width
of placement. Two widths seen give their ratio, whatever was said:

    speed(wide) = speed(tight) · seen(wide) / seen(tight)

One width seen gives the speed there where the job said how long a step takes at full speed. Speeds never rise from
tight to wide, and stay in (0, 1].
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from stallwise.cluster.job import Job
from stallwise.cluster.speed import Shape
from stallwise.slurm.state import Seen

_LEAST = 0.01
_FULL_WEIGHT = 20.0
"""Observations after which a new one counts for 1/20: speeds drift, and old ones must fade."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """By job: its speeds from the tightest level outwards; none: never slowed."""

    by_job: Mapping[str, tuple[float, ...]]

    def kind(self, job: Job) -> Hashable:
        """Jobs of equal speeds are alike."""
        return self.by_job.get(job.id, ())

    def rate(self, job: Job, shape: Shape) -> float:
        """The speed at the widest border the gang crosses."""
        return rate_at(self.by_job.get(job.id, ()), shape.widest())


def rate_at(speeds: Sequence[float], level: int) -> float:
    """Speed of a placement that wide; wider than anything said is as slow as the widest said."""
    return speeds[min(level, len(speeds) - 1)] if speeds else 1.0


def corrected(
    said: Sequence[float], seen: Mapping[int, float], levels: int, step_s: float | None = None
) -> tuple[float, ...]:
    """Speeds of `levels` + 1 widths from what was said and the steps per second seen at some of them."""
    speeds = [rate_at(said, level) for level in range(levels + 1)]
    seen = {level: steps for level, steps in seen.items() if level <= levels}  # switches may have gone since
    anchor = min(seen, default=None)
    if anchor is None:
        return tuple(said)
    if step_s is not None:
        for level, steps in seen.items():
            speeds[level] = steps * step_s
    else:
        for level, steps in seen.items():
            speeds[level] = speeds[anchor] * steps / seen[anchor]
    return _monotone(speeds, set(seen))


def _monotone(speeds: list[float], seen: set[int]) -> tuple[float, ...]:
    """Seen speeds stay; what was only said between and beyond them gives way."""
    bounded = [min(1.0, max(_LEAST, speed)) for speed in speeds]
    for level in range(1, len(bounded)):
        if bounded[level] > bounded[level - 1]:
            if level in seen and level - 1 not in seen:
                for tighter in range(level):
                    bounded[tighter] = max(bounded[tighter], bounded[level])
            else:
                bounded[level] = bounded[level - 1]
    return tuple(bounded)


def learned(old: Seen | None, model: str, gang: int, level: int, steps_per_s: float) -> Seen:
    """The running mean with one more observation."""
    if old is None:
        return Seen(model=model, gang=gang, level=level, steps_per_s=steps_per_s, weight=1.0)
    weight = min(old.weight + 1.0, _FULL_WEIGHT)
    mean = old.steps_per_s + (steps_per_s - old.steps_per_s) / weight
    return Seen(model=model, gang=gang, level=level, steps_per_s=mean, weight=weight)
