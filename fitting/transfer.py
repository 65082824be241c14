"""A measured step on another GPU: four constants, and how far off it is with whole GPUs left out.

Measurements: forward and backward of ten image networks on six GPUs at many batches, FP32 (mengwanguc/gpemu). Every
pair of GPUs with the same network and batch is one case: the step on one is known, that on the other is predicted.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fitting.errors import Errors
from fitting.power import PER_JOULE
from fitting.ridge import Vector
from fitting.tables import shipped_catalog
from stallwise.model.compute import Device
from stallwise.model.compute_transfer import StepWork, effect_name, log_ratio, parts
from stallwise.record.devices import device_of
from stallwise.workload.zoo import image_networks

GPUS = {
    "Tesla_K80": "K80",
    "Tesla_M40": "M40",
    "Tesla_P100-PCIE-16GB": "P100-PCIe",
    "Tesla_V100-PCIE-32GB": "V100-PCIe-32GB",
    "Quadro_RTX_6000": "QuadroRTX6000",
    "NVIDIA_A100-SXM4-40GB": "A100-40GB-SXM",
}
NETWORKS = {
    **{name: name for name in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")},
    **{name: name for name in ("vgg11", "vgg13", "vgg16", "vgg19")},
    "mobilenet_v2": "mobilenetv2_100",
}
_KEPT = 0.8  # of an architecture's own deviation
_KERNELS = 3.5  # backward and update over forward
# Where nothing decides, the first of each is taken.
GRID = {
    "matrix_fraction": (0.35, 0.3, 0.45, 0.55),
    "fraction": (0.75, 0.6, 0.9),
    "moved": (3.0, 2.0, 4.0),
    "kernel_s": (1e-5, 2e-5),
}


@dataclass(frozen=True)
class Timed:
    """One measured step."""

    device: Device
    network: str
    batch: int
    work: StepWork
    log_s: float


def timed(folder: Path) -> list[Timed]:
    """Every measured row, without those that the source filled by regression."""
    catalog, found = shipped_catalog(), []
    networks = image_networks()
    with (folder / "stash/gpemu_compute_times_fp32.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            if row["model"] not in NETWORKS or row["regression_filled"] == "1":
                continue
            network, batch = networks[NETWORKS[row["model"]]], int(row["batch_size"])
            seconds = float(row["forward_s"]) + float(row["backward_incl_loss_and_sgd_step_s"])
            work = StepWork(
                flop=6 * network.all_macs * batch,
                activation_bytes=4 * batch * (network.outputs + network.elements["batch_norm"] / 2),
                parameters=network.parameters,
                kernels=_KERNELS * network.kernels,
            )
            device = device_of(catalog.gpu(GPUS[row["gpu"]]), "fp32")
            found.append(Timed(device, row["model"], batch, work, float(np.log(seconds))))
    return found


def pair_errors(rows: Sequence[Timed], constants: dict[str, float], targets: set[str], sources: set[str]) -> Errors:
    """Truth over prediction of every pair with its target among `targets` and its source among `sources`."""
    by_setup: dict[tuple[str, int], list[Timed]] = {}
    for row in rows:
        by_setup.setdefault((row.network, row.batch), []).append(row)
    values, groups = [], []
    for same in by_setup.values():
        for target in same:
            for source in same:
                if target.device.name in targets and source.device.name in sources - {target.device.name}:
                    predicted = source.log_s + log_ratio(target.work, source.device, target.device, constants)
                    values.append(target.log_s - predicted)
                    groups.append(target.device.name)
    return Errors("transfer", np.array(values), tuple(groups))


def fit_transfer(rows: Sequence[Timed], gpus: set[str]) -> dict[str, float]:
    """The constants with the least mean error over pairs of these GPUs."""
    best: tuple[float, dict[str, float]] = (np.inf, {})
    for chosen in itertools.product(*GRID.values()):
        constants = {**PER_JOULE, **dict(zip(GRID, chosen, strict=True))}
        off = float(np.abs(pair_errors(rows, constants, gpus, gpus).values).mean())
        best = min(best, (off, constants), key=lambda found: found[0])
    return best[1] | _effects([row for row in rows if row.device.name in gpus], best[1])


def _effects(rows: Sequence[Timed], constants: dict[str, float]) -> dict[str, float]:
    """How much slower each architecture is than physics says, drawn towards the mean of all."""
    off = from_features(rows, constants)
    names = np.array([effect_name(row.device) for row in rows])
    medians = {name: float(np.median(off[names == name])) for name in sorted(set(names.tolist()))}
    middle = float(np.mean(list(medians.values())))
    return {name: _KEPT * (value - middle) for name, value in medians.items()}


def from_features(rows: Sequence[Timed], constants: dict[str, float]) -> Vector:
    """Truth over the sum of parts, as logarithms: no measurement at all."""
    return np.array([row.log_s - np.log(parts(row.work, row.device, constants).whole_s) for row in rows])
