"""Known training jobs on another GPU: how a network's throughput follows the figures of the card.

Offset: a roofline with as much time at the matrix peak as at the memory bandwidth of a V100. The correction gives every
network and precision its own slopes on what the catalog lists (peak, bandwidth, FP32 rate, power, memory, class), held
close to the slopes all networks share. Memory stands for the batch, which such jobs choose by what fits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute import Device
from stallwise.model.compute_linear import Features, correction, crossed, one

# The figures of a V100, from which logarithms are taken.
_MATRIX, _VECTOR, _BYTES, _MEMORY, _TDP = 1.25e14, 1.57e13, 9e11, 24e9, 250.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSetup:
    """One known job on one GPU."""

    device: Device
    network: str
    precision: str
    software: str
    """Generation of the container it runs in."""


def log_speed(setup: NetworkSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the throughput of one GPU, in the network's own unit."""
    return roof(setup.device, 1.0) + correction(weights, features(setup))


def roof(device: Device, memory_part: float) -> float:
    """Logarithm of the speed of a job that spends 1 at the peak for every `memory_part` at the bandwidth of a V100."""
    return -math.log(_MATRIX / device.matrix_flop_per_s + memory_part * _BYTES / device.memory_bytes_per_s)


def figures(device: Device) -> dict[str, float]:
    """What the correction sees of a GPU."""
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


def features(setup: NetworkSetup) -> Features:
    """Network, precision and software, each with its slopes; the GPU and its architecture."""
    device, job = setup.device, f"{setup.network}|{setup.precision}"
    labels = (f"net={setup.network}", f"precision={setup.precision}", f"job={job}", f"software={setup.software}")
    values = figures(device)
    return {
        **one(f"job={job}", f"software={setup.software}", f"job={job}|{setup.software}"),
        **values,
        **crossed(labels, values),
        **one(f"arch={device.architecture}", f"arch={device.architecture}|{setup.precision}"),
        **one(f"gpu={device.name}", f"gpu={device.name}|{setup.precision}", f"gpu={device.name}|{setup.network}"),
    }
