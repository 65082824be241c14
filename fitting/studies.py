"""One study per table: what is left out and scored, what is fitted on everything and shipped."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fitting import images
from fitting.cluster_jobs import fit_jobs
from fitting.crossval import (
    errors,
    image_learner,
    job_learner,
    left_out,
    llm_learner,
    network_learner,
    picked,
    reference_pairs,
    scaling_learner,
    several_learner,
)
from fitting.errors import Errors, coverage, spreads
from fitting.llm import fit_llm, gpu_effects, predict_llm
from fitting.networks import fit_networks, fit_scaling, predict_networks
from fitting.nodes import grown, loss_per_doubling
from fitting.power import PER_JOULE, attained
from fitting.ridge import Vector
from fitting.tables import Measured, measured, shipped_catalog
from fitting.transfer import fit_transfer, from_features, pair_errors, timed
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.fitted import Fitted, load_fitted
from stallwise.model.compute_image import ImageSetup
from stallwise.model.compute_llm import parallel
from stallwise.model.compute_network import NetworkSetup
from stallwise.model.compute_scaling import ScalingSetup
from stallwise.model.conformal import Spread, joined
from stallwise.record.table_setups import (
    cluster_job_setup,
    gpu_of,
    image_setup,
    llm_setup,
    network_setup,
    scaling_setup,
)

# How much of a reference's error to take over where only one GPU was measured, by what inference shows.
_REFERENCES = {"ref_weight:": 0.5, "ref_weight:network": 0.3, "ref_weight:family": 0.6, "ref_weight:new": 0.8}
_LOW = 0.9  # efficiency below which several GPUs are worth a model


@dataclass
class Study:
    """What is shipped, and what is said about it."""

    fitted: list[Fitted] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def say(self, what: str, found: Errors) -> None:
        """One line: errors and, from other groups' errors, intervals."""
        e, c = found.relative, coverage(found)
        self.lines.append(
            f"{what:<58} {len(e):>6} rows  median {np.median(e):6.1%}  mean {e.mean():6.1%}  "
            f"80 % interval covers {c.covered:4.0%}, high/low {c.width:.2f}, "
            f"≥ 60 % in {c.groups_above:.0%} of groups"
        )


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
        ("known gpu|network", [f"{s.network}|{s.software}|{s.device.name}" for s in setups], "rows left out"),
    ):
        held = left_out(setups, truth, group, count, image_learner)
        found.append(errors(case, truth, held, [s.family for s in setups]))
        study.say(f"{name}: {what}", found[-1])
    constants = dict(PER_JOULE) | _REFERENCES
    if not training:
        constants["ref_weight:network"], more = _new_gpu(study, setups, truth)
        for one in found[:2]:
            who = one.case.partition("|")[2]
            predicted = truth - one.values
            constants[f"ref_weight:{who}"], left = reference_pairs(
                truth, predicted, predicted, [_same(s) for s in setups], [s.device.name for s in setups]
            )
            study.say(f"image_infer: {who}, one other GPU measured", left)
            more.append(Errors(f"known gpu|{who}|ref", left.values, left.groups))
        found += more
    fit = images.fit(setups, images.demands(setups), truth)
    study.fitted.append(
        Fitted(
            name=name,
            source=f"huggingface/pytorch-image-models results/benchmark-{'train' if training else 'infer'}-*.csv, "
            f"{len(setups)} rows",
            method="non-negative coefficients of seconds by kind of operator; ridge correction; networks' own effects",
            constants=constants,
            coefficients=fit.coefficients,
            weights=fit.weights,
            spreads=_with_new_gpus(spreads(found) | (_other_gpus() if training else {})),
            known={
                "gpu": tuple(sorted({s.device.name for s in setups})),
                "family": tuple(sorted({s.family for s in setups})),
                "network": tuple(sorted({s.network for s in setups})),
                "software": tuple(sorted({s.software for s in setups})),
            },
        )
    )
    return study


def _new_gpu(study: Study, setups: list[ImageSetup], truth: Vector) -> tuple[float, list[Errors]]:
    """Whole GPUs left out; what only one GPU was measured with (a compiled network) cannot be judged so."""
    keep = np.array(["compiled" not in s.software for s in setups])
    setups, truth = picked(setups, keep), truth[keep]
    gpus = [s.device.name for s in setups]
    held = left_out(setups, truth, gpus, 99, image_learner)
    direct = errors("new gpu|network", truth, held, [f"{s.device.name}|{s.family}" for s in setups])
    by_gpu = errors("", truth, held, gpus)
    study.say("image_infer: whole GPUs left out", by_gpu)
    fit = images.fit(setups, images.demands(setups), truth)
    fitted = images.predict(fit, setups, images.demands(setups))
    pull, left = reference_pairs(truth, held, fitted, [_same(s) for s in setups], gpus)
    study.say("image_infer: whole GPUs left out, one other measured", left)
    return pull, [direct, Errors("new gpu|network|ref", left.values, left.groups)]


