"""Ridge regression on named features, each kind of feature with its own penalty.

Penalties are relative to the variance of one row. A model says how they stand to each other; how strong they are, and
how much stronger for what tells single GPUs and pairs apart, is chosen by grouped folds *inside* the rows that a fit
is given (`selected`). A fit that is judged on rows it did not see has thus chosen without them too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Penalty = Callable[[str], float]


@dataclass(frozen=True)
class Design:
    """Rows by features, dense, with the penalty of each feature."""

    names: tuple[str, ...]
    values: Matrix
    penalties: Vector


STRENGTHS = (1 / 3, 1.0, 3.0)
"""Factors on all penalties, and on those of single GPUs, pairs and the like, that `selected` chooses from."""
_ENOUGH = 600  # rows to choose by; of more, whole groups are drawn
_ROUNDS = 2


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
    by_rows = values.shape[0] < values.shape[1]
    # A row has a few dozen of thousands of features.
    few = None if by_rows else csr_array(values)
    found, weights = np.zeros(values.shape[1]), np.ones(len(target))
    for _ in range(rounds + 1):
        if few is None:
            found = solve(values, target, penalties, weights)
        else:
            inner = (few.T * weights) @ few
            found = np.asarray(np.linalg.solve(inner.toarray() + np.diag(penalties), few.T @ (weights * target)))
        weights = 1 / np.sqrt(1 + ((target - values @ found) / scale) ** 2)
    return found


def selected(
    found: Design, target: Vector, groups: Sequence[str], single: Callable[[str], bool], scale: float, count: int = 5
) -> Vector:
    """The penalties with the least error on whole groups left out; `single` tells features of one GPU, pair … apart.

    In terms of rows: K = X P⁻¹ Xᵀ is the sum of a part shared and a part single, so that another strength is
    another weight of the two.
    """
    alone = np.array([single(name) for name in found.names])
    drawn = _drawn(groups, _ENOUGH)
    values, y, names = found.values[drawn], target[drawn], [groups[i] for i in drawn]
    shared, own = ((values[:, part] / found.penalties[part]) @ values[:, part].T for part in (~alone, alone))
    held_out = folds(names, count)
    choices = [
        (strength, more) for more in sorted(STRENGTHS, key=_from_one) for strength in sorted(STRENGTHS, key=_from_one)
    ]
    errors = [_error((shared + own / more) / strength, y, names, held_out, scale) for strength, more in choices]
    strength, more = choices[int(np.argmin(errors))]
    return np.asarray(found.penalties * strength * np.where(alone, more, 1.0))


def _from_one(factor: float) -> float:
    """Where nothing decides, penalties stay as they are."""
    return abs(float(np.log(factor)))


def _drawn(groups: Sequence[str], most: int) -> npt.NDArray[np.int64]:
    """Rows of whole groups, at most about `most`."""
    if len(groups) <= most:
        return np.arange(len(groups))
    parts = folds(groups, -(-len(groups) // most), seed=1)
    return np.flatnonzero(parts[0])


def _error(
    kernel: Matrix, y: Vector, groups: Sequence[str], held_out: Sequence[npt.NDArray[np.bool_]], scale: float
) -> float:
    """Mean |error| over groups, each fitted without itself; one that is e times off counts no more than that."""
    off = np.zeros(len(y))
    for held in held_out:
        inner, weights = kernel[np.ix_(~held, ~held)], np.ones(int((~held).sum()))
        for _ in range(_ROUNDS):
            dual = np.linalg.solve(inner + np.diag(1 / weights), y[~held])
            weights = 1 / np.sqrt(1 + ((y[~held] - inner @ dual) / scale) ** 2)
        off[held] = y[held] - kernel[np.ix_(held, ~held)] @ dual
    _, where = np.unique(np.asarray(groups), return_inverse=True)
    return float(np.mean(np.bincount(where, np.minimum(np.abs(off), 1.0)) / np.bincount(where)))


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
