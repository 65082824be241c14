"""Known jobs: whole GPUs, GPU families and pairs left out; one GPU and several."""

from pathlib import Path

import numpy as np

from fitting.crossval import (
    errors,
    left_out,
    network_learner,
    reference_pairs,
    scaling_learner,
)
from fitting.errors import Errors, coverage, spreads
from fitting.networks import fit_networks, fit_scaling
from fitting.ridge import Vector
from fitting.study import LOW, Study, halved
from fitting.tables import Measured, measured, shipped_catalog
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.fitted import Fitted
from stallwise.model.compute_network import NetworkSetup
from stallwise.model.compute_scaling import ScalingSetup, link_kind
from stallwise.record.table_setups import (
    gpu_of,
    network_setup,
    scaling_setup,
)


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
    apart = left_out(setups, truth, pairs, 6, network_learner)
    known = errors("known gpu|network", truth, apart, gpus)
    study.say("network, one GPU: pairs of GPU and network left out", known)
    weights = fit_networks(setups, truth)
    same = [f"{s.network}|{s.precision}|{s.software}" for s in setups]
    pull, left = reference_pairs(truth, new, apart, same, gpus)
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
    own = [coverage(one) for one in by_net if one.case.startswith("new gpu")]
    study.lines.append(
        f"network, one GPU: whole GPUs left out, intervals by network: cover "
        f"{np.average([c.covered for c in own], weights=[c.rows for c in own]):.0%}, "
        f"median high/low {np.median([c.width for c in own]):.2f}"
    )
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
    low = truth < np.log(LOW)
    halved(study, "network, several GPUs, whole GPUs left out", truth, held, low)
    for kind in ("nvlink", "bridge", "pcie", "shared pcie"):
        here = low & np.array([link_kind(s) == kind for s in setups])
        if here.any():
            halved(study, f"  {kind}", truth, held, here)
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