def _same(setup: ImageSetup) -> str:
    """Rows of one set-up on several GPUs; the batch differs with their memory."""
    return f"{setup.network}|{setup.layout}|{setup.software}|{setup.image_size}"


def _other_gpus() -> dict[str, tuple[float, float, int]]:
    """Training was measured on one GPU; how far another is off is taken from inference as fitted last."""
    shipped = load_fitted("image_infer").spreads
    cases = ("new gpu|network", "new gpu|network|ref", "known gpu|new|ref", "known gpu|family|ref")
    return {case: shipped[case] for case in cases}


def _with_new_gpus(found: dict[str, tuple[float, float, int]]) -> dict[str, tuple[float, float, int]]:
    """A new network on a new GPU errs by both."""
    if "new gpu|network" not in found:
        return found
    more = dict(found)
    for who in ("new", "family"):
        for ref in ("", "|ref"):
            both = joined(Spread(*found[f"new gpu|network{ref}"]), Spread(*found[f"known gpu|{who}{ref}"]))
            more[f"new gpu|{who}{ref}"] = (both.low, both.high, both.rows)
    return more


def network_study(folder: Path) -> Study:
    """Known jobs: whole GPUs left out, pairs of GPU and network left out, several GPUs."""
    catalog, study = shipped_catalog(), Study()
    table = measured(folder, "lambda_pytorch.csv")
    setups, truth = _medians(table, catalog)
    gpus = [s.device.name for s in setups]
    nets = np.array([s.network for s in setups])
    new = left_out(setups, truth, gpus, 99, network_learner)
    whole = errors("new gpu|network", truth, new, gpus)
    study.say("network, one GPU: whole GPUs left out", whole)
    families = [_kin(name) for name in gpus]
    kept = errors("", truth, left_out(setups, truth, families, 99, network_learner), families)
    study.say("network, one GPU: whole GPU families (A100, H100 …) left out", kept)
    pairs = [f"{s.device.name}|{s.network}" for s in setups]
    known = errors("known gpu|network", truth, left_out(setups, truth, pairs, 6, network_learner), gpus)
    study.say("network, one GPU: pairs of GPU and network left out", known)
    weights = fit_networks(setups, truth)
    same = [f"{s.network}|{s.precision}|{s.software}" for s in setups]
    pull, left = reference_pairs(truth, new, predict_networks(weights, setups), same, gpus)
    study.say("network, one GPU: whole GPUs left out, one other measured", left)
    ref = Errors("new gpu|network|ref", left.values, left.groups)
    unseen = left_out(setups, truth, nets.tolist(), 99, network_learner)
    _, alone = reference_pairs(truth, unseen, unseen, same, gpus, weight=1.0)
    study.say("network, one GPU: whole networks left out, one other measured", alone)
    by_net = [
        one.where((nets == net).tolist(), one.case.replace("|network", f"|{net}"))
        for one in (whole, known)
        for net in sorted(set(nets))
    ]
    more, scaling = _scaling(study, table, catalog)
    study.fitted += [
        Fitted(
            name="network",
            source=f"lambdal/deeplearning-benchmark, {len(table.rows)} rows",
            method="ridge correction of a roofline: slopes of every network on the figures of a GPU",
            constants={"ref_weight:": pull, "ref_weight:alone": 1.0},
            weights=weights,
            spreads=spreads([whole, known, ref, Errors("alone|ref", alone.values, alone.groups), *by_net, *more]),
            known={"gpu": tuple(sorted(set(gpus))), "network": tuple(sorted(set(nets.tolist())))},
        ),
        scaling,
    ]
    return study


def _kin(name: str) -> str:
    return name.split("-")[0] if name.startswith(("A100", "H100", "V100")) else name


def _medians(table: Measured, catalog: Catalog) -> tuple[list[NetworkSetup], Vector]:
    """One row per GPU, job and software: a GPU with forty hosts in the table is still one GPU."""
    found: dict[NetworkSetup, list[float]] = {}
    for row, value in zip(table.rows, table.truth, strict=True):
        if row.count("n_gpus", 1) == 1:
            found.setdefault(network_setup(row, gpu_of(row, catalog)), []).append(value)
    return list(found), np.array([np.log(np.median(values)) for values in found.values()])


