"""Memory that a job needs on a GPU: weights, gradients, optimizer state, activations, and fragmentation.

    bytes = parameters · (weight + gradient + optimizer) / shards + activations · batch / measured batch + one unsharded
            unit + what the libraries take, all times fragmentation

Optimizer state: Adam keeps two FP32 moments; under mixed precision FP32 weights stay the master copy. FSDP shards
weights, gradients and optimizer over all ranks and gathers one unit at a time (Rajbhandari et al., *ZeRO*, SC 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stallwise.errors import InputError
from stallwise.units import GIB

Optimizer = Literal["sgd", "momentum", "adam"]
STATE_BYTES: Mapping[str, float] = {"sgd": 0.0, "momentum": 4.0, "adam": 8.0}
"""Bytes of optimizer state per trained parameter."""

FRAGMENTATION = 1.08
"""Typical factor of memory that torch's allocator reserves over memory in use."""
LIBRARIES_BYTES = 1.0 * GIB
"""CUDA context, cuDNN's and cuBLAS's workspaces."""
_USABLE = 0.97  # of the advertised memory: error correction and the driver keep the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a job stores on one GPU, measured or assumed."""

    parameters: float
    trained_parameters: float
    weight_bytes: float = 4.0
    gradient_bytes: float = 4.0
    state_bytes: float = 8.0
    """Bytes of optimizer state per trained parameter."""
    activation_bytes: float = 0.0
    """Kept for backward, of one micro-batch of the measured size."""
    unit_parameters: float = 0.0
    """The largest unit that FSDP gathers; 0: a twelfth of the model."""
    copies: bool = False
    """Whether autocast keeps half-precision copies of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes needed on one GPU, by purpose."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    unit: float
    libraries: float = LIBRARIES_BYTES

    @property
    def whole(self) -> float:
        """Bytes in all, with fragmentation."""
        used = self.weights + self.gradients + self.optimizer + self.activations + self.unit
        return FRAGMENTATION * used + self.libraries


def memory_need(footprint: Footprint, *, batch: float = 1.0, shards: int = 1) -> MemoryNeed:
    """Bytes at `batch` times the measured batch, sharded over `shards` ranks (1: not sharded)."""
    if batch <= 0 or shards < 1:
        raise InputError(f"A batch above 0 and at least one shard are needed, not {batch:g} and {shards}.")
    sharded = shards > 1
    unit = (footprint.unit_parameters or footprint.parameters / 12) * 2 * footprint.weight_bytes if sharded else 0.0
    copies = 2.0 * footprint.parameters if footprint.copies else 0.0
    return MemoryNeed(
        weights=footprint.parameters * footprint.weight_bytes / shards + copies / shards,
        gradients=footprint.trained_parameters * footprint.gradient_bytes / shards,
        optimizer=footprint.trained_parameters * footprint.state_bytes / shards,
        activations=footprint.activation_bytes * batch,
        unit=unit,
    )


def usable_bytes(memory_bytes: float) -> float:
    """Bytes of the advertised memory that a job can use."""
    return _USABLE * memory_bytes


def fits(footprint: Footprint, memory_bytes: float, *, batch: float = 1.0, shards: int = 1) -> bool:
    """Whether the job fits on a GPU of `memory_bytes`."""
    return memory_need(footprint, batch=batch, shards=shards).whole <= usable_bytes(memory_bytes)


def largest_batch(footprint: Footprint, memory_bytes: float, *, shards: int = 1) -> float | None:
    """The largest batch that fits, as a factor of the measured one; None where not even the weights do."""
    fixed = memory_need(footprint, batch=1e-9, shards=shards).whole
    room = usable_bytes(memory_bytes) - fixed
    if room <= 0:
        return None
    if footprint.activation_bytes <= 0:
        return float("inf")
    return room / (FRAGMENTATION * footprint.activation_bytes)


def fewest_shards(footprint: Footprint, memory_bytes: float, *, batch: float = 1.0, most: int = 4096) -> int | None:
    """Smallest power of two of ranks over which the job must be sharded to fit at `batch`; None: none up to `most`."""
    shards = 1
    while shards <= most:
        if fits(footprint, memory_bytes, batch=batch, shards=shards):
            return shards
        shards *= 2
    return None
