"""Errors on rows that were not fitted, by case and group: what intervals are made of and what the figures say."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fitting.ridge import Vector
from stallwise.model.conformal import Spread, spread_of

_ENOUGH = 12  # rows below which a case has no spread of its own
_LEAST = 0.01
_GROUPS = 3  # groups, likewise


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


def by_class(errors: Errors, classes: Sequence[str], suffix: str = "") -> list[Errors]:
    """One `Errors` per class, its case with the class behind it."""
    kinds = np.asarray(classes)
    return [errors.where((kinds == kind).tolist(), f"{errors.case}|{kind}{suffix}") for kind in sorted(set(classes))]


def spreads(errors: Iterable[Errors]) -> dict[str, tuple[float, float, int]]:
    """The 80 % spread of every case with enough rows of enough groups; the others fall back on a wider case."""
    found: dict[str, tuple[float, float, int]] = {}
    for one in errors:
        if len(one.values) >= _ENOUGH and len(set(one.groups)) >= _GROUPS:
            spread = spread_of(one.values.tolist(), one.groups)
            # A prediction lies inside its own interval, even where all that was seen lies on one side.
            found[one.case] = (min(spread.low, -_LEAST), max(spread.high, _LEAST), spread.rows)
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


def coverage(
    errors: Errors,
    classes: Sequence[str] | None = None,
    judged: Sequence[bool] | None = None,
    least: float = 0.6,
) -> Coverage:
    """Every group judged by intervals from the errors of all others, of the same class where there are enough.

    `classes` is what the interval of a row is chosen by, as in the product; `judged` are the rows that count.
    """
    kinds = np.asarray(classes if classes is not None else [""] * len(errors.values))
    counted = np.ones(len(kinds), dtype=bool) if judged is None else np.asarray(judged, dtype=bool)
    inside, widths = np.zeros(len(kinds), dtype=bool), np.zeros(len(kinds))
    names = np.asarray(errors.groups)
    for name in sorted(set(errors.groups)):
        for kind in sorted(set(kinds[names == name].tolist())):
            here = (names == name) & (kinds == kind)
            spread = _from_others(errors, names != name, kinds == kind)
            inside[here] = (errors.values[here] >= spread.low) & (errors.values[here] <= spread.high)
            widths[here] = np.exp(spread.high - spread.low)
    parts = [inside[counted & (names == name)].mean() for name in sorted(set(names[counted].tolist()))]
    above = float(np.mean([part >= least for part in parts]))
    return Coverage(int(counted.sum()), float(inside[counted].mean()), float(np.median(widths[counted])), above)


def _from_others(errors: Errors, others: Vector, same: Vector) -> Spread:
    """Of the others in the same class where they are enough, else of all others."""
    near = errors.where((others & same).tolist())
    if len(near.values) < _ENOUGH or len(set(near.groups)) < _GROUPS:
        near = errors.where(others.tolist())
    return spread_of(near.values.tolist(), near.groups)
