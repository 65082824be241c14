"""A measured step on another GPU: four constants, and a ridge correction by the GPU's figures.

Measurements: forward and backward of ten image networks on six GPUs at many batches, FP32 (mengwanguc/gpemu);
ResNet-50 and BERT on Lambda's GPUs, FP32 and mixed precision. Every pair of GPUs with the same network and batch,
precision and software is one case: the step on one is known, that on the other is predicted. Since physics is taken
on both sides alike, the error of a pair is the difference of two rows' errors.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fitting.power import per_joule
from fitting.ridge import Matrix, Vector, design, robust, selected
from fitting.tables import measured, shipped_catalog
from stallwise.analysis.compute import device_of
from stallwise.analysis.tables import gpu_of, network_setup
from stallwise.model.compute.llm import forward_pass
from stallwise.model.compute.roofline import Device
from stallwise.model.compute.transfer import StepWork, effect_features, log_s, step_parts
from stallwise.workload.shapes import LANGUAGE_MODELS
from stallwise.workload.zoo import ImageNetwork, image_networks

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

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
BATCHES = (8, 16, 32, 64, 128)
JOBS = {"resnet50": "resnet50", "bert_base_squad": "bert_base", "bert_large_squad": "bert_large"}
_SCALE = 0.15  # errors beyond this count less
_FULL, _HALF = 4.0, 2.0
_SQUAD = 384  # words of a question and its text
_KERNELS_OF_A_BLOCK = 15
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
    """One measured step, or its time and work per sample."""

    device: Device
    network: str
    same: str
    """Rows of one set-up on several GPUs."""
    work: StepWork
    log_s: float


def timed(folder: Path) -> list[Timed]:
    """Every measured row, without those that the source filled by regression."""
    return [*_image_steps(folder), *_known_jobs(folder)]


def _image_steps(folder: Path) -> list[Timed]:
    catalog, networks, found = shipped_catalog(), image_networks(), []
    with (folder / "stash/gpemu_compute_times_fp32.csv").open(newline="") as lines:
        for row in csv.DictReader(lines):
            batch = int(row["batch_size"])
            if row["model"] not in NETWORKS or row["regression_filled"] == "1" or batch not in BATCHES:
                continue
            seconds = float(row["forward_s"]) + float(row["backward_incl_loss_and_sgd_step_s"])
            work = _image_work(networks[NETWORKS[row["model"]]], batch, _FULL)
            device = device_of(catalog.gpu(GPUS[row["gpu"]]), "fp32")
            found.append(Timed(device, row["model"], f"{row['model']}|{batch}", work, float(np.log(seconds))))
    return found


def _image_work(network: ImageNetwork, batch: float, element_bytes: float) -> StepWork:
    return StepWork(
        flop=6 * network.all_macs * batch,
        activation_bytes=element_bytes * batch * (network.outputs + network.elements["batch_norm"] / 2),
        parameters=network.parameters,
        kernels=_KERNELS * network.kernels,
    )


def _known_jobs(folder: Path) -> list[Timed]:
    """ResNet-50 and BERT on one GPU, seconds and work per sample at the batch each GPU ran."""
    table, catalog = measured(folder, "lambda_pytorch.csv"), shipped_catalog()
    found: dict[tuple[Device, str, str], list[tuple[StepWork, float]]] = {}
    for row, speed in zip(table.rows, table.truth.tolist(), strict=True):
        batch = row.number_of("batch_per_gpu")
        if row.name("model") not in JOBS or row.count("n_gpus", 1) > 1 or not batch:
            continue
        setup = network_setup(row, gpu_of(row, catalog))
        key = (setup.device, setup.network, f"{setup.network}|{setup.precision}|{setup.software}")
        half = _HALF if setup.precision == "amp" else _FULL
        work = _per_sample(_job_work(setup.network, batch, half), batch)
        found.setdefault(key, []).append((work, -float(np.log(speed))))
    return [
        Timed(*key, work=values[0][0], log_s=float(np.median([log_s for _, log_s in values])))
        for key, values in found.items()
    ]


def _job_work(name: str, batch: float, element_bytes: float) -> StepWork:
    if name == "resnet50":
        return _image_work(image_networks()["resnet50"], batch, element_bytes)
    model = LANGUAGE_MODELS[JOBS[name]]
    work = forward_pass(model, _SQUAD, batch, element_bytes)
    kept = model.layers * _SQUAD * batch * (7 * model.width + 2 * model.inner + 2 * model.heads * _SQUAD)
    return StepWork(
        flop=3 * (work.product_flop + work.attention_flop),
        activation_bytes=element_bytes * kept,
        parameters=model.parameters,
        kernels=_KERNELS * _KERNELS_OF_A_BLOCK * model.layers,
    )


def _per_sample(work: StepWork, batch: float) -> StepWork:
    return StepWork(
        flop=work.flop / batch,
        activation_bytes=work.activation_bytes / batch,
        parameters=work.parameters / batch,
        kernels=work.kernels / batch,
    )


def off_by(rows: Sequence[Timed], constants: dict[str, float]) -> Vector:
    """Truth over prediction by features alone, as logarithms, with the effects of GPUs."""
    return np.array([row.log_s - log_s(row.work, row.device, constants) for row in rows])


def from_features(rows: Sequence[Timed], constants: dict[str, float]) -> Vector:
    """Truth over the sum of parts: no measurement and no effects at all."""
    return np.array([row.log_s - np.log(step_parts(row.work, row.device, constants).whole_s) for row in rows])


def pairs_of(rows: Sequence[Timed]) -> tuple[Indices, Indices]:
    """Targets and sources: every ordered pair of rows of one set-up on two GPUs."""
    by_setup: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        by_setup.setdefault(row.same, []).append(i)
    pairs = [
        (i, j) for same in by_setup.values() for i in same for j in same if rows[i].device.name != rows[j].device.name
    ]
    return np.array([i for i, _ in pairs], dtype=int), np.array([j for _, j in pairs], dtype=int)


@dataclass(frozen=True)
class Gridded:
    """Every choice of constants, and truth over prediction of every row by it (choices by rows)."""

    choices: list[dict[str, float]]
    off: Matrix

    def of(self, keep: Mask) -> "Gridded":
        """Some of the rows."""
        return Gridded(self.choices, self.off[:, keep])


def gridded(rows: Sequence[Timed]) -> Gridded:
    """All of `GRID`."""
    listed = per_joule(shipped_catalog())
    choices = [{**listed, **dict(zip(GRID, chosen, strict=True))} for chosen in itertools.product(*GRID.values())]
    return Gridded(choices, np.array([from_features(rows, constants) for constants in choices]))


def fit_transfer(rows: Sequence[Timed], grid: Gridded) -> dict[str, float]:
    """The constants with the least mean error over pairs of these rows, and effects by figures and names of GPUs."""
    targets, sources = pairs_of(rows)
    apart = np.minimum(1.0, np.abs(grid.off[:, targets] - grid.off[:, sources])).mean(axis=1)
    best = int(np.argmin(apart))
    return grid.choices[best] | _effects(rows, grid.off[best])


def effect_penalty(name: str) -> float:
    """A set-up has its own level; slopes are freer than those of one kind of units, those than single GPUs."""
    if name.startswith("same="):
        return 1e-3
    kinds = {"slope:": 3.0, "units:": 1.0, "effect:": 3.0, "gpu:": 6.0}
    return next((value for kind, value in kinds.items() if name.startswith(kind)), 6.0)


def _effects(rows: Sequence[Timed], off: Vector) -> dict[str, float]:
    """How much slower GPUs are than physics says, beside others in the same set-ups."""
    found = design([{**effect_features(row.device), f"same={row.same}": 1.0} for row in rows], effect_penalty)
    penalties = selected(found, off, [row.device.name for row in rows], _single, _SCALE)
    beta = robust(found.values, off, penalties, scale=_SCALE)
    return {n: b for n, b in zip(found.names, beta.tolist(), strict=True) if not n.startswith("same=")}


def _single(name: str) -> bool:
    """Whether a constant is of one GPU."""
    return name.startswith("gpu:")
