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
    llm_learner,
    picked,
    reference_pairs,
    several_learner,
)
from fitting.errors import Errors, spreads
from fitting.llm import fit_llm, gpu_effects, predict_llm
from fitting.nodes import grown, loss_per_doubling
from fitting.power import attained
from fitting.ridge import Vector
from fitting.study import LOW, Study, halved
from fitting.tables import measured, shipped_catalog
from fitting.transfer import fit_transfer, from_features, pair_errors, timed
from stallwise.hardware.fitted import Fitted
from stallwise.model.compute_cluster_job import ClusterJobSetup
from stallwise.model.compute_llm import parallel
from stallwise.record.table_setups import (
    cluster_job_setup,
    gpu_of,
    llm_setup,
)


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
    for placement in ("packed", "spread"):
        here = several & np.isfinite(naive) & np.array([s.placement == placement for s in setups])
        low = here & (truth < naive + np.log(LOW))
        given_one = left_out(setups, truth, counts, 30, several_learner)
        halved(study, f"gavel, several given one, {placement}", truth - naive, given_one, low)
    jobs = [s.job for s in setups]
    unseen = left_out(setups, truth, jobs, 99, job_learner)
    found.append(errors("new", truth, unseen, jobs))
    study.say("gavel: whole jobs left out", found[-1])
    same = [f"{s.job}|{s.table}|{s.placement}|{s.batch}|{s.gpus}" for s in setups]
    _, alone = reference_pairs(truth, unseen, unseen, same, [s.device.name for s in setups], weight=1.0)
    study.say("gavel: whole jobs left out, one other GPU measured", alone)
    found += [Errors(f"{case}|ref", alone.values, alone.groups) for case in ("alone", "new")]
    study.fitted.append(
        Fitted(
            name="gavel",
            source=f"stanford-futuredata/gavel throughputs, {len(setups)} rows",
            method="ridge correction of a roofline of totals",
            constants={"ref_weight:": 0.3, "ref_weight:new": 1.0, "ref_weight:alone": 1.0},
            weights=fit_jobs(setups, truth),
            spreads=spreads(found),
            known={
                "gpu": tuple(sorted({s.device.name for s in setups})),
                "network": tuple(sorted(set(jobs))),
                "pair": tuple(sorted(set(pairs))),
                "several": tuple(sorted({p for p, s in zip(pairs, setups, strict=True) if s.gpus > 1})),
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
    found = []
    for forget, what in ((True, "whole GPUs and their kernels left out"), (False, "whole GPUs left out")):
        held = left_out(setups, truth, gpus, 99, llm_learner(kernels, forget_kernels=forget))
        whole = errors("new gpu|network", truth, held, gpus)
        for who, here in (("NVIDIA, training", nvidia & trains), ("NVIDIA", nvidia), ("AMD", ~nvidia)):
            study.say(f"llm, {who}: {what}", whole.where(here.tolist()))
        found.append(whole)
    pairs = [f"{s.device.name}|{s.model.name}" for s in setups]
    known = left_out(setups, truth, pairs, 8, llm_learner(kernels, forget_kernels=False))
    found.append(errors("known gpu|network", truth, known, gpus))
    study.say("llm: pairs of GPU and model left out", found[-1])
    same = [f"{s.model.name}|{s.sequence}|{s.batch}|{s.training}|{s.option}" for s in setups]
    pull, left = reference_pairs(truth, truth - found[0].values, known, same, gpus)
    study.say("llm: whole GPUs and their kernels left out, one other measured", left)
    references = Errors("new gpu|network|ref", left.values, left.groups)
    models = [s.model.name for s in setups]
    unseen = left_out(setups, truth, models, 99, llm_learner(kernels, forget_kernels=False))
    found.append(errors("known gpu|new", truth, unseen, models))
    study.say("llm: whole models left out", found[-1])
    constants = fit_llm(setups, truth, kernels)
    predicted = predict_llm(constants, {}, setups)
    several = errors("", np.log(table.truth / 1e3)[~one], predict_llm(constants, {}, picked(every, ~one)), [""] * 3)
    study.lines.append(f"llm, four GPUs (not fitted): errors {', '.join(f'{e:.1%}' for e in several.relative)}")
    study.fitted.append(
        Fitted(
            name="llm",
            source=f"sitar-lab/NeuSight summary and kernels, {len(setups)} rows",
            method="least squares of logarithms for a dozen physical constants; GPUs' own effects",
            constants={**constants, "ref_weight:": pull},
            weights=gpu_effects(setups, truth - predicted),
            spreads=spreads([found[0], *found[2:], references]),
            known={"gpu": tuple(sorted(set(gpus))), "network": tuple(sorted(set(models)))},
        )
    )
    return study


_BATCHES = (8, 16, 32, 64, 128)


def transfer_study(folder: Path) -> Study:
    """A measured step on another GPU, whole GPUs left out; and from features alone."""
    study = Study()
    rows = [row for row in timed(folder) if row.batch in _BATCHES]
    names = {row.device.name for row in rows}
    measured_once, alone = [], []
    for name in sorted(names):
        constants = fit_transfer(rows, names - {name})
        measured_once.append(pair_errors(rows, constants, {name}, names))
        here = [row for row in rows if row.device.name == name]
        alone.append(Errors("features", from_features(here, constants), tuple(row.device.name for row in here)))
    pairs = Errors("measured", *_together(measured_once))
    features = Errors("features", *_together(alone))
    study.say("transfer: one GPU measured, whole GPUs left out", pairs)
    study.say("transfer: features alone, whole GPUs left out", features)
    study.fitted.append(
        Fitted(
            name="transfer",
            source=f"mengwanguc/gpemu compute times, {len(rows)} rows of ten networks on six GPUs",
            method="grid over four physical constants, least mean error over pairs of GPUs; effects of architectures",
            constants=fit_transfer(rows, names),
            spreads=spreads([pairs, features]),
            known={"gpu": tuple(sorted(names))},
        )
    )
    return study


def _together(found: list[Errors]) -> tuple[Vector, tuple[str, ...]]:
    return np.concatenate([one.values for one in found]), tuple(group for one in found for group in one.groups)


def node_study(folder: Path) -> Study:
    """Many nodes with InfiniBand: one constant, whole jobs left out. Printed only; nothing is shipped."""
    study, rows = Study(), grown(folder)
    truth = np.array([row.log_efficiency for row in rows])
    held = np.zeros(len(rows))
    for job in sorted({row.job for row in rows}):
        loss = loss_per_doubling([row for row in rows if row.job != job])
        for i, row in enumerate(rows):
            if row.job == job:
                held[i] = loss * row.doublings
    study.lines.append(f"nodes: {len(rows)} rows, median efficiency {np.exp(np.median(truth)):.0%}")
    halved(study, "nodes, whole jobs left out", truth, held, truth < np.log(LOW))
    return study


def cmdare_study(folder: Path) -> Study:
    """A network nobody ran, from features alone. Printed only; nothing is shipped."""
    study, found = Study(), runs(folder)
    off, gpus = left_out_errors(found), np.array(found.gpus)
    each = ", ".join(f"{gpu} {off[gpus == gpu].mean():.1%}" for gpu in sorted(set(found.gpus)))
    study.lines.append(f"cmdare: features alone, whole networks left out: mean {off.mean():.1%} ({each})")
    return study
