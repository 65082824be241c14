"""Everything `stallwise spot fit` says of a log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stallwise.spot.lifetimes.fit import Estimate, HourOfDay, by_hour, estimate
from stallwise.spot.lifetimes.log import Life, Log, grouped
from stallwise.units import SECONDS_PER_HOUR

HOURS = (1, 2, 6, 12, 24, 48)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The part lost within so many hours, with its 95 % band."""

    hours: int
    part: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lives of one GPU or region; the estimate is None where none of them was lost."""

    name: str
    machines: int
    losses: int
    machine_h: float
    estimate: Estimate | None


@dataclass(frozen=True, kw_only=True)
class FittedLog:
    """A log's estimate, the same by GPU and region, and losses by hour of day."""

    log: Log
    estimate: Estimate
    by_gpu: tuple[Group, ...]
    by_region: tuple[Group, ...]
    by_hour: tuple[HourOfDay, ...]


def fitted_log(log: Log) -> FittedLog:
    """Fit all of it and each group; groups only where there is more than one."""
    return FittedLog(
        log=log,
        estimate=estimate(log.lives, log.source),
        by_gpu=_groups(log.lives, lambda life: life.gpu, log.source),
        by_region=_groups(log.lives, lambda life: life.region, log.source),
        by_hour=by_hour(log.lives),
    )


def _groups(lives: Sequence[Life], label: Callable[[Life], str | None], source: str) -> tuple[Group, ...]:
    found = grouped(lives, label)
    if len(found) < 2:
        return ()
    return tuple(
        Group(
            name=name,
            machines=len(members),
            losses=sum(life.lost for life in members),
            machine_h=sum(life.lived_s for life in members) / SECONDS_PER_HOUR,
            estimate=estimate(members, source) if any(life.lost for life in members) else None,
        )
        for name, members in found.items()
    )


def gone_within(found: Estimate) -> tuple[Gone, ...]:
    """The survival curve read at whole hours, as far as lives reach."""
    rows = []
    for hours in HOURS:
        at_s = float(hours * SECONDS_PER_HOUR)
        if at_s > found.survival.longest_s:
            break
        low, high = found.survival.gone_bounds(at_s)
        rows.append(Gone(hours=hours, part=float(found.survival.gone(at_s)), low=float(low), high=float(high)))
    return tuple(rows)
