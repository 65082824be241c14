"""Cluster jobs, language models, a measured step elsewhere, many nodes, and the CM-DARE question."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fitting.cluster_jobs import fit_jobs
from fitting.cmdare import left_out_errors, runs
from fitting.crossval import (
    errors,
    job_learner,
    left_out,
    left_out_twice,
    llm_learner,
    picked,
    reference_pairs,
    several_learner,
)
from fitting.errors import Errors, by_class, spreads
from fitting.llm import fit_llm, gpu_effects, predict_llm
from fitting.nodes import Grown, grown, learned
from fitting.power import attained
from fitting.ridge import Vector
from fitting.study import LOW, Study, halved
from fitting.tables import measured, shipped_catalog
from fitting.transfer import fit_transfer, from_features, gridded, off_by, pairs_of, timed
from stallwise.analysis.tables import (
    cluster_job_setup,
    gpu_of,
    llm_setup,
)
from stallwise.hardware.coefficients import FittedCoefficients
from stallwise.model.compute.cluster_job import ClusterJobSetup
from stallwise.model.compute.llm import LlmSetup, parallel
from stallwise.model.compute.transfer import reach

_OLD, _LARGE_BATCH, _LONG = 2017, 8, 2048
_REFERRED = {"network": ("one|network", "several|network"), "new": ("one|new", "several|new", "new")}


def gavel_study(folder: Path) -> Study:
    """Cluster jobs: pairs of job and GPU, numbers of GPUs, and whole jobs left out."""
    catalog, study = shipped_catalog(), Study()
    table = measured(folder, "gavel_steps_per_s.csv")
    setups = [cluster_job_setup(row, gpu_of(row, catalog)) for row in table.rows]
    truth = np.log(table.truth)
    several = np.array([s.gpus > 1 for s in setups])
    pairs = [f"{s.job}|{s.device.name}" for s in setups]
    rows = [f"{s.job}|{s.device.name}|{s.batch}|{s.gpus > 1}" for s in setups]
    counts = [f"{s.job}|{s.device.name}" if s.gpus > 1 else f"one {i}" for i, s in enumerate(setups)]
    largest = [f"{s.job}|{s.device.name}|largest" if s.gpus == 8 else f"less {i}" for i, s in enumerate(setups)]
    held = left_out(setups, truth, pairs, 99, job_learner)
    near = left_out(setups, truth, rows, 30, job_learner)
    only = left_out(setups, truth, counts, 30, job_learner)
    more = left_out(setups, truth, largest, 30, job_learner)
    top = np.array([s.gpus == 8 for s in setups])
    found = []
    for case, predicted, here, what in (
        ("one|network", held, ~several, "pairs of job and GPU left out"),
        ("one|pair", near, ~several, "all rows of one batch left out"),
        ("several|network", held, several, "pairs of job and GPU left out"),
        ("several|one", only, several, "that job on several of that GPU left out"),
        ("several|pair", near, several, "all rows of one batch left out"),
        ("several|largest", more, top, "8 of that GPU left out"),
    ):
        found.append(errors(case, truth, predicted, pairs).where(here.tolist()))
        study.say(f"gavel, {case.partition('|')[0]}: {what}", found[-1])
    ones = {_alone(s): t for s, t in zip(setups, truth, strict=True) if s.gpus == 1}
    naive = np.array([ones.get(_alone(s), np.nan) + np.log(s.gpus) for s in setups])
    given_one = left_out(setups, truth, counts, 30, several_learner(ones))
    for placement in ("packed", "spread"):
        here = several & np.isfinite(naive) & np.array([s.placement == placement for s in setups])
        low = here & (truth < naive + np.log(LOW))
        halved(study, f"gavel, several given one, {placement}", truth - naive, given_one, low)
    known_one = several & np.isfinite(naive)
    left = errors("several|one|one", truth - naive, given_one, pairs).where(known_one.tolist())
    study.say("gavel, several given one: that job on several of that GPU left out", left)
    found += [left, *(Errors(f"several|{who}|one", left.values, left.groups) for who in ("network", "pair", "new"))]
    jobs = [s.job for s in setups]
    unseen = left_out(setups, truth, jobs, 99, job_learner)
    found.append(errors("new", truth, unseen, jobs))
    study.say("gavel: whole jobs left out", found[-1])
    same = [f"{s.job}|{s.table}|{s.placement}|{s.batch}|{s.gpus}" for s in setups]
    gpus = [s.device.name for s in setups]
    pulls = {"ref_weight:alone": 1.0}
    without = left_out_twice(setups, truth, pairs, rows, (6, 4), job_learner)
    for case, predicted, there, what in (
        ("network", held, without, "pairs of job and GPU left out"),
        ("new", unseen, dict.fromkeys(pairs, unseen), "whole jobs left out"),
    ):
        pulls[f"ref_weight:{case}"], left = reference_pairs(truth, predicted, there, same, gpus, targets=pairs)
        study.say(f"gavel: {what}, one other GPU measured", left)
        found += [Errors(f"{name}|ref", left.values, left.groups) for name in _REFERRED[case]]
    _, alone = reference_pairs(truth, unseen, dict.fromkeys(gpus, unseen), same, gpus, weight=1.0)
    found.append(Errors("alone|ref", alone.values, alone.groups))
    study.fitted.append(
        FittedCoefficients(
            name="gavel",
            source=f"stanford-futuredata/gavel throughputs, {len(setups)} rows",
            method="ridge correction of a roofline of totals",
            constants={**pulls, "ref_weight:": pulls["ref_weight:network"]},
            weights=fit_jobs(setups, truth),
            spreads=spreads(found),
            known={
                "gpu": frozenset(s.device.name for s in setups),
                "network": frozenset(jobs),
                "pair": frozenset(pairs),
                "several": frozenset(p for p, s in zip(pairs, setups, strict=True) if s.gpus > 1),
                "count": frozenset(f"{p}|{s.gpus}" for p, s in zip(pairs, setups, strict=True)),
            },
        )
    )
    return study


def _alone(setup: ClusterJobSetup) -> ClusterJobSetup:
    return replace(setup, gpus=1)


def llm_study(folder: Path) -> Study:
    """Language models: whole GPUs left out, with and without the kernels measured on them."""
    catalog, study = shipped_catalog(), Study()
    table = measured(folder, "neusight_llm_latency.csv")
    every = [llm_setup(row, gpu_of(row, catalog)) for row in table.rows]
    one = np.array([parallel(s.option)[1] == 1 for s in every])
    setups, truth = picked(every, one), np.log(table.truth / 1e3)[one]
    gpus = [s.device.name for s in setups]
    kernels = attained(folder, catalog)
    nvidia = np.array([not name.startswith("MI") for name in gpus])
    trains = np.array([s.training for s in setups])
    modes = ["train" if s.training else "forward" for s in setups]
    found = []
    for forget, what in ((False, "whole GPUs left out"), (True, "whole GPUs and their kernels left out")):
        held = left_out(setups, truth, gpus, 99, llm_learner(kernels, forget_kernels=forget))
        whole = errors("new gpu|network", truth, held, gpus)
        for who, here in (
            ("NVIDIA, training", nvidia & trains),
            ("NVIDIA", nvidia),
            ("AMD, training", ~nvidia & trains),
            ("AMD", ~nvidia),
        ):
            study.say(f"llm, {who}: {what}", whole, [modes], here.tolist())
    found += [whole, *by_class(whole, [modes])]
    pairs = [f"{s.device.name}|{s.model.name}" for s in setups]
    apart = left_out(setups, truth, pairs, 8, llm_learner(kernels, forget_kernels=False))
    known = errors("known gpu|network", truth, apart, pairs)
    found += [known, *by_class(known, [modes])]
    study.say("llm: pairs of GPU and model left out", known, [modes])
    same = [f"{s.model.name}|{s.sequence}|{s.batch}|{s.training}|{s.option}" for s in setups]
    without = left_out_twice(setups, truth, gpus, pairs, (99, 4), llm_learner(kernels, forget_kernels=True))
    pull, left = reference_pairs(truth, held, without, same, gpus)
    study.say("llm: whole GPUs and their kernels left out, one other measured", left)
    found.append(Errors("new gpu|network|ref", left.values, left.groups))
    models = [s.model.name for s in setups]
    unseen = errors(
        "known gpu|new", truth, left_out(setups, truth, models, 99, llm_learner(kernels, forget_kernels=False)), models
    )
    study.say("llm: whole models left out", unseen, [modes])
    for what, far in (
        ("all AMD", ~nvidia),
        ("all of 2017 and before", np.array([(s.device.year or 0) <= _OLD for s in setups])),
        ("all of batch 8 and more", np.array([s.batch >= _LARGE_BATCH for s in setups])),
        ("all of 2048 words", np.array([s.sequence >= _LONG for s in setups])),
    ):
        beyond = llm_learner(kernels, forget_kernels=True)(picked(setups, ~far), truth[~far])(picked(setups, far))
        off = errors("", truth[far], beyond, [""] * int(far.sum())).relative
        study.lines.append(
            f"llm: {what} left out at once: {len(off)} rows, median {np.median(off):.1%}, mean {off.mean():.1%}"
        )
    neither = errors("new gpu|new", truth, _neither(setups, truth, kernels), gpus)
    study.say("llm: whole GPUs, their kernels and whole models left out", neither, [modes])
    found += [unseen, *by_class(unseen, [modes]), neither, *by_class(neither, [modes])]
    constants = fit_llm(setups, truth, kernels)
    predicted = predict_llm(constants, {}, setups)
    several = errors("", np.log(table.truth / 1e3)[~one], predict_llm(constants, {}, picked(every, ~one)), [""] * 3)
    study.lines.append(f"llm, four GPUs (not fitted): errors {', '.join(f'{e:.1%}' for e in several.relative)}")
    study.fitted.append(
        FittedCoefficients(
            name="llm",
            source=f"sitar-lab/NeuSight summary and kernels, {len(setups)} rows",
            method="least squares of logarithms for a dozen physical constants; GPUs' own effects",
            constants={**constants, "ref_weight:": pull},
            weights=gpu_effects(setups, truth - predicted),
            spreads=spreads(found),
            known={"gpu": frozenset(gpus), "network": frozenset(models)},
        )
    )
    return study


def _neither(setups: list[LlmSetup], truth: Vector, kernels: dict[str, float]) -> Vector:
    """Every row by a fit that saw neither its GPU nor its model."""
    out = np.zeros(len(truth))
    gpus, models = np.array([s.device.name for s in setups]), np.array([s.model.name for s in setups])
    learn = llm_learner(kernels, forget_kernels=True)
    for gpu, model in sorted(set(zip(gpus.tolist(), models.tolist(), strict=True))):
        rest, here = (gpus != gpu) & (models != model), (gpus == gpu) & (models == model)
        out[here] = learn(picked(setups, rest), truth[rest])(picked(setups, here))
    return out


def transfer_study(folder: Path) -> Study:
    """A measured step on another GPU, whole GPUs or whole networks left out; and from features alone."""
    study, rows = Study(), timed(folder)
    grid, (targets, sources) = gridded(rows), pairs_of(rows)
    gpus, networks = np.array([r.device.name for r in rows]), np.array([r.network for r in rows])
    new, known = np.zeros(len(targets)), np.zeros(len(targets))
    alone = np.zeros(len(rows))
    for out, names in ((new, gpus), (known, networks)):
        for name in sorted(set(names.tolist())):
            keep = names != name
            constants = fit_transfer(picked(rows, keep), grid.of(keep))
            off, here = off_by(rows, constants), names[targets] == name
            out[here] = (off[targets] - off[sources])[here]
            if names is gpus:
                alone[~keep] = from_features(rows, constants)[~keep]
    labels = tuple(gpus[targets].tolist())
    near = [reach(rows[j].device, rows[i].device) for i, j in zip(targets, sources, strict=True)]
    found = []
    for case, values, what in (
        ("measured|new gpu", new, "whole GPUs"),
        ("measured|known gpu", known, "whole networks"),
    ):
        one = Errors(case, values, labels)
        study.say(f"transfer: one GPU measured, {what} left out", one, [near])
        for kind in sorted(set(near)):
            study.say(f"  {kind}", one, [near], [k == kind for k in near])
        found += [one, *by_class(one, [near])]
    shift = Errors("measured", new, labels).shift
    study.lines.append(f"transfer: shift of a whole GPU, root of the mean square: {shift:.3f}")
    found.append(Errors("measured", new, labels))
    features = Errors("features", alone, tuple(gpus.tolist()))
    study.say("transfer: features alone, whole GPUs left out", features)
    study.fitted.append(
        FittedCoefficients(
            name="transfer",
            source=f"mengwanguc/gpemu compute times and lambdal/deeplearning-benchmark, {len(rows)} rows",
            method="grid over four physical constants, least mean error over pairs of GPUs; effects of GPUs",
            constants=fit_transfer(rows, grid),
            spreads=spreads([*found, features]),
            known={"gpu": frozenset(gpus.tolist())},
        )
    )
    return study


def node_study(folder: Path) -> Study:
    """Many nodes with InfiniBand: whole GPUs, or whole jobs, left out. Printed only; nothing is shipped."""
    study, (rows, pairs) = Study(), grown(folder)
    truth = np.array([row.log_efficiency for row in rows])
    study.lines.append(f"nodes: {len(rows)} rows, median efficiency {np.exp(np.median(truth)):.0%}")
    for what, label in (("GPUs", _gpu_of), ("jobs", _job_of)):
        apart = {name: learned([row for row in pairs if label(row) != name]) for name in {label(row) for row in rows}}
        held = np.array([apart[label(row)].log_efficiency(row) for row in rows])
        halved(study, f"nodes, whole {what} left out", truth, held, truth < np.log(LOW))
    return study


def _gpu_of(row: Grown) -> str:
    return row.gpu


def _job_of(row: Grown) -> str:
    return row.job


def cmdare_study(folder: Path) -> Study:
    """A network nobody ran, from features alone. Printed only; nothing is shipped."""
    study, found = Study(), runs(folder)
    off, gpus = left_out_errors(found), np.array(found.gpus)
    each = ", ".join(f"{gpu} {off[gpus == gpu].mean():.1%}" for gpu in sorted(set(found.gpus)))
    study.lines.append(f"cmdare: features alone, whole networks left out: mean {off.mean():.1%} ({each})")
    return study
