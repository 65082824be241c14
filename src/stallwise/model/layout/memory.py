"""Peak memory of the fullest GPU under a parallel layout.

    bytes = weights and gradients + optimizer states / shards + activations in flight + logits, · fragmentation + fixed

The first stage of a pipeline holds the activations of as many micro-batches as there are stages (1F1B), the last one
the logits of one; the larger of the two counts. Activations per layer follow Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models" (MLSys 2023): about 34 bytes per token and hidden element without
recomputation (plus scores where attention is not fused), 2 with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stallwise.model.layout.columns import Column, LayoutColumns

_WHOLE_BYTES = 10.0
"""Of the 34 bytes per token and hidden element, those that only sequence parallelism splits."""


@dataclass(frozen=True, slots=True)
class LayoutMemoryParts:
    """Bytes of the fullest GPU."""

    weights_bytes: Column
    """Weights and gradients, with the buffers in which gradients are exchanged."""
    optimizer_bytes: Column
    activation_bytes: Column
    logits_bytes: Column
    fixed_bytes: Column

    @property
    def total_bytes(self) -> Column:
        parts = (self.weights_bytes, self.optimizer_bytes, self.activation_bytes, self.logits_bytes, self.fixed_bytes)
        return np.asarray(np.sum(parts, axis=0))


def memory_parts(setups: LayoutColumns, constants: Mapping[str, float]) -> LayoutMemoryParts:
    """The stage that holds most: the first, or the last."""
    c = setups
    several = c.pipeline > 1
    in_flight = np.minimum(c.pipeline, c.accumulation) * (1 + (c.interleaving > 1) / c.interleaving)
    share = c.layers / c.pipeline
    first = _stage(c, constants, np.ceil(share), np.ones(len(c)), in_flight, logits=0.0)
    last = _stage(c, constants, np.floor(share), np.where(several, 1.0, c.embeddings), np.ones(len(c)), logits=1.0)
    fuller = several & (first.total_bytes > last.total_bytes)
    return LayoutMemoryParts(*(np.where(fuller, getattr(first, name), getattr(last, name)) for name in _PARTS))


_PARTS = ("weights_bytes", "optimizer_bytes", "activation_bytes", "logits_bytes", "fixed_bytes")


def peak_bytes(setups: LayoutColumns, constants: Mapping[str, float]) -> Column:
    """Bytes that the fullest GPU needs."""
    return memory_parts(setups, constants).total_bytes


def _stage(
    c: LayoutColumns, k: Mapping[str, float], layers: Column, embeddings: Column, in_flight: Column, *, logits: float
) -> LayoutMemoryParts:
    dense = layers * c.layer_dense_weights + embeddings * c.vocabulary * c.hidden / c.tensor
    experts = layers * c.layer_expert_weights

    def held(stage: int) -> Column:
        """Parameters whose states a GPU keeps from this stage of ZeRO on."""
        shards, expert_shards = (np.where(c.zero >= stage, n, 1.0) for n in (c.replicas, c.expert_replicas))
        return np.asarray(dense / shards + experts / expert_shards)

    layer = c.layer_dense_weights + c.layer_expert_weights
    gathered = np.where(c.zero >= 3, 2 * 2 * layer * (1 - 1 / c.replicas), 0.0)  # one layer in use, one on its way
    buckets = np.where(c.replicas > 1, k["bucket_bytes"] * held(2), 0.0)
    weights = k["weight_bytes"] * held(3) + gathered + k["gradient_state_bytes"] * held(2) + buckets
    optimizer = k["optimizer_bytes"] * held(1)
    return LayoutMemoryParts(
        weights,
        optimizer,
        in_flight * layers * _kept_bytes(c, k)
        + np.where(c.recomputed > 0, _layer_bytes(c, k), 0.0)
        + _gathered_bytes(c),
        logits * k["logit_bytes"] * c.tokens * c.vocabulary / c.tensor,
        np.full(len(c), k["fixed_bytes"]),
    )


def _kept_bytes(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Bytes per layer and micro-batch that wait for backward: all of them, or of recomputed layers the input."""
    return c.recomputed * 2 * c.tokens * c.hidden / c.tensor + (1 - c.recomputed) * _layer_bytes(c, k)


def _gathered_bytes(c: LayoutColumns) -> Column:
    """Whole hidden states that a tensor rank gathers for one product, and their gradients."""
    return 4 * c.tokens * c.hidden * (1 - 1 / c.tensor)


def _layer_bytes(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Bytes that backward needs of one layer and micro-batch."""
    inner = np.where(c.experts > 1, c.active_experts, 1.0) * c.ffn
    plain = (c.fused == 0) & (c.selective == 0)
    scores = np.where(plain, k["score_bytes"] * c.heads * c.sequence, 0.0)
    split = c.tokens * (k["hidden_bytes"] * c.hidden + k["inner_bytes"] * inner + scores) / c.tensor
    # Without sequence parallelism every tensor rank keeps the inputs of norms and residuals whole.
    whole = (1 - k.get("sequence_split", 1.0)) * _WHOLE_BYTES * c.tokens * c.hidden * (1 - 1 / c.tensor)
    return split + whole


def recomputed_to_fit(setups: LayoutColumns, constants: Mapping[str, float]) -> LayoutColumns:
    """The set-ups, with as many layers recomputed as they need to fit."""
    without = peak_bytes(setups, constants)
    few, all_layers = (
        peak_bytes(replace(setups, recomputed=np.full(len(setups), part)), constants) for part in (1e-9, 1.0)
    )
    needed = (few - setups.memory_bytes) / np.maximum(few - all_layers, 1.0)
    part = np.where(without > setups.memory_bytes, np.clip(needed, 0.0, 1.0), 0.0)
    return replace(setups, recomputed=np.maximum(setups.recomputed, part))
