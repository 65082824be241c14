"""Seconds of a training step of a transformer under a parallel layout.

One micro-batch in one layer takes the longest of what the device computes and exchanges with its tensor, expert and
context group, what the host takes to launch it, and what a sharded layer (ZeRO-3) takes to gather:

    layer = ‖ products + attention + moved bytes + exchange,  host,  gather ‖_6
    step  = (micro-batches + (stages - 1) / interleaving) · (layers of the fullest stage + sends) + gradients + update

Products run at a fraction of the peak, and each has a start-up that small ones feel; recomputed passes count twice.
The host's time is what a framework takes to issue the kernels of a layer. It does not depend on the batch, so it is a
floor: with one micro-batch of a few thousand tokens it is what most layers of a tensor-parallel pipeline wait for, and
pipelines across nodes make it longer, the more so the more ranks a tensor group has. (A sum, or the longest time
alone, would have a kink or count twice; the sixth norm is within 12 % of the longest where both are equal.)

Constants are fitted by framework (`fitting/layouts.py`). Pipelines: Narayanan et al., "Efficient Large-Scale Language
Model Training on GPU Clusters Using Megatron-LM" (SC 2021); sharding: Rajbhandari et al., "ZeRO" (SC 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stallwise.model.layout.columns import Column, LayoutColumns

_NORM = 6
_ELEMENT_BYTES = 2.0
_SHARED_PASSES = 8.0  # two gathers and two scatters of hidden states, forward and backward


@dataclass(frozen=True, slots=True)
class LayoutStepParts:
    """Where the predicted step goes, in seconds. `pipeline_s` is the bubble with the sends."""

    compute_s: Column
    exchange_s: Column
    host_s: Column
    pipeline_s: Column
    gradients_s: Column
    update_s: Column

    @property
    def step_s(self) -> Column:
        parts = (self.compute_s, self.exchange_s, self.host_s, self.pipeline_s, self.gradients_s, self.update_s)
        return np.asarray(np.sum(parts, axis=0))


def step_parts(setups: LayoutColumns, constants: Mapping[str, float]) -> LayoutStepParts:
    """Every set-up's step, taken apart: what compute leaves exposed of each other part."""
    c, k = setups, constants
    layer_compute = _layer_compute_s(c, k)
    exchange = _layer_exchange_s(c, k)
    host = _host_s(c, k)
    gather = _gather_s(c, k)
    device = _longest(layer_compute + exchange, gather)
    layer = _longest(device, host)
    head = _head_s(c, k)
    fullest = np.maximum(np.ceil(c.layers / c.pipeline) * layer, (c.layers * layer + head) / c.pipeline)
    fullest = np.where(c.pipeline > 1, fullest, c.layers * layer + head)
    send = _send_s(c, k)
    turns = c.accumulation * (fullest + send)
    bubble = (c.pipeline - 1) / c.interleaving * (fullest + send)
    computing = c.accumulation * np.minimum(fullest, (c.layers * layer_compute + head) / c.pipeline)
    exposed = c.accumulation * c.layers / c.pipeline * (device - layer_compute)
    launching = c.accumulation * c.layers / c.pipeline * (layer - device)
    rest = np.maximum(turns - computing - exposed - launching, 0.0)
    return LayoutStepParts(
        compute_s=turns - exposed - launching - rest,
        exchange_s=exposed,
        host_s=launching + k["start_s"],
        pipeline_s=bubble + rest,
        gradients_s=_gradients_s(c, k),
        update_s=_update_s(c, k),
    )


def step_s(setups: LayoutColumns, constants: Mapping[str, float]) -> Column:
    """Seconds of a step."""
    return step_parts(setups, constants).step_s


def _longest(one: Column, other: Column) -> Column:
    longer, shorter = np.maximum(one, other), np.minimum(one, other)
    return longer * (1 + (shorter / np.maximum(longer, 1e-12)) ** _NORM) ** (1 / _NORM)


