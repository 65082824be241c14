"""Image networks: families, networks, rows and GPUs left out."""

from pathlib import Path

import numpy as np

from fitting import images
from fitting.crossval import (
    errors,
    image_learner,
    left_out,
    left_out_twice,
    picked,
    reference_pairs,
)
from fitting.errors import Errors, spreads
from fitting.power import per_joule
from fitting.ridge import Vector
from fitting.study import Study
from fitting.tables import measured, shipped_catalog
from stallwise.analysis.tables import (
    gpu_of,
    image_setup,
)
from stallwise.hardware.coefficients import FittedCoefficients, load_fitted
from stallwise.model.compute import image
from stallwise.model.compute.image import ImageSetup
from stallwise.model.statistics.conformal import ErrorSpread, joined

# How much of a reference's error to take over where only one GPU was measured, by what inference shows.
_REFERENCES = {"ref_weight:": 0.5, "ref_weight:network": 0.3, "ref_weight:family": 0.6, "ref_weight:new": 0.8}


def image_study(folder: Path, *, training: bool) -> Study:
    """Image networks: families, networks and rows left out; across GPUs for inference."""
    catalog, study = shipped_catalog(), Study()
    table = measured(folder, "timm_train_rtx3090.csv" if training else "timm_infer_cross_gpu.csv")
    setups = [image_setup(row, gpu_of(row, catalog), training=training) for row in table.rows]
    truth = -np.log(table.truth)
    name = "image_train" if training else "image_infer"
    count = 6 if training else 4
    found = []
    for case, group, what in (
        ("known gpu|new", [s.family for s in setups], "whole families left out"),
        ("known gpu|family", [s.network for s in setups], "whole networks left out"),
        ("known gpu|network", [_row(s) for s in setups], "rows left out"),
    ):
        held = left_out(setups, truth, group, count, image_learner)
        found.append(errors(case, truth, held, [s.family for s in setups]))
        study.say(f"{name}: {what}", found[-1])
    if training:
        _extremes(study, setups, truth)
    constants = per_joule(catalog) | _REFERENCES
    attained_parts = [image.matrix_flop(s) / s.device.matrix_flop_per_s for s in setups] * np.exp(-truth)
    constants["best_fraction"] = float(attained_parts.max())
    more: list[Errors] = []
    if not training:
        constants["ref_weight:network"], more = _new_gpu(study, setups, truth, count)
        for one in tuple(found[:2]):
            who = one.case.partition("|")[2]
            predicted = truth - one.values
            constants[f"ref_weight:{who}"], left = reference_pairs(
                truth,
                predicted,
                dict.fromkeys((s.device.name for s in setups), predicted),
                [_same(s) for s in setups],
                [s.device.name for s in setups],
                labels=[s.family for s in setups],
            )
            study.say(f"image_infer: {who}, one other GPU measured", left)
            found.append(Errors(f"known gpu|{who}|ref", left.values, left.groups))
    fit = images.fit(setups, images.demands(setups), truth)
    study.fitted.append(
        FittedCoefficients(
            name=name,
            source=f"huggingface/pytorch-image-models results/benchmark-{'train' if training else 'infer'}-*.csv, "
            f"{len(setups)} rows",
            method="non-negative coefficients of seconds by kind of operator; ridge correction; networks' own effects",
            constants=constants,
            coefficients=fit.coefficients,
            weights=fit.weights,
            spreads=_with_new_gpus(spreads([*found, *more]) | (_other_gpus() if training else {})),
            known={
                "gpu": frozenset(s.device.name for s in setups),
                "family": frozenset(s.family for s in setups),
                "network": frozenset(s.network for s in setups),
                "software": frozenset(s.software for s in setups),
            },
        )
    )
    return study


def _extremes(study: Study, setups: list[ImageSetup], truth: Vector) -> None:
    """Networks larger, or smaller, than any that was fitted."""
    work = np.array([sum(s.macs.values()) for s in setups])
    for what, far in (("most", work > np.quantile(work, 0.9)), ("least", work < np.quantile(work, 0.1))):
        held = image_learner(picked(setups, ~far), truth[~far])(picked(setups, far))
        off = np.abs(np.exp(held - truth[far]) - 1)
        study.lines.append(
            f"image_train: the tenth with the {what} work left out at once: {len(off)} rows, "
            f"median {np.median(off):.1%}, mean {off.mean():.1%}"
        )


def _new_gpu(study: Study, setups: list[ImageSetup], truth: Vector, count: int) -> tuple[float, list[Errors]]:
    """Whole GPUs left out; what only one GPU was measured with (a compiled network) cannot be judged so.

    A reference is predicted as a user's own is: by a fit that saw neither it nor the target's GPU.
    """
    keep = np.array(["compiled" not in s.software for s in setups])
    setups, truth = picked(setups, keep), truth[keep]
    gpus = [s.device.name for s in setups]
    held = left_out(setups, truth, gpus, 99, image_learner)
    direct = errors("new gpu|network", truth, held, gpus)
    study.say("image_infer: whole GPUs left out", direct)
    rows = [_row(s) for s in setups]
    apart = left_out_twice(setups, truth, gpus, rows, (99, count), image_learner)
    pull, left = reference_pairs(truth, held, apart, [_same(s) for s in setups], gpus)
    study.say("image_infer: whole GPUs left out, one other measured", left)
    return pull, [direct, Errors("new gpu|network|ref", left.values, left.groups)]


def _row(setup: ImageSetup) -> str:
    return f"{setup.network}|{setup.software}|{setup.device.name}"


def _same(setup: ImageSetup) -> str:
    """Rows of one set-up on several GPUs; the batch differs with their memory."""
    return f"{setup.network}|{setup.layout}|{setup.software}|{setup.image_size}"


def _other_gpus() -> dict[str, tuple[float, float, int]]:
    """Training was measured on one GPU; how far another is off is taken from inference as fitted last."""
    shipped = load_fitted("image_infer").spreads
    cases = ("new gpu|network", "new gpu|network|ref", "known gpu|new|ref", "known gpu|family|ref")
    return {case: shipped[case] for case in cases}


def _with_new_gpus(found: dict[str, tuple[float, float, int]]) -> dict[str, tuple[float, float, int]]:
    """A new GPU errs as a whole and, on it, every network on its own; a new network adds its own error again."""
    more = dict(found)
    for who in ("new", "family"):
        for ref in ("", "|ref"):
            both = joined(ErrorSpread(*more[f"new gpu|network{ref}"]), ErrorSpread(*found[f"known gpu|{who}{ref}"]))
            more[f"new gpu|{who}{ref}"] = (both.low, both.high, both.rows)
    return more
