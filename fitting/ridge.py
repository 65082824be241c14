"""Ridge regression on named features, each kind of feature with its own penalty.

Penalties are relative to the variance of one row. They are set by hand, once per model, while the cross-validation was
watched; for part of the lambda penalties a third or three times as much moved its median by less than a point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Penalty = Callable[[str], float]


@dataclass(frozen=True)
class Design:
    """Rows by features, dense, with the penalty of each feature."""

    names: tuple[str, ...]
    values: Matrix
    penalties: Vector


def design(rows: Sequence[dict[str, float]], penalty: Penalty) -> Design:
    """Every feature that occurs; a penalty of infinity leaves one out."""
    found: dict[str, int] = {}
    for row in rows:
        for name in row:
            if name not in found and np.isfinite(penalty(name)):
                found[name] = len(found)
    values = np.zeros((len(rows), len(found)))
    for i, row in enumerate(rows):
        for name, value in row.items():
            if name in found:
                values[i, found[name]] = value
    return Design(tuple(found), values, np.array([penalty(name) for name in found]))


def solve(values: Matrix, target: Vector, penalties: Vector, weights: Vector | None = None) -> Vector:
    """argmin Σ w (y - Xb)² + Σ p b², solved in whichever of rows and features there are fewer of."""
    w = np.ones(len(target)) if weights is None else weights
    if values.shape[0] < values.shape[1]:
        scaled = values / penalties
        inner = scaled @ values.T + np.diag(1 / w)
        return np.asarray(scaled.T @ np.linalg.solve(inner, target))
    return np.asarray(np.linalg.solve((values.T * w) @ values + np.diag(penalties), (values.T * w) @ target))


def robust(values: Matrix, target: Vector, penalties: Vector, scale: float = 0.15, rounds: int = 4) -> Vector:
    """The same with rows far off counting less (weights 1/(1 + (r/scale)²)^½): a broken measurement moves little."""
    found = solve(values, target, penalties)
    for _ in range(rounds):
        residual = target - values @ found
        found = solve(values, target, penalties, 1 / np.sqrt(1 + (residual / scale) ** 2))
    return found


def folds(groups: Sequence[str], count: int, seed: int = 0) -> list[npt.NDArray[np.bool_]]:
    """Whole groups dealt to `count` folds of about equal size; True marks the held-out rows of each."""
    names, sizes = np.unique(np.asarray(groups), return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load, where = np.zeros(count), {}
    for i in order:
        fold = int(np.argmin(load))
        load[fold] += sizes[i]
        where[names[i]] = fold
    place = np.array([where[group] for group in groups])
    return [place == fold for fold in range(min(count, len(names)))]