def _scaling(study: Study, table: Measured, catalog: Catalog) -> tuple[list[Errors], Fitted]:
    """Several GPUs, given one; and end to end, with the one predicted too."""
    ones, log_one = _medians(table, catalog)
    base = dict(zip(ones, log_one.tolist(), strict=True))
    found: dict[ScalingSetup, list[float]] = {}
    for row, value in zip(table.rows, table.truth, strict=True):
        one = network_setup(row, gpu_of(row, catalog))
        if row.count("n_gpus", 1) > 1 and one in base:
            found.setdefault(scaling_setup(row, one, float(np.exp(base[one]))), []).append(value)
    setups = list(found)
    which = [_one(s) for s in setups]
    truth = np.array(
        [np.log(np.median(v)) - np.log(s.gpus) - base[w] for (s, v), w in zip(found.items(), which, strict=True)]
    )
    gpus = [s.device.name for s in setups]
    held = left_out(setups, truth, gpus, 99, scaling_learner)
    whole = errors("new gpu|scaling", truth, held, gpus)
    study.say("network, several GPUs given one: whole GPUs left out", whole)
    low = truth < np.log(_LOW)
    _halved(study, "network, several GPUs, whole GPUs left out", truth, held, low)
    for kind in ("nvlink", "bridge", "pcie", "shared pcie"):
        from stallwise.model.compute_scaling import link_kind

        here = low & np.array([link_kind(s) == kind for s in setups])
        if here.any():
            _halved(study, f"  {kind}", truth, held, here)
    new_one = left_out(ones, log_one, [s.device.name for s in ones], 99, network_learner)
    off = dict(zip(ones, (log_one - new_one).tolist(), strict=True))
    both = errors("new gpu|several|network", truth + [off[w] for w in which], held, gpus)
    study.say("network, several GPUs end to end: whole GPUs left out", both)
    pairs = [f"{s.device.name}|{s.network}" for s in setups]
    near = errors("known gpu|several|network", truth, left_out(setups, truth, pairs, 6, scaling_learner), gpus)
    study.say("network, several GPUs given one: pairs left out", near)
    fitted = Fitted(
        name="scaling",
        source=f"lambdal/deeplearning-benchmark, {len(setups)} set-ups of several GPUs",
        method="ridge on doublings by link, job, software and GPU",
        weights=fit_scaling(setups, truth),
        spreads=spreads([whole, Errors("known gpu|scaling", near.values, near.groups)]),
        known={"gpu": tuple(sorted(set(gpus)))},
    )
    return [both, near], fitted


def _one(setup: ScalingSetup) -> NetworkSetup:
    return NetworkSetup(device=setup.device, network=setup.network, precision=setup.precision, software=setup.software)


def _halved(study: Study, what: str, truth: Vector, held: Vector, low: Vector) -> None:
    """Errors of the model beside those of n times one GPU, where that is far off."""
    model = np.abs(np.exp(held - truth) - 1)[low]
    naive = np.abs(np.exp(-truth) - 1)[low]
    study.lines.append(
        f"{what + ', efficiency below 0.9':<58} {int(low.sum()):>6} rows  median {np.median(model):6.1%} against "
        f"{np.median(naive):6.1%} of n × one;  mean {model.mean():6.1%} against {naive.mean():6.1%}"
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
        low = here & (truth < naive + np.log(_LOW))
        given_one = left_out(setups, truth, counts, 30, several_learner)
        _halved(study, f"gavel, several given one, {placement}", truth - naive, given_one, low)
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


def _alone(setup: object) -> object:
    from dataclasses import replace

    return replace(setup, gpus=1)  # type: ignore[type-var]


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
            constants={**constants, "ref_weight:": 0.7},
            weights=gpu_effects(setups, truth - predicted),
            spreads=spreads([found[0], *found[2:]]),
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
            method="grid over three physical constants, least mean error over pairs of GPUs",
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
    _halved(study, "nodes, whole jobs left out", truth, held, truth < np.log(_LOW))
    return study


STUDIES: dict[str, Callable[[Path], Study]] = {
    "network": network_study,
    "transfer": transfer_study,
    "gavel": gavel_study,
    "nodes": node_study,
    "llm": llm_study,
    "image_infer": lambda folder: image_study(folder, training=False),
    "image_train": lambda folder: image_study(folder, training=True),
}
