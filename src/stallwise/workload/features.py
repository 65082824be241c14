"""A model as its numbers: enough to compare it with others and to predict it on machines nobody measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFeatures:
    """Features of one model under one job. None: could not be known there."""

    parameters: int
    trained_parameters: int
    gradient_tensors: int
    gradient_bytes: int
    layers: int
    """Modules that own parameters."""
    precision: str | None = None
    """What multiplies: fp32, tf32, bf16, fp16, fp8, fp64."""
    flops_per_sample: float | None = None
    """Forward and backward together, multiply and add counted as two; recomputed forwards counted where they run."""
    activation_bytes_per_sample: float | None = None
    """Tensors kept from forward for backward, parameters not counted."""
    compiled: bool = False
    checkpointed: bool = False
