"""Errors on rows that were not fitted, by case and group: what intervals are made of and what the figures say."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fitting.ridge import Vector
from stallwise.model.conformal import Spread, spread_of

_ENOUGH = 12  # rows below which a case has no spread of its own


@dataclass(frozen=True)
class Errors:
    """Logarithms of truth over prediction of one case; `group` is what was left out together."""

    case: str
    values: Vector
    groups: tuple[str, ...]

    @property
    def relative(self) -> Vector:
        """Of the truth: |prediction / truth - 1|."""
        return np.abs(np.exp(-self.values) - 1)

    def where(self, chosen: Sequence[bool], case: str | None = None) -> "Errors":
        """Some of the rows."""
        keep = np.asarray(chosen, dtype=bool)
        groups = tuple(group for group, kept in zip(self.groups, keep, strict=True) if kept)
        return Errors(case or self.case, self.values[keep], groups)


def spreads(errors: Iterable[Errors]) -> dict[str, tuple[float, float, int]]:
    """The 80 % spread of every case with enough rows."""
    found: dict[str, tuple[float, float, int]] = {}
    for one in errors:
        if len(one.values) >= _ENOUGH:
            spread = spread_of(one.values.tolist(), one.groups)
            found[one.case] = (spread.low, spread.high, spread.rows)
    # What no case fits is as uncertain as the least certain one.
    found[""] = max(found.values(), key=lambda spread: spread[1] - spread[0])
    return found


@dataclass(frozen=True)
class Coverage:
    """How intervals made from other groups' errors do on a group's own."""

    rows: int
    covered: float
    width: float
    """Median of high over low."""
    groups_above: float
    """Part of the groups of which at least 60 % are covered."""


def coverage(errors: Errors, least: float = 0.6) -> Coverage:
    """Every group judged by intervals from the errors of all others."""
    inside = np.zeros(len(errors.values), dtype=bool)
    widths = np.zeros(len(errors.values))
    names = np.asarray(errors.groups)
    parts = []
    for name in sorted(set(errors.groups)):
        here = names == name
        others = errors.where((~here).tolist())
        if not len(others.values):
            continue
        spread: Spread = spread_of(others.values.tolist(), others.groups)
        inside[here] = (errors.values[here] >= spread.low) & (errors.values[here] <= spread.high)
        widths[here] = np.exp(spread.high - spread.low)
        parts.append(inside[here].mean())
    above = float(np.mean([part >= least for part in parts])) if parts else 0.0
    return Coverage(len(inside), float(inside.mean()), float(np.median(widths)), above)