def _product_s(c: LayoutColumns, k: Mapping[str, float], outputs: Column, inputs: Column, tokens: Column) -> Column:
    """A matrix product of `tokens` rows: its operations, and a start-up in units of operations."""
    flop = 2 * tokens * outputs * inputs
    return (flop + k["start_flop"] * 1e9) / (c.flop_per_s * k["attained"])


def _layer_compute_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Products, attention and bytes of one micro-batch in one layer, forward and backward."""
    tokens, t = c.tokens, c.tensor
    attended = c.attention_weights / c.hidden / t
    products = _product_s(c, k, 0.75 * attended, c.hidden, tokens) + _product_s(c, k, c.hidden, 0.25 * attended, tokens)
    routed = tokens * c.active_experts
    split = np.where(c.experts > 1, 1.0, t)  # experts are split over the expert group, not over tensor ranks
    wide = _product_s(c, k, (c.matrices - 1) * c.ffn / split, c.hidden, np.where(c.experts > 1, routed / t, tokens))
    narrow = _product_s(c, k, c.hidden, c.ffn / split, np.where(c.experts > 1, routed / t, tokens))
    experts = np.where(c.experts > 1, k.get("experts", 1.0), 1.0)
    products = products + experts * (wide + narrow)
    width = c.attention_width / t
    flop = np.where(c.fused > 0, 0.5, 1.0) * 4 * tokens * c.sequence * width
    attention = (flop + k["start_flop"] * 1e9) / (c.attention_flop_per_s * k["attention"])
    inner = np.where(c.experts > 1, c.active_experts, 1.0) * c.ffn
    moved = _ELEMENT_BYTES * tokens * (20 * c.hidden + 6 * inner) / t + _ELEMENT_BYTES * 8 * tokens * c.hidden * (
        1 - k["sequence_split"]
    ) * (1 - 1 / t)
    scores = np.where(c.fused > 0, 0.0, 8.0 * c.micro_batch * c.heads / t * c.sequence**2)
    routed_bytes = np.where(c.experts > 1, k.get("routed", 1.0) * 4 * _ELEMENT_BYTES * routed * c.hidden / t, 0.0)
    bytes_s = (k["moved"] * (moved + scores) + routed_bytes) / c.memory_bytes_per_s
    passes = 3 + c.recomputed
    return passes * (products + bytes_s) + (passes + 0.5 * c.selective) * attention


def _layer_exchange_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Tensor, expert and context groups: what one micro-batch exchanges in one layer."""
    tokens, t = c.tokens, c.tensor
    hidden_bytes = _ELEMENT_BYTES * tokens * c.hidden
    passes = 1 + 0.5 * c.recomputed
    inside = t <= c.gpus_per_node
    volume = _SHARED_PASSES / 2 * passes * 2 * (t - 1) / t * hidden_bytes / 2
    near = volume / (c.link_bytes_per_s * k["tensor_link"]) + 8 * k["tensor_start_s"] * passes
    nodes = t / c.gpus_per_node
    far = volume / (c.network_bytes_per_s * c.gpus_per_node * k["tensor_network"])
    far = far + 8 * k["tensor_network_start_s"] * passes * nodes
    tensor = np.where(t > 1, np.where(inside, near, far), 0.0)
    e = c.expert
    sent = 4 * passes * (e - 1) / e * hidden_bytes * c.active_experts / t
    expert_inside = e * t <= c.gpus_per_node
    rate = np.where(expert_inside, c.link_bytes_per_s, c.network_bytes_per_s) * k.get("expert_link", 0.5)
    experts = np.where(e > 1, sent / rate, 0.0)
    # Keys and values go around the ring in each forward pass; in backward so do they, and their gradients.
    ring = (3 + c.recomputed) * 2 * _ELEMENT_BYTES * tokens * c.key_width / t * (c.context - 1)
    context_inside = c.context * t <= c.gpus_per_node
    context_rate = np.where(context_inside, c.link_bytes_per_s, c.network_bytes_per_s) * k.get("context_link", 0.5)
    contexts = np.where(c.context > 1, 0.5 * ring / context_rate, 0.0)
    return tensor + experts + contexts


