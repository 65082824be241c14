"""Grouped cross-validation of every model: whole GPUs, families, networks or pairs are left out of fit and scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from fitting import images
from fitting.cluster_jobs import fit_jobs, predict_jobs
from fitting.errors import Errors
from fitting.llm import fit_llm, gpu_effects, predict_llm
from fitting.networks import fit_networks, fit_scaling, predict_networks, predict_scaling
from fitting.ridge import Vector, folds
from stallwise.model.compute.cluster_job import ClusterJobSetup, log_efficiency
from stallwise.model.compute.image import ImageSetup
from stallwise.model.compute.known_jobs import NetworkSetup, ScalingSetup
from stallwise.model.compute.llm import LlmSetup

_S = TypeVar("_S")
LEAST = 0.2
"""A user's own measurement is never ignored: it may come from a host or software unlike those in the tables."""


def picked(items: Sequence[_S], chosen: Vector) -> list[_S]:
    """The items where `chosen`."""
    return [item for item, keep in zip(items, chosen, strict=True) if keep]


def left_out(
    setups: Sequence[_S],
    truth: Vector,
    groups: Sequence[str],
    count: int,
    learn: Callable[[list[_S], Vector], Callable[[list[_S]], Vector]],
) -> Vector:
    """Predictions of every row by a fit that saw no row of its group (nor of the groups dealt to the same fold)."""
    out = np.zeros(len(truth))
    for held in folds(groups, count):
        predict = learn(picked(setups, ~held), truth[~held])
        out[held] = predict(picked(setups, held))
    return out


def left_out_twice(
    setups: Sequence[_S],
    truth: Vector,
    targets: Sequence[str],
    groups: Sequence[str],
    counts: tuple[int, int],
    learn: Callable[[list[_S], Vector], Callable[[list[_S]], Vector]],
) -> dict[str, Vector]:
    """For every target: predictions of the other rows by fits that saw neither the target nor the row's own group.

    What a user measured elsewhere as a reference is held against a fit that knows nothing of the target. `counts` are
    the folds into which targets and groups are dealt.
    """
    out = {}
    for held in folds(targets, counts[0]):
        found = np.full(len(truth), np.nan)
        found[~held] = left_out(picked(setups, ~held), truth[~held], picked(groups, ~held), counts[1], learn)
        out |= dict.fromkeys(picked(targets, held), found)
    return out


def image_learner(chosen: list[ImageSetup], truth: Vector) -> Callable[[list[ImageSetup]], Vector]:
    """Fit image networks."""
    fitted = images.fit(chosen, images.demands(chosen), truth)
    return lambda wanted: images.predict(fitted, wanted, images.demands(wanted))


def network_learner(chosen: list[NetworkSetup], truth: Vector) -> Callable[[list[NetworkSetup]], Vector]:
    """Fit known jobs on one GPU."""
    weights = fit_networks(chosen, truth)
    return lambda wanted: predict_networks(weights, wanted)


def scaling_learner(chosen: list[ScalingSetup], truth: Vector) -> Callable[[list[ScalingSetup]], Vector]:
    """Fit several GPUs."""
    weights = fit_scaling(chosen, truth)
    return lambda wanted: predict_scaling(weights, wanted)


def job_learner(chosen: list[ClusterJobSetup], truth: Vector) -> Callable[[list[ClusterJobSetup]], Vector]:
    """Fit cluster jobs."""
    weights = fit_jobs(chosen, truth)
    return lambda wanted: predict_jobs(weights, wanted)


def several_learner(
    ones: Mapping[ClusterJobSetup, float],
) -> Callable[[list[ClusterJobSetup], Vector], Callable[[list[ClusterJobSetup]], Vector]]:
    """Fit cluster jobs; answer with what is left of n times one GPU, whose speed is known (`ones`) where measured."""

    def learn(chosen: list[ClusterJobSetup], truth: Vector) -> Callable[[list[ClusterJobSetup]], Vector]:
        weights = fit_jobs(chosen, truth)
        return lambda wanted: np.array([log_efficiency(s, weights, ones.get(replace(s, gpus=1))) for s in wanted])

    return learn


def llm_learner(
    attained: Mapping[str, float], *, forget_kernels: bool
) -> Callable[[list[LlmSetup], Vector], Callable[[list[LlmSetup]], Vector]]:
    """Fit language models; `forget_kernels` also leaves out the kernels measured on a GPU with no row in the fit."""

    def learn(chosen: list[LlmSetup], truth: Vector) -> Callable[[list[LlmSetup]], Vector]:
        seen = {setup.device.name for setup in chosen}
        kept = {gpu: part for gpu, part in attained.items() if gpu in seen or not forget_kernels}
        constants = fit_llm(chosen, truth, kept)
        effects = gpu_effects(chosen, truth - predict_llm(constants, {}, chosen))
        return lambda wanted: predict_llm(constants, effects, wanted)

    return learn


def errors(case: str, truth: Vector, predicted: Vector, groups: Sequence[str]) -> Errors:
    """Truth over prediction, as logarithms."""
    return Errors(case, truth - predicted, tuple(groups))


def reference_pairs(
    truth: Vector,
    predicted: Vector,
    fitted: Mapping[str, Vector],
    same: Sequence[str],
    gpus: Sequence[str],
    weight: float | None = None,
    labels: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
) -> tuple[float, Errors]:
    """How much of a reference's error to take over, and what is left when it is.

    A pair is two rows of the same set-up on two GPUs: the target as `predicted` without its GPU or network, the
    reference as `fitted` for the target's group in `targets` (its GPU unless given). The weight is that of least
    squares over all pairs, at least `LEAST`, unless it is given; the errors of a GPU are those with the weight of all
    other GPUs. Errors are grouped by the target's GPU, or by its `labels` where both GPUs are known and something else
    is new.
    """
    by_setup: dict[str, list[int]] = {}
    for i, name in enumerate(same):
        by_setup.setdefault(name, []).append(i)
    held = gpus if targets is None else targets
    # A reference that was dealt to the target's own fold has no prediction.
    pairs = [
        (i, j)
        for rows in by_setup.values()
        for i in rows
        for j in rows
        if gpus[i] != gpus[j] and np.isfinite(fitted[held[i]][j])
    ]
    target = np.array([truth[i] - predicted[i] for i, _ in pairs])
    reference = np.array([truth[j] - fitted[held[i]][j] for i, j in pairs])
    groups = np.array([gpus[i] for i, _ in pairs])
    pulls = np.full(len(pairs), weight or 0.0)
    for name in set(groups.tolist()) if weight is None else ():
        pulls[groups == name] = _pull(target[groups != name], reference[groups != name])
    chosen = _pull(target, reference) if weight is None else weight
    who = groups.tolist() if labels is None else [labels[i] for i, _ in pairs]
    return chosen, Errors("ref", target - pulls * reference, tuple(who))


def _pull(target: Vector, reference: Vector) -> float:
    """Least squares, within sense."""
    best = float(np.clip((target * reference).sum() / max(1e-9, (reference**2).sum()), 0.0, 1.0))
    return max(best, LEAST)
