"""The jobs of a shared cluster (Gavel's tables): batches per second by GPU, batch, number of GPUs and placement.

Offset: a roofline of totals with what the kernels take to start. Correction: job, GPU and software around it; for
several GPUs the exchange of gradients at a rate by GPU and placement, packed on few machines or spread over many,

    log efficiency = -log(1 + r^q)/q + correction,   r = 2 (n - 1)/n · gradient bytes / rate / step

and what a doubling does beyond that. Spread over a cloud's machines the fitted rates are those of its network.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.model.compute.roofline import Device, Features, correction, crossed, smooth_minimum
from stallwise.model.compute.roofline import indicators as labelled
from stallwise.workload.shapes import JobTotals

_FRACTION = 0.5  # of the FP32 peak that convolutions and products attain
_LAUNCH_S = 1e-5
_BYTES = 4.0
_FLOP = 2.0
_BEST = math.log(1.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJobSetup:
    """A job of a cluster table at a batch size per GPU."""

    device: Device
    job: str
    totals: JobTotals | None
    """None: the job is not in the list of known totals."""
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
    return -math.log(smooth_minimum(1 / (compute_s + memory_s), 1 / start_s))


def log_speed(setup: ClusterJobSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the batches per second of all GPUs together."""
    one = log_one(setup, weights)
    return one + math.log(setup.gpus) + log_efficiency(setup, weights, one)


def log_one(setup: ClusterJobSetup, weights: Mapping[str, float]) -> float:
    """Logarithm of the batches per second of one GPU: physics and the correction."""
    return -log_step_s(setup) + correction(weights, features(setup))


def log_offset(setup: ClusterJobSetup) -> float:
    """Logarithm of the batches per second by physics alone: n times one GPU."""
    return math.log(setup.gpus) - log_step_s(setup)


def log_efficiency(setup: ClusterJobSetup, weights: Mapping[str, float], one: float | None = None) -> float:
    """Logarithm of what is left of n times one GPU; `one` is the logarithm of its batches per second, if measured."""
    if setup.gpus == 1:
        return 0.0
    speed = log_one(setup, weights) if one is None else one
    return min(_BEST, log_exchange(setup, weights, speed) + correction(weights, several_features(setup)))


def exchange_s(setup: ClusterJobSetup) -> float | None:
    """Seconds in which 1 byte/s would carry a step's gradients around a ring; None where their size is not known."""
    if setup.totals is None:
        return None
    return 2 * (1 - 1 / setup.gpus) * _BYTES * setup.totals.parameters


def log_exchange(setup: ClusterJobSetup, weights: Mapping[str, float], one: float) -> float:
    """Logarithm of the fraction that the exchange leaves, by physics; 0 where its size is not known."""
    usual = weights.get(f"rate:{setup.placement}")
    rate = weights.get(f"rate:{setup.placement}|{setup.device.name}", usual)
    seconds = exchange_s(setup)
    if rate is None or seconds is None:
        return 0.0
    ratio = seconds / rate * math.exp(one)
    return -math.log1p(ratio ** weights["hidden"]) / weights["hidden"]


def _larger(setup: ClusterJobSetup) -> float:
    """Doublings of the batch over the usual one."""
    usual = setup.totals.usual_batch if setup.totals else 64.0
    return math.log2((setup.batch or usual) / usual)


def features(setup: ClusterJobSetup) -> Features:
    """Features for one GPU: job, GPU, and the table it was measured for."""
    job, gpu, source = setup.job, setup.device.name, f"{setup.table}|{setup.placement}"
    values = {"larger": _larger(setup), "much": abs(_larger(setup))}
    return {
        **labelled(f"gpu={gpu}", f"job={job}", f"job={job}|{gpu}", f"source={source}", f"source={source}|{job}"),
        **labelled(f"source={source}|{job}|{gpu}", f"gpu={gpu}|{setup.table}"),
        **values,
        **crossed((f"job={job}", f"gpu={gpu}", f"job={job}|{gpu}"), values),
    }


def several_features(setup: ClusterJobSetup) -> Features:
    """Features for several GPUs: doublings beyond what the exchange explains."""
    values = {"several:doublings": math.log2(setup.gpus), "several:any": 1.0, "several:larger": _larger(setup) / 2}
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
