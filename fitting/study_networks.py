"""Known jobs: whole GPUs, GPU families and pairs left out; one GPU and several."""

from pathlib import Path

import numpy as np

from fitting.all_reduces import all_reduces, held_out_links
from fitting.crossval import (
    errors,
    left_out,
    left_out_twice,
    network_learner,
    reference_pairs,
    scaling_learner,
)
from fitting.errors import Errors, by_class, spreads
from fitting.networks import fit_networks, fit_scaling, usual_batches
from fitting.ridge import Vector
from fitting.study import LOW, Study, halved
from fitting.tables import Measured, measured, shipped_catalog
from stallwise.analysis import prediction
from stallwise.analysis.job import model_of_job
from stallwise.analysis.tables import (
    gpu_of,
    network_setup,
    scaling_setup,
)
from stallwise.analysis.target import Target
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.coefficients import FittedCoefficients
from stallwise.model.compute.known_jobs import (
    PARAMETERS_M,
    NetworkSetup,
    ScalingSetup,
    efficiency_level,
    exchange_ratio,
    link_kind,
    narrowest_link,
    scaling_class,
)
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob
from stallwise.workload.layers import Layer, LayerTrace

_MANY = 8
_COUNTS = (2, 4, 8)


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
    made = [s.device.architecture for s in setups]
    far = errors("new generation|network", truth, left_out(setups, truth, made, 99, network_learner), gpus)
    study.say("network, one GPU: whole generations (Ampere, Hopper …) left out", far)
    study.lines.append(
        f"network, one GPU: shift of a whole GPU, root of the mean square: {whole.shift:.3f}, "
        f"without its generation {far.shift:.3f}"
    )
    pairs = [f"{s.device.name}|{s.network}" for s in setups]
    apart = left_out(setups, truth, pairs, 6, network_learner)
    known = errors("known gpu|network", truth, apart, gpus)
    study.say("network, one GPU: pairs of GPU and network left out", known)
    weights = fit_networks(setups, truth)
    same = [f"{s.network}|{s.precision}|{s.software}" for s in setups]
    without = left_out_twice(setups, truth, gpus, pairs, (8, 4), network_learner)
    pull, left = reference_pairs(truth, new, without, same, gpus)
    study.say("network, one GPU: whole GPUs left out, one other measured", left)
    ref = Errors("new gpu|network|ref", left.values, left.groups)
    unseen = left_out(setups, truth, nets.tolist(), 99, network_learner)
    _, alone = reference_pairs(truth, unseen, dict.fromkeys(gpus, unseen), same, gpus, weight=1.0)
    study.say("network, one GPU: whole networks left out, one other measured", alone)
    by_net = [
        part
        for one in (whole, known, far)
        for part in by_class(Errors(one.case.removesuffix("|network"), one.values, one.groups), [nets.tolist()])
    ]
    study.say("network, one GPU: whole GPUs left out, intervals by network if better", whole, [nets.tolist()])
    off = {
        "new gpu": dict(zip(setups, (truth - new).tolist(), strict=True)),
        "known gpu": dict(zip(setups, (truth - apart).tolist(), strict=True)),
    }
    more, scaling = _scaling(study, table, catalog, off)
    study.fitted += [
        FittedCoefficients(
            name="network",
            source=f"lambdal/deeplearning-benchmark, {len(table.rows)} rows",
            method="ridge correction of a roofline: slopes of every network on the figures of a GPU",
            constants={"ref_weight:": pull, "ref_weight:alone": 1.0},
            weights=weights,
            spreads=spreads([whole, known, far, ref, Errors("alone|ref", alone.values, alone.groups), *by_net, *more]),
            known={
                "gpu": frozenset(gpus),
                "network": frozenset(nets.tolist()),
                "architecture": frozenset(made),
            },
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


def _scaling(
    study: Study, table: Measured, catalog: Catalog, off: dict[str, dict[NetworkSetup, float]]
) -> tuple[list[Errors], FittedCoefficients]:
    """Several GPUs, given one; and end to end, with the one predicted too, `off` by so much where it was not fitted."""
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
    whole = errors("new gpu|several", truth, held, gpus)
    levels = [efficiency_level(value) for value in held.tolist()]
    alike = [scaling_class(s, value) for s, value in zip(setups, held.tolist(), strict=True)]
    study.say("network, several GPUs given one: whole GPUs left out", whole, [levels, alike])
    low = truth < np.log(LOW)
    halved(study, "network, several GPUs, whole GPUs left out", truth, held, low)
    for kind in ("nvlink", "bridge", "pcie", "shared pcie"):
        here = low & np.array([link_kind(s) == kind for s in setups])
        if here.any():
            halved(study, f"  {kind}", truth, held, here)
    splits = [levels, alike]
    both = errors("new gpu|several", truth + [off["new gpu"][w] for w in which], held, gpus)
    study.say("network, several GPUs end to end: whole GPUs left out", both, splits)
    pairs = [f"{s.device.name}|{s.network}" for s in setups]
    apart = left_out(setups, truth, pairs, 6, scaling_learner)
    near = errors("known gpu|several", truth, apart, gpus)
    near_splits = [
        [efficiency_level(value) for value in apart.tolist()],
        [scaling_class(s, value) for s, value in zip(setups, apart.tolist(), strict=True)],
    ]
    study.say("network, several GPUs given one: pairs left out", near, near_splits)
    near_both = errors("known gpu|several", truth + [off["known gpu"][w] for w in which], apart, gpus)
    study.say("network, several GPUs end to end: pairs left out", near_both, near_splits)
    many = np.array([s.gpus >= _MANY for s in setups])
    fewer = scaling_learner([s for s, m in zip(setups, many, strict=True) if not m], truth[~many])(setups)
    more = errors("", truth, fewer, gpus).where(many.tolist())
    study.say(f"network, several GPUs given one: all rows of {_MANY} and more left out", more)
    links = _link_errors(study)
    _through_the_graph(study, catalog, setups, truth)
    fitted = FittedCoefficients(
        name="scaling",
        source=f"lambdal/deeplearning-benchmark, {len(setups)} set-ups of several GPUs; issue threads of NVIDIA/nccl",
        method="exchange over compute at what links attain, exposed by kind of link; ridge on doublings by link, job, "
        "software and GPU",
        weights=fit_scaling(setups, truth),
        spreads=spreads([whole, near, *links]),
        known={"gpu": frozenset(gpus)},
    )
    found_errors = []
    for part, kinds, end in (
        (both, splits, ""),
        (near_both, near_splits, ""),
        (whole, splits, "|one"),
        (near, near_splits, "|one"),
    ):
        found_errors += [Errors(f"{part.case}|network{end}", part.values, part.groups), *by_class(part, kinds, end)]
    return found_errors, fitted


def _link_errors(study: Study) -> list[Errors]:
    """All-reduce times inside a machine: whole link classes left out, then whole sources, which give the intervals."""
    times = all_reduces()
    links, sources = [time.link for time in times], [time.source for time in times]
    judged = [time.gpus in _COUNTS for time in times]
    classes = Errors("link", held_out_links(times, links), tuple(links))
    study.say("all-reduce among 2, 4 and 8 GPUs: whole link classes left out", classes, judged=judged)
    found = Errors("link", held_out_links(times, sources), tuple(sources))
    through_host = ["host" if link == "host" else "direct" for link in links]
    study.say("all-reduce among 2, 4 and 8 GPUs: whole sources left out", found, [through_host], judged)
    return [found, found.where([kind == "direct" for kind in through_host], "link|direct")]


def _through_the_graph(study: Study, catalog: Catalog, setups: list[ScalingSetup], truth: Vector) -> None:
    """The same rows as a run of one GPU is taken to several: by the graph of runs, with nothing fitted to them."""
    weights = usual_batches(setups)
    kept, errors_of, low, eight = [], [], [], []
    for setup, log_efficiency in zip(setups, truth.tolist(), strict=True):
        ratio = exchange_ratio(setup, weights)
        if ratio is None:
            continue
        # The ratio is that of the gradients over the link, from which the step of one GPU follows.
        size = 4e6 * PARAMETERS_M[setup.network]
        step_s = size / narrowest_link(setup)[1] / ratio
        layers = tuple(
            Layer(name=f"{i}", forward_s=step_s / 60, backward_s=step_s / 30, gradient_bytes=round(size / 20))
            for i in range(20)
        )
        trace = LayerTrace(source=setup.network, layers=layers)
        job = MeasuredJob(name=setup.network, trace=trace, overlap=Overlap(), gpus=1, samples=1.0)
        target = Target(gpu=catalog.gpu(setup.device.name), gpus=setup.gpus, gpus_per_node=setup.gpus)
        several_s = prediction.step_s(model_of_job(job), target)
        kept.append(setup.device.name)
        errors_of.append(log_efficiency - float(np.log(step_s / several_s)))
        low.append(log_efficiency < np.log(LOW))
        eight.append(setup.gpus == _MANY)
    whole = Errors("", np.array(errors_of), tuple(kept))
    study.say("network, several GPUs given one: by the graph of runs", whole)
    study.say("  the same, efficiency below 0.9", whole, judged=low)
    study.say("  the same, eight GPUs", whole.where(eight))


def _one(setup: ScalingSetup) -> NetworkSetup:
    return NetworkSetup(device=setup.device, network=setup.network, precision=setup.precision, software=setup.software)
