"""Stash's study of p2 and p3 instances, through the recommender: its networks on its instances at the prices of 2022.

Compute is gpemu's (FP32, K80 and V100), gradients go one tensor at a time as the released code sends them (stash.md
1.4, 5), links and prices are the list of 2022. One process per GPU, every GPU with its batch, data in place: t0, t1 and
tN of the paper. The paper's own tables are not public, so findings are held as they are worded: "not always" is one
network at least.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from stallwise.cloud.bids import bids_of, priced_offers
from stallwise.cloud.fleets import fleets_of, shapes_of
from stallwise.cloud.speed import speeds
from stallwise.cloud.subject import Subject
from stallwise.cloud.wish import Wish
from stallwise.hardware.instance import Instance
from stallwise.hardware.link import Link
from stallwise.hardware.offer import Offer
from stallwise.model.compute_transfer import StepWork
from stallwise.model.conformal import Spread
from stallwise.model.cost import increase
from stallwise.model.overlap import Overlap
from stallwise.model.whatif import Job
from stallwise.units import gbit_per_s
from stallwise.workload.layers import Layer, LayerTrace
from validation.cases.catalog import on_demand_usd_per_h, shipped
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
# GB/s of one GPU in one direction: half of what the table of 2022 gives for NVLink; PCIe 3 x16 for p2.
_INSIDE_GB_PER_S = {"p2.8xlarge": 15.75, "p2.16xlarge": 15.75, "p3.8xlarge": 100.0, "p3.16xlarge": 150.0}
_NETWORK_GBIT = {
    "p2.xlarge": 1.25,
    "p2.8xlarge": 10.0,
    "p2.16xlarge": 20.0,
    "p3.2xlarge": 10.0,
    "p3.8xlarge": 10.0,
    "p3.16xlarge": 25.0,
}

_SOURCE = "stash.md 1.8 and 6, row 20; inputs: 1.6, gpemu's compute times"
_METHOD = (
    "The recommender's step on Stash's instances, batch 32 on every GPU, seven networks: interconnect stall "
    "(t1 - t0) / t1, network stall (tN - t1) / t1. *Listed*: link rates of the price list. *Calibrated*: one effective "
    "rate inside p3 machines, the one at which the largest interconnect stall is the published 90 %; the network stall "
    "then follows. The paper's tables are not public: bounds and wording are held, not bars."
)


@cache
def _subject(folder: Path, network: str, family: str) -> Subject:
    measured, gpu = _GPUS[family]
    forward_s, backward_s = _compute_s(folder, measured, network)
    tensors, size = _gradients(folder, network)
    trace = LayerTrace(
        source="gpemu",
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
    job = Job(name=network, trace=trace, overlap=Overlap(scheme="wfbp"), gpus=1, samples=float(BATCH))
    return Subject(
        job=job,
        measured_compute_s=forward_s + backward_s,
        source=shipped().gpu(gpu),
        precision="fp32",
        work=StepWork(flop=1e11, activation_bytes=1e9, parameters=size / 4, kernels=0.0),
        spread=Spread(0.0, 0.0),
        samples=float(BATCH),
        gpus=1,
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


def _gradients(folder: Path, network: str) -> tuple[int, int]:
    with data_file(folder, "stash/model_macro_features.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["model"] == network:
                return int(row["gradient_tensors"]), int(row["gradient_bytes_fp32"])
    raise LookupError(network)


def _instance(name: str, inside_gb_per_s: float | None = None) -> Instance:
    found = shipped().instance(name)
    rate = inside_gb_per_s or _INSIDE_GB_PER_S.get(name)
    inside = found.gpu_link if rate is None else Link(kind="nvlink-mesh", bytes_per_s=rate * 1e9)
    return replace(found, gpu_link=inside, network=Link(kind="ENA", bytes_per_s=gbit_per_s(_NETWORK_GBIT[name])))


@cache
def step_s(folder: Path, network: str, name: str, nodes: int = 1, inside_gb_per_s: float | None = None) -> float:
    """The step of `network` on `nodes` machines, every GPU with its batch."""
    subject = _subject(folder, network, name[:2])
    instance = _instance(name, inside_gb_per_s)
    shapes, _, _ = shapes_of(subject, [instance], {})
    fleets = fleets_of(shapes, subject, max_nodes=nodes)
    whole = fleets.take((fleets.used == instance.gpu_count) & (fleets.nodes == nodes))
    return float(speeds(subject, whole, scale_batch=True).step_s[0])


def _alone_s(folder: Path, network: str, family: str) -> float:
    return _subject(folder, network, family).measured_compute_s


def _interconnect(folder: Path, network: str, name: str, inside: float | None = None) -> float:
    t1 = step_s(folder, network, name, 1, inside)
    return (t1 - _alone_s(folder, network, name[:2])) / t1


def _network(folder: Path, network: str, half: str, whole: str, inside: float | None = None) -> float:
    return increase(step_s(folder, network, half, 2, inside), step_s(folder, network, whole, 1, inside))


def _largest_interconnect(folder: Path) -> float:
    names = ("p2.8xlarge", "p2.16xlarge", "p3.8xlarge", "p3.16xlarge")
    return 100 * max(_interconnect(folder, network, name) for network in NETWORKS for name in names)


def _largest_network(folder: Path, inside: float | None = None) -> float:
    return 100 * max(_network(folder, network, "p3.8xlarge", "p3.16xlarge", inside) for network in NETWORKS)


@cache
def calibrated_gb_per_s(folder: Path) -> float:
    """The rate inside p3 machines at which the largest interconnect stall is 90 %; it falls as the rate rises."""
    low, high = 0.05, 150.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        stall = max(_interconnect(folder, network, "p3.16xlarge", middle) for network in NETWORKS)
        low, high = (middle, high) if stall > 0.9 else (low, middle)
    return (low * high) ** 0.5


def _dearer_and_slower(folder: Path) -> float:
    """Networks for which some dearer configuration is slower per sample than a cheaper one of the same family."""
    found = 0
    for network in NETWORKS:
        setups = [("p3.2xlarge", 1), ("p3.8xlarge", 1), ("p3.16xlarge", 1), ("p3.8xlarge", 2)]
        points = []
        for name, nodes in setups:
            gpus = nodes * shipped().instance(name).gpu_count
            speed = gpus * BATCH / step_s(folder, network, name, nodes)
            points.append((nodes * on_demand_usd_per_h(name), speed))
        found += any(a[0] > b[0] and a[1] < b[1] for a in points for b in points)
    return float(found)


def _other_generation(folder: Path) -> float:
    """Networks that are slower on p2.16xlarge than on p3.8xlarge, which costs less."""
    cheaper = on_demand_usd_per_h("p3.8xlarge") < on_demand_usd_per_h("p2.16xlarge")
    slower = [
        16 * BATCH / step_s(folder, network, "p2.16xlarge") < 4 * BATCH / step_s(folder, network, "p3.8xlarge")
        for network in NETWORKS
    ]
    return float(sum(slower)) if cheaper else 0.0


def _slices(folder: Path) -> float:
    """Networks that stall longer on a p3.8xlarge, half a board, than on the whole one with twice the GPUs."""
    return float(
        sum(
            _interconnect(folder, network, "p3.8xlarge") >= _interconnect(folder, network, "p3.16xlarge")
            for network in ("alexnet", "resnet50", "vgg11")
        )
    )


def _halves_slower(folder: Path) -> float:
    return float(sum(_network(folder, network, "p3.8xlarge", "p3.16xlarge") > 0 for network in NETWORKS))


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
    subject = _subject(folder, network, name[:2])
    listed = next(
        offer
        for offer in shipped().offers
        if offer.instance.name == name and offer.market == "on-demand" and offer.region == "us-east-1"
    )
    offer: Offer = replace(listed, instance=_instance(name))
    wish = Wish(samples=1_281_166, epochs=1, retired=True, scale_batch=True)
    priced = priced_offers([offer], wish)
    shapes, of_type, _ = shapes_of(subject, [offer.instance], {})
    fleets = fleets_of(shapes, subject, max_nodes=nodes)
    found = speeds(subject, fleets, scale_batch=True)
    bids = bids_of(subject, fleets, found, of_type, priced, wish)
    used = fleets.used[bids.fleet] == offer.instance.gpu_count
    column = int(np.flatnonzero(used & (bids.nodes == nodes))[0])
    return float(bids.job_s[column]), float(bids.usd[column])


def _bound(case: str, value: Callable[[Path], float], published: float, misfit: str | None = None) -> Case:
    """How far above the published maximum; 0 where it is kept."""
    return Case(
        id="stash-20",
        case=f"{case}: points above the published maximum of {published:g} %",
        source=_SOURCE,
        method=_METHOD,
        published=0.0,
        unit="points",
        tolerance=0.0,
        compute=lambda folder: max(0.0, value(folder) - published),
        misfit=misfit,
    )


def _finding(case: str, least: float, count: Callable[[Path], float]) -> Case:
    """1 where as many networks show it as the wording needs."""
    return Case(
        id="stash-20",
        case=case,
        source=_SOURCE,
        method=_METHOD,
        published=1.0,
        unit="",
        tolerance=0.0,
        compute=lambda folder: float(count(folder) >= least),
    )


_PEAKS = (
    "listed NVLink peaks make the single machine too good a baseline; stash.md 1.9 says so beforehand: calibrate, "
    "never use peaks"
)
CASES = (
    _bound("largest interconnect stall, p2 and p3, listed links", _largest_interconnect, 90.0),
    _bound("largest network stall, 2 × p3.8xlarge against p3.16xlarge, listed links", _largest_network, 500.0, _PEAKS),
    _bound(
        "largest network stall, 2 × p3.8xlarge against p3.16xlarge, calibrated link",
        lambda folder: _largest_network(folder, calibrated_gb_per_s(folder)),
        500.0,
    ),
    _finding(
        "dearer is not always faster: a dearer p3 set-up is slower for at least one network", 1, _dearer_and_slower
    ),
    _finding("dearer is not always faster: p2.16xlarge slower than p3.8xlarge for at least one", 1, _other_generation),
    _finding("p3.8xlarge, half a board, stalls no less than the whole one for at least one", 1, _slices),
    _finding("2 × p3.8xlarge slower than p3.16xlarge at the same price for all seven networks", 7, _halves_slower),
    Case(
        id="stash-22",
        case="extra cost less extra time of 2 × p3.8xlarge, seven networks, in the recommender's bills",
        source="stash.md 1.6, identity",
        method="Twice the shipped on-demand price of the half-size machine over that of the whole one; and time and "
        "cost of both set-ups from the recommender.",
        published=0.0,
        unit="points",
        tolerance=1e-9,
        compute=_cost_minus_time,
    ),
)
