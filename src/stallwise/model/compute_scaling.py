"""One kind of GPU, several of them: what of n times one GPU is left.

    log efficiency = -log(1 + r^q)/q + log₂(n) · (by link, job and software) + (the first)

r is the exchange over the compute of a step: a ring all-reduce sends 2 (n - 1)/n of the gradients at ρ times the link's
rate, less where more GPUs share a bus, (n/2)^γ; q says how far it hides behind backward (1: not at all). ρ by kind of
link (NVLink through a switch or mesh, a bridge between pairs, PCIe with and without peer access), q and γ are fitted.
The correction, linear in doublings, holds what exchange does not explain. Never above 1.02: a second GPU adds no
speed of its own.
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

# What the throughput counts, per sample of the batch: words of a sentence pair, frames of a sentence, samples of a
# clip, words of a segment (the defaults of NVIDIA's reference scripts).
UNITS_PER_SAMPLE = {
    "gnmt": 50.0,
    "tacotron2": 570.0,
    "waveglow": 8000.0,
    "transformerxlbase": 192.0,
    "transformerxllarge": 384.0,
}
_GRADIENT_BYTES = 4.0
_GIB = 2.0**30
_HIGH = math.log(0.9)


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


def exchange_ratio(setup: ScalingSetup, weights: Mapping[str, float]) -> float | None:
    """Seconds in which the link would carry the gradients once, over seconds of compute; None where not known.

    Without a batch, the usual one of the job for the GPU's memory (`usual_batch:JOB`, samples per GiB).
    """
    parameters = PARAMETERS_M.get(setup.network)
    usual = weights.get(f"usual_batch:{setup.network}|{setup.precision}")
    batch = setup.batch or (usual * setup.device.memory_bytes / _GIB if usual else None)
    if parameters is None or not setup.samples_per_s or not batch:
        return None
    rate = setup.device.link_bytes_per_s if link_kind(setup) == "nvlink" else setup.device.host_bytes_per_s
    steps_per_s = setup.samples_per_s / batch / UNITS_PER_SAMPLE.get(setup.network, 1.0)
    return _GRADIENT_BYTES * 1e6 * parameters / max(rate, 1e9) * steps_per_s


def log_efficiency(setup: ScalingSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the speed over n times that of one GPU."""
    if setup.gpus == 1:
        return 0.0
    return min(BEST, log_exchange(setup, weights) + correction(weights, features(setup, weights)))


def level(log_efficiency: float) -> str:
    """What is expected: `high`, where n GPUs are nearly n times one, or `low`, which is known less well."""
    return "high" if log_efficiency > _HIGH else "low"


def scaling_class(setup: ScalingSetup, log_efficiency: float) -> str:
    """Set-ups that are known alike: by link, and by what is expected of them."""
    return f"{link_kind(setup)}|{level(log_efficiency)}"


def log_exchange(setup: ScalingSetup, weights: Mapping[str, float]) -> float:
    """What the exchange leaves, by physics; nothing is lost where the step is not known."""
    ratio, kind = exchange_ratio(setup, weights), link_kind(setup)
    if ratio is None or f"rate:{kind}" not in weights:
        return 0.0
    shared = (setup.gpus / 2) ** (weights["shared"] if kind != "nvlink" else 0.0)
    found = ratio * 2 * (1 - 1 / setup.gpus) * shared / weights[f"rate:{kind}"]
    return -math.log1p(found ** weights["hidden"]) / weights["hidden"]


def features(setup: ScalingSetup, weights: Mapping[str, float]) -> Features:
    """Doublings, by link, job, software and GPU; `weights` holds the usual batches."""
    doublings = math.log2(setup.gpus)
    ratio = exchange_ratio(setup, weights)
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
