"""Stash's study of p2 and p3 instances, through the recommender: its networks on its instances at the prices of 2022.

Compute and the copy of a batch are gpemu's (FP32, K80 and V100), gradients go one tensor at a time as the released code
sends them (aakash-sharma/DS-Analyzer), boards, links, networks and prices are the shipped catalog's. One process per
GPU, every GPU with its batch, synthetic data in host memory: t0, t1 and tN of the paper. The paper's own tables are not
public, so its ranges are held.
"""

import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from stallwise.analysis.fleets import FleetSettings, all_fleets, nodes_of, one_fleet, steps_of
from stallwise.analysis.job import JobModel
from stallwise.cloud.bids import bids_of, priced_offers
from stallwise.cloud.request import RecommendRequest
from stallwise.model.compute.transfer import StepWork
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.statistics.conformal import ErrorSpread
from stallwise.model.step.job import MeasuredJob
from stallwise.workload.layers import Layer, LayerTrace
from validation.cases.catalog import shipped
from validation.formulas import increase
from validation.harness import Case, data_file

NETWORKS = (
    "alexnet",
    "resnet18",
    "shufflenet_v2_x0_5",
    "mobilenet_v2",
    "squeezenet1_0",
    "resnet50",
    "vgg11",
)
BATCH = 32
_GPUS = {"p2": ("Tesla_K80", "K80"), "p3": ("Tesla_V100-PCIE-32GB", "V100-SXM2")}
_HALVES = {"p2": ("p2.8xlarge", "p2.16xlarge"), "p3": ("p3.8xlarge", "p3.16xlarge")}

_SOURCE = "Sharma et al. (Stash), ICDCS 2023, abstract; inputs: mengwanguc/gpemu, aakash-sharma/DS-Analyzer"
_METHOD = (
    "The recommender's step on Stash's instances by what their boards attain, batch 32 on every GPU, seven networks: "
    "interconnect stall (t1 - t0) / t1, slow-down tN / t1. The paper's tables are not public: its ranges are held."
)


@cache
def _subject(folder: Path, network: str, family: str) -> JobModel:
    measured, gpu = _GPUS[family]
    forward_s, backward_s = _compute_s(folder, measured, network)
    tensors, size = _gradients(folder, network)
    trace = LayerTrace(
        source="gpemu",
        copy_s=_copy_s(folder, measured, network),
        layers=tuple(
            Layer(
                name=f"tensor {i}",
                forward_s=forward_s / tensors,
                backward_s=backward_s / tensors,
                gradient_bytes=size // tensors,
            )
            for i in range(tensors)
        ),
    )
    job = MeasuredJob(name=network, trace=trace, overlap=Overlap(scheme="wfbp"), gpus=1, samples=float(BATCH))
    return JobModel(
        job=job,
        measured_compute_s=forward_s + backward_s,
        source=shipped().gpu(gpu),
        precision="fp32",
        work=StepWork(flop=1e11, activation_bytes=1e9, parameters=size / 4, kernels=0.0),
        spread=ErrorSpread(0.0, 0.0),
        footprint=None,
        sharded=False,
        bytes_per_sample=None,
    )


def _compute_s(folder: Path, gpu: str, network: str) -> tuple[float, float]:
    with data_file(folder, "stash/gpemu_compute_times_fp32.csv").open() as lines:
        for row in csv.DictReader(lines):
            if (row["gpu"], row["model"], row["batch_size"]) == (gpu, network, str(BATCH)):
                return float(row["forward_s"]), float(row["backward_incl_loss_and_sgd_step_s"])
    raise LookupError(f"{network} on {gpu}")


def _copy_s(folder: Path, gpu: str, network: str) -> float:
    """A batch from the host's memory to one GPU alone."""
    with data_file(folder, "stash/gpemu_transfer_times.csv").open() as lines:
        for row in csv.DictReader(lines):
            if (row["gpu"], row["model"], row["batch_size"]) == (gpu, network, str(BATCH)):
                return float(row["h2d_batch_s"])
    raise LookupError(f"{network} on {gpu}")