def _host_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Launching one layer for one micro-batch, both passes."""
    group = np.where(c.tensor > 1, k["host_tensor_s"] * (c.tensor - 1.0) ** k["host_tensor_power"], 0.0)
    across = (c.pipeline > 1) & (c.gpus > c.gpus_per_node)
    ranks = np.minimum(c.tensor, c.gpus_per_node)
    pipelined = k["host_pipeline_s"] * ranks ** k["host_pipeline_power"]
    pipelined = pipelined * np.maximum(c.tensor / c.gpus_per_node, 1.0) ** k["host_network_power"]
    routing = np.where(c.experts > 1, k.get("host_experts_s", 0.0), 0.0)
    plain = (k["host_s"] + group + routing) * (1 + c.recomputed / 3)
    return np.where(across, np.maximum(plain, pipelined), plain)


def _gather_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """A sharded layer: parameters gathered for each pass, gradients scattered, per micro-batch."""
    bytes_per_weight = _ELEMENT_BYTES * (2 + c.recomputed) + _ELEMENT_BYTES
    volume = bytes_per_weight * _sent(c, c.layer_dense_weights, c.layer_expert_weights)
    inside = c.replicas * c.tensor <= c.gpus_per_node
    rate = np.where(inside, c.link_bytes_per_s * k["shard_link"], _group_network(c) * k["shard_network"])
    return np.where((c.zero >= 3) & (c.replicas > 1), volume / rate, 0.0)


def _sent(c: LayoutColumns, dense: Column, experts: Column) -> Column:
    """What a GPU sends of its weights in one ring over their replicas."""
    n, e = c.replicas, c.expert_replicas
    return (n - 1) / n * dense + (e - 1) / e * experts


def _group_network(c: LayoutColumns) -> Column:
    """Rate between nodes of one group of replicas: its members on a node use their adapters together."""
    members = np.minimum(np.maximum(c.gpus_per_node / c.tensor, 1.0), c.replicas)
    return c.network_bytes_per_s * members


def _head_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """The product with the vocabulary, and the bytes of its result."""
    words = c.vocabulary / c.tensor
    moved = _ELEMENT_BYTES * 10 * c.tokens * words * k["moved"] / c.memory_bytes_per_s
    return k["head"] * (3 * _product_s(c, k, words, c.hidden, c.tokens) + moved)


def _send_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """Hidden states between stages, both ways."""
    inside = c.gpus <= c.gpus_per_node
    rate = np.where(inside, c.link_bytes_per_s * k["send_link"], c.network_bytes_per_s * k["send_network"])
    sent = 2 * _ELEMENT_BYTES * c.tokens * c.hidden / c.tensor * c.interleaving / rate
    return np.where(c.pipeline > 1, sent + k["send_start_s"], 0.0)


def gpu_weights(c: LayoutColumns) -> tuple[Column, Column]:
    """Parameters that one GPU computes with: those that are no experts, and experts."""
    layers = c.layers / c.pipeline
    embeddings = c.embeddings * c.vocabulary * c.hidden / c.tensor / c.pipeline
    return layers * c.layer_dense_weights + embeddings, layers * c.layer_expert_weights


def _gradients_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """What backward leaves exposed of exchanging gradients between replicas (ZeRO-3 does it layer by layer)."""
    n = c.replicas
    volume = 2 * k["gradient_bytes"] * _sent(c, *gpu_weights(c))
    near = volume / (c.link_bytes_per_s * k["data_link"])
    far = volume / (_group_network(c) * k["data_network"]) + k["data_start_s"] * np.log2(np.maximum(n, 2))
    exchanged = np.where(n > 1, np.where(c.tensor * n <= c.gpus_per_node, near, far), 0.0)
    return np.where(c.zero >= 3, 0.0, exchanged)


def _update_s(c: LayoutColumns, k: Mapping[str, float]) -> Column:
    """The optimizer reads and writes its states."""
    dense, experts = gpu_weights(c)
    own = np.where(c.zero > 0, dense / c.replicas + experts / c.expert_replicas, dense + experts)
    return own * 20 * k["update"] / c.memory_bytes_per_s
