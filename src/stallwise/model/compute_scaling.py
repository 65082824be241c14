"""One kind of GPU, several of them: what of n times one GPU is left.

    log efficiency = log₂(n) · (what links, job and software make of a doubling) + (what the first step does)

Links are told apart by kind (NVLink through a switch or mesh, a bridge between pairs, PCIe with and without peer
access) and by how much there is to exchange: gradient bytes per second of compute over the bytes per second of
the link. Never above 1.02: a second GPU adds no speed of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute import Device
from stallwise.model.compute_linear import Features, correction, crossed, one

BEST = math.log(1.02)

# Gradients of the known jobs in millions of parameters, from their papers and model cards.
PARAMETERS_M = {
    "bert_base_squad": 110.0,
    "bert_large_squad": 335.0,
    "gnmt": 160.0,
    "maskrcnn": 44.0,
    "ncf": 32.0,
    "resnet50": 25.6,
    "ssd": 25.0,
    "tacotron2": 28.0,
    "transformerxlbase": 192.0,
    "transformerxllarge": 257.0,
    "waveglow": 88.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSetup:
    """A job on several GPUs of one machine."""

    device: Device
    network: str
    precision: str
    software: str
    gpus: int
    bridged: bool
    """Whether the cards are joined by a bridge."""
    samples_per_s: float | None = None
    """Of one GPU."""
    batch: float | None = None
    """Of one GPU."""


def link_kind(setup: ScalingSetup) -> str:
    """How the GPUs of one machine reach each other."""
    device = setup.device
    if device.link_bytes_per_s > 0 and not device.bridge:
        return "nvlink"
    if setup.bridged:
        return "bridge"
    return "shared pcie" if device.consumer else "pcie"


def exchange_ratio(setup: ScalingSetup) -> float | None:
    """Seconds of exchange over seconds of compute in a step of two GPUs; None where the step is not known."""
    parameters = PARAMETERS_M.get(setup.network)
    if parameters is None or not setup.samples_per_s or not setup.batch:
        return None
    rate = setup.device.link_bytes_per_s if link_kind(setup) == "nvlink" else setup.device.host_bytes_per_s
    return 4e6 * parameters / max(rate, 1e9) * setup.samples_per_s / setup.batch


def log_efficiency(setup: ScalingSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the speed over n times that of one GPU."""
    return 0.0 if setup.gpus == 1 else min(BEST, correction(weights, features(setup)))


def features(setup: ScalingSetup) -> Features:
    """Doublings, by link, job, software and GPU."""
    doublings = math.log2(setup.gpus)
    ratio = exchange_ratio(setup)
    values = {
        "doublings": doublings,
        "several": 1.0,
        "exchange": 0.0 if ratio is None else math.log1p(10 * ratio) * (1 - 1 / setup.gpus),
    }
    link, job = link_kind(setup), f"{setup.network}|{setup.precision}"
    labels = (
        f"link={link}",
        f"net={setup.network}",
        f"job={job}",
        f"software={setup.software}",
        f"gpu={setup.device.name}",
        f"link={link}|{setup.software}",
        f"link={link}|net={setup.network}",
        f"gpu={setup.device.name}|{setup.software}",
        f"gpu={setup.device.name}|net={setup.network}",
    )
    many = one(f"many={link}") if setup.gpus > 2 else {}  # beyond a pair a bridge does not reach
    return {**values, **crossed(labels, values), **many}
