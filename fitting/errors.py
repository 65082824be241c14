"""Errors on rows that were not fitted, by case and group: what intervals are made of and what the figures say.

Rows may be split into classes with intervals of their own (by network, by link, by mode …). Which split is used is
chosen by the interval score of groups left out, and for a figure always without the group that is judged: what is
said of coverage has not chosen how intervals are made.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fitting.ridge import Vector
from stallwise.model.statistics.conformal import LEVEL, ErrorSpread, spread_of

Classes = Sequence[str]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
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

    @property
    def shift(self) -> float:
        """Root of the mean square of the groups' medians: by how much a whole group is usually off."""
        groups = np.asarray(self.groups)
        return float(np.sqrt(np.mean([np.median(self.values[groups == name]) ** 2 for name in set(self.groups)])))

    def where(self, chosen: Sequence[bool], case: str | None = None) -> "Errors":
        """Some of the rows."""
        keep = np.asarray(chosen, dtype=bool)
        groups = tuple(group for group, kept in zip(self.groups, keep, strict=True) if kept)
        return Errors(case or self.case, self.values[keep], groups)


def by_class(errors: Errors, splits: Sequence[Classes], suffix: str = "") -> list[Errors]:
    """One `Errors` per class of the best split, its case with the class behind it; none where no split is better."""
    number = chosen(errors, splits)
    kinds = np.asarray([] if number is None else splits[number])
    return [
        errors.where((kinds == kind).tolist(), f"{errors.case}|{kind}{suffix}") for kind in sorted(set(kinds.tolist()))
    ]


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
class Judged:
    """Every row by intervals from the errors of all other groups."""

    low: Vector
    high: Vector

    def scores(self, values: Vector) -> Vector:
        """Width, and 2/(1 - level) times what lies outside: the lower the better.

        A proper score (Gneiting & Raftery 2007, JASA 102:359): the quantiles that hold `level` have the least
        expected one, so intervals gain neither from being too wide nor from being too narrow.
        """
        outside = np.maximum(0, self.low - values) + np.maximum(0, values - self.high)
        return np.asarray(self.high - self.low + 2 / (1 - LEVEL) * outside)


def judged_by_others(values: Vector, groups: Indices, classes: Indices, names: Iterable[int]) -> Judged:
    """Intervals of the groups `names` from the others of the same class, where there are enough of them."""
    low, high = np.zeros(len(values)), np.zeros(len(values))
    for name in names:
        mine = groups == name
        for kind in np.unique(classes[mine]):
            here = mine & (classes == kind)
            spread = _from_others(values, groups, ~mine, classes == kind)
            low[here], high[here] = spread.low, spread.high
    return Judged(low, high)


def _from_others(values: Vector, groups: Indices, others: Mask, same: Mask) -> ErrorSpread:
    """Of the others in the same class where they are enough, else of all others."""
    near = others & same
    if near.sum() < _ENOUGH or len(np.unique(groups[near])) < _GROUPS:
        near = others
    return spread_of(values[near], groups[near])


def chosen(errors: Errors, splits: Sequence[Classes]) -> int | None:
    """Number of the split with the least interval score on groups left out, all groups alike; None: none at all."""
    groups = _numbered(errors.groups)
    return _chosen(errors.values, groups, [_numbered(split) for split in splits])


def _numbered(names: Sequence[str]) -> Indices:
    return np.asarray(np.unique(np.asarray(names), return_inverse=True)[1])


def _chosen(values: Vector, groups: Indices, splits: Sequence[Indices]) -> int | None:
    names = np.unique(groups)
    if len(names) <= _GROUPS or not splits:
        return None
    scores = []
    for classes in (np.zeros_like(groups), *splits):
        found = judged_by_others(values, groups, classes, names).scores(values)
        scores.append(float(np.mean([found[groups == name].mean() for name in names])))
    best = int(np.argmin(scores))
    return best - 1 if best else None


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
    errors: Errors, splits: Sequence[Classes] = (), judged: Sequence[bool] | None = None, least: float = 0.6
) -> Coverage:
    """Every group judged by intervals from the errors of all others, split as is best for those others.

    `splits` are what intervals may be chosen by, as in the product; `judged` are the rows that count.
    """
    values, groups = errors.values, _numbered(errors.groups)
    counted = np.ones(len(values), dtype=bool) if judged is None else np.asarray(judged, dtype=bool)
    kinds = [np.zeros_like(groups), *(_numbered(split) for split in splits)]
    inside, widths, names = np.zeros(len(values), dtype=bool), np.zeros(len(values)), np.unique(groups[counted])
    for name in names:
        here = groups == name
        best = _chosen(values[~here], groups[~here], [kind[~here] for kind in kinds[1:]])
        found = judged_by_others(values, groups, kinds[0 if best is None else best + 1], [name])
        inside[here] = (values >= found.low)[here] & (values <= found.high)[here]
        widths[here] = np.exp(found.high - found.low)[here]
    parts = [inside[counted & (groups == name)].mean() for name in names]
    above = float(np.mean([part >= least for part in parts]))
    return Coverage(int(counted.sum()), float(inside[counted].mean()), float(np.median(widths[counted])), above)
