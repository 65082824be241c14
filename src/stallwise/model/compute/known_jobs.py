"""Known training jobs on another GPU, and on several: throughput from the figures of the card, and scaling efficiency.

**One GPU.** Offset: a roofline with as much time at the matrix peak as at the memory bandwidth of a V100. The
correction gives every network and precision its own slopes on what the catalog lists (peak, bandwidth, FP32 rate,
power, memory, class), held close to the slopes all networks share. Memory stands for the batch, which such jobs choose
by what fits.

**Several GPUs of one machine.** The fraction of n times one GPU that is left:

    log efficiency = -log(1 + r^q)/q + log₂(n) · (by link, job and software) + (the first)

r is the exchange over the compute of a step: a ring all-reduce sends 2 (n - 1)/n of the gradients at the rate that its
narrowest hop attains (`exchange.attained`, as for runs), times how much of it is exposed, by kind of link and more
where GPUs share a bus; q says how far it hides behind backward (1: not at all). Exposure and q are fitted. The
correction, linear in doublings, holds what exchange does not explain. Never above 1.02: a second GPU adds no speed of
its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute.roofline import Device, Features, correction, crossed, indicators
from stallwise.model.exchange.attained import attained_fraction

# The figures of a V100, from which logarithms are taken.
_MATRIX, _VECTOR, _BYTES, _MEMORY, _TDP = 1.25e14, 1.57e13, 9e11, 24e9, 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSetup:
    """One known job on one GPU."""

    device: Device
    network: str
    precision: str
    software: str
    """Generation of the container that it runs in."""


def log_speed(setup: NetworkSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the throughput of one GPU, in the network's own unit."""
    return roof(setup.device, 1.0) + correction(weights, network_features(setup))


def roof(device: Device, memory_part: float) -> float:
    """Logarithm of the speed of a job that spends 1 at the peak for every `memory_part` at the bandwidth of a V100."""
    return -math.log(_MATRIX / device.matrix_flop_per_s + memory_part * _BYTES / device.memory_bytes_per_s)


def device_figures(device: Device) -> dict[str, float]:
    """Figures of a GPU that the correction uses."""
    return {
        "log_matrix": math.log(device.matrix_flop_per_s / _MATRIX),
        "log_bytes": math.log(device.memory_bytes_per_s / _BYTES),
        "log_vector": math.log(device.vector_flop_per_s / _VECTOR),
        "roof_0.3": roof(device, 0.3),
        "roof_1": roof(device, 1.0),
        "roof_3": roof(device, 3.0),
        "log_tdp": math.log(device.tdp_w / _TDP),
        "log_memory": math.log(device.memory_bytes / _MEMORY),
        "laptop": float(device.laptop),
        "consumer": float(device.consumer),
    }


def network_features(setup: NetworkSetup) -> Features:
    """Network, precision and software, each with its slopes; the GPU and its architecture."""
    device, job = setup.device, f"{setup.network}|{setup.precision}"
    labels = (f"net={setup.network}", f"precision={setup.precision}", f"job={job}", f"software={setup.software}")
    values = device_figures(device)
    return {
        **indicators(f"job={job}", f"software={setup.software}", f"job={job}|{setup.software}"),
        **values,
        **crossed(labels, values),
        **indicators(f"arch={device.architecture}", f"arch={device.architecture}|{setup.precision}"),
        **indicators(
            f"gpu={device.name}", f"gpu={device.name}|{setup.precision}", f"gpu={device.name}|{setup.network}"
        ),
    }


MOST_LOG_EFFICIENCY = math.log(1.02)

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
_BRIDGED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSetup:
    """A job on several GPUs of one machine."""

    device: Device
    network: str
    precision: str
    software: str
    gpus: int
    bridged: bool
    """Whether an NVLink bridge joins the cards."""
    samples_per_s: float | None = None
    """Throughput of one GPU."""
    batch: float | None = None
    """Samples per step of one GPU."""


def link_kind(setup: ScalingSetup) -> str:
    """Kind of link between the GPUs of one machine."""
    device = setup.device
    if device.link_bytes_per_s > 0 and not device.bridge:
        return "nvlink"
    if setup.bridged:
        return "bridge"
    return "shared pcie" if device.consumer else "pcie"


def narrowest_link(setup: ScalingSetup) -> tuple[str, float]:
    """Class and listed rate (bytes/s, one direction) of the narrowest hop of a ring; a bridge joins two cards alone."""
    device, kind = setup.device, link_kind(setup)
    if kind == "nvlink":
        return "nvlink", device.link_bytes_per_s
    if kind == "bridge" and setup.gpus == _BRIDGED:
        return "bridge", device.link_bytes_per_s or device.host_bytes_per_s
    return "host" if device.consumer else "peer", device.host_bytes_per_s


def exchange_ratio(setup: ScalingSetup, weights: Mapping[str, float]) -> float | None:
    """Seconds in which the link would carry the gradients once, over seconds of compute; None where not known.

    Without a batch, the usual one of the job for the GPU's memory (`usual_batch:JOB`, samples per GiB).
    """
    parameters = PARAMETERS_M.get(setup.network)
    usual = weights.get(f"usual_batch:{setup.network}|{setup.precision}")
    batch = setup.batch or (usual * setup.device.memory_bytes / _GIB if usual else None)
    if parameters is None or not setup.samples_per_s or not batch:
        return None
    _, rate = narrowest_link(setup)
    steps_per_s = setup.samples_per_s / batch / UNITS_PER_SAMPLE.get(setup.network, 1.0)
    return _GRADIENT_BYTES * 1e6 * parameters / max(rate, 1e9) * steps_per_s


def exchange_part(setup: ScalingSetup, ratio: float, weights: Mapping[str, float]) -> float:
    """Seconds of a ring all-reduce at the rate that its narrowest hop attains, over seconds of compute."""
    link, _ = narrowest_link(setup)
    return ratio * 2 * (1 - 1 / setup.gpus) / attained_fraction(link, setup.gpus, weights)


def log_efficiency(setup: ScalingSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the speed over n times that of one GPU."""
    if setup.gpus == 1:
        return 0.0
    return min(
        MOST_LOG_EFFICIENCY, log_exchange(setup, weights) + correction(weights, scaling_features(setup, weights))
    )


def efficiency_level(log_efficiency: float) -> str:
    """Expected efficiency: `high`, where n GPUs are nearly n times one, or `low`, which is less certain."""
    return "high" if log_efficiency > _HIGH else "low"


def scaling_class(setup: ScalingSetup, log_efficiency: float) -> str:
    """Class of set-ups with similar errors: by link and expected efficiency."""
    return f"{link_kind(setup)}|{efficiency_level(log_efficiency)}"


def log_exchange(setup: ScalingSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the fraction that the exchange leaves, by physics; 0 where the step is not known."""
    ratio, (link, _) = exchange_ratio(setup, weights), narrowest_link(setup)
    if ratio is None or f"attained:{link}" not in weights:
        return 0.0
    kind = link_kind(setup)
    crowding = 0.0 if kind == "nvlink" else weights.get("exposed_crowding", 0.0)
    exposure = exchange_part(setup, ratio, weights) * weights.get(f"exposed:{kind}", 1.0) * (setup.gpus / 2) ** crowding
    return -math.log1p(exposure ** weights["hidden"]) / weights["hidden"]


def scaling_features(setup: ScalingSetup, weights: Mapping[str, float]) -> Features:
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
    many = indicators(f"many={link}") if setup.gpus > 2 else {}  # beyond a pair a bridge does not reach
    return {**values, **crossed(labels, values), **many}
