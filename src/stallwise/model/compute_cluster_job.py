"""The jobs of a shared cluster (Gavel's tables): batches per second by GPU, batch, number of GPUs and placement.

Offset: a roofline of totals with what the kernels take to start. Correction: job, GPU and software around it; for
several GPUs what a doubling does when they are packed on few machines or spread over many.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute import Device, smaller
from stallwise.model.compute_linear import Features, correction, crossed
from stallwise.model.compute_linear import one as labelled
from stallwise.workload.zoo_shapes import Totals

_FRACTION = 0.5  # of the FP32 peak that convolutions and products attain
_LAUNCH_S = 1e-5
_BYTES = 4.0
_FLOP = 2.0
_BEST = math.log(1.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJobSetup:
    """A job at a batch per GPU."""

    device: Device
    job: str
    totals: Totals | None
    """None: nothing is known of it."""
    batch: float | None
    gpus: int
    placement: str
    """`packed` on as few machines as possible, or `spread`."""
    table: str


def log_step_s(setup: ClusterJobSetup) -> float:
    """Logarithm of the seconds of one GPU's step, by totals."""
    totals = setup.totals
    if totals is None:
        return 0.0
    batch = setup.batch or totals.usual_batch
    device = setup.device
    compute_s = totals.passes * _FLOP * totals.macs * batch / (_FRACTION * device.matrix_flop_per_s)
    memory_s = totals.passes * _BYTES * (totals.elements * batch + 4 * totals.parameters) / device.memory_bytes_per_s
    start_s = totals.passes * totals.kernels * _LAUNCH_S
    return -math.log(smaller(1 / (compute_s + memory_s), 1 / start_s))


def log_speed(setup: ClusterJobSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the batches per second of all GPUs together."""
    one = log_offset(setup) + correction(weights, features(setup))
    return one + log_efficiency(setup, weights)


def log_offset(setup: ClusterJobSetup) -> float:
    """What physics says: n times one GPU."""
    return math.log(setup.gpus) - log_step_s(setup)


def log_efficiency(setup: ClusterJobSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of what is left of n times one GPU."""
    return 0.0 if setup.gpus == 1 else min(_BEST, correction(weights, several_features(setup)))


def _larger(setup: ClusterJobSetup) -> float:
    """How often the batch is doubled over the usual one."""
    usual = setup.totals.usual_batch if setup.totals else 64.0
    return math.log2((setup.batch or usual) / usual)


def features(setup: ClusterJobSetup) -> Features:
    """One GPU: job, GPU, and which of the tables says so."""
    job, gpu, source = setup.job, setup.device.name, f"{setup.table}|{setup.placement}"
    values = {"larger": _larger(setup), "much": abs(_larger(setup))}
    return {
        **labelled(f"gpu={gpu}", f"job={job}", f"job={job}|{gpu}", f"source={source}", f"source={source}|{job}"),
        **labelled(f"source={source}|{job}|{gpu}", f"gpu={gpu}|{setup.table}"),
        **values,
        **crossed((f"job={job}", f"gpu={gpu}", f"job={job}|{gpu}"), values),
    }


def several_features(setup: ClusterJobSetup) -> Features:
    """Several GPUs: doublings, batch, and how much there is to exchange for a second of compute."""
    doublings, larger = math.log2(setup.gpus), _larger(setup)
    parameters = setup.totals.parameters if setup.totals else 25e6
    values = {
        "several:doublings": doublings,
        "several:any": 1.0,
        "several:exchange": (math.log(_BYTES * parameters / 1e9) - log_step_s(setup)) / 2,
        "several:larger": larger / 2,
        "several:doublings and larger": doublings * larger / 2,
    }
    job, gpu, placement = setup.job, setup.device.name, setup.placement
    labels = (
        f"placement={placement}",
        f"gpu={gpu}",
        f"job={job}",
        f"gpu={gpu}|{placement}",
        f"job={job}|{placement}",
        f"job={job}|{gpu}",
    )
    return {**values, **crossed(labels, values)}