def _gradients(folder: Path, network: str) -> tuple[int, int]:
    with data_file(folder, "stash/model_macro_features.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["model"] == network:
                return int(row["gradient_tensors"]), int(row["gradient_bytes_fp32"])
    raise LookupError(network)


@cache
def step_s(folder: Path, network: str, name: str, nodes: int = 1, used: int | None = None) -> float:
    """The step of `network` on `nodes` machines, every GPU with its batch; with `used`, on some GPUs of one."""
    model = _subject(folder, network, name[:2])
    instance = shipped().instance(name)
    kinds, _, _ = nodes_of(model, [instance])
    fleet = one_fleet(kinds[0], used=used or instance.gpu_count, nodes=nodes)
    return float(steps_of(model, fleet, FleetSettings()).step_s[0])


def _interconnect(folder: Path, network: str, name: str) -> float:
    t1 = step_s(folder, network, name)
    return (t1 - step_s(folder, network, name, used=1)) / t1


def _network(folder: Path, network: str, half: str, whole: str) -> float:
    return increase(step_s(folder, network, half, 2), step_s(folder, network, whole))


def _largest_interconnect(folder: Path) -> float:
    return 100 * max(_interconnect(folder, network, "p2.16xlarge") for network in NETWORKS)


def _largest_slowdown(folder: Path) -> float:
    return 1 + max(_network(folder, network, "p3.8xlarge", "p3.16xlarge") for network in NETWORKS)


def _worse_on_the_slice(folder: Path) -> float:
    """Networks whose GPUs wait for a larger part of the step on the slice of a machine than on the whole of it."""
    half, whole = _HALVES["p3"]
    return float(sum(_interconnect(folder, n, half) > _interconnect(folder, n, whole) for n in NETWORKS))


def _dearer_and_slower(folder: Path) -> float:
    """Networks for which the larger p2 trains fewer images per second than the smaller p3, which costs less."""
    dear, cheap = shipped().instance("p2.16xlarge"), shipped().instance("p3.8xlarge")
    speeds = [[one.gpu_count / step_s(folder, n, one.name) for one in (dear, cheap)] for n in NETWORKS]
    return float(sum(slow < fast for slow, fast in speeds))


def _cost_minus_time(folder: Path) -> float:
    """Points by which the extra cost of 2 × p3.8xlarge differs from its extra time, in the recommender's own bills."""
    gap = 0.0
    for network in NETWORKS:
        bills = {}
        for name, nodes in (("p3.8xlarge", 2), ("p3.16xlarge", 1)):
            bills[name] = _bill(folder, network, name, nodes)
        time, cost = (increase(bills["p3.8xlarge"][i], bills["p3.16xlarge"][i]) for i in (0, 1))
        gap = max(gap, 100 * abs(cost - time))
    return gap


def _bill(folder: Path, network: str, name: str, nodes: int) -> tuple[float, float]:
    model = _subject(folder, network, name[:2])
    listed = next(
        offer
        for offer in shipped().offers
        if offer.instance.name == name and offer.market == "on-demand" and offer.region == "us-east-1"
    )
    request = RecommendRequest(samples=1_281_166, epochs=1, retired=True, scale_batch=True)
    priced = priced_offers([listed], request)
    kinds, of_type, _ = nodes_of(model, [listed.instance])
    fleets = all_fleets(kinds, model, max_nodes=nodes)
    found = steps_of(model, fleets, request.settings)
    bids = bids_of(model, fleets, found, of_type, priced, request)
    used = fleets.used[bids.fleet] == listed.instance.gpu_count
    column = int(np.flatnonzero(used & (bids.nodes == nodes))[0])
    return float(bids.job_s[column]), float(bids.usd[column])


def _range(case: str, value: Callable[[Path], float], low: float, high: float, unit: str) -> Case:
    """A published range is its middle, give or take its half."""
    return Case(
        id="stash-20",
        case=f"{case} (published: {low:g} to {high:g} {unit})",
        source=_SOURCE,
        method=_METHOD,
        published=(low + high) / 2,
        unit=unit,
        tolerance=(high - low) / 2,
        compute=value,
        reason="an exchange takes nothing from the compute beside it in the model, and a slice is the best there is",
    )


CASES = (
    _range("largest interconnect stall on p2.16xlarge", _largest_interconnect, 50.0, 90.0, "%"),
    _range("largest slow-down of 2 × p3.8xlarge against p3.16xlarge", _largest_slowdown, 2.0, 8.0, "×"),
    _range("networks that stall more on p3.8xlarge, a slice, than on p3.16xlarge", _worse_on_the_slice, 4, 7, "of 7"),
    _range("networks slower on p2.16xlarge than on p3.8xlarge, which costs less", _dearer_and_slower, 1, 7, "of 7"),
    Case(
        id="stash-22",
        case="extra cost less extra time of 2 × p3.8xlarge, seven networks, in the recommender's bills",
        source="an identity: same rate per GPU, same number of GPUs",
        method="Twice the shipped on-demand price of the half-size machine over that of the whole one; and time and "
        "cost of both set-ups from the recommender.",
        published=0.0,
        unit="points",
        tolerance=1e-9,
        compute=_cost_minus_time,
    ),
)
