"""Set-ups of transformers under a parallel layout, as columns: one element per set-up."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from stallwise.workload.transformer import Layout, Transformer

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMachine:
    """GPUs and links as far as a layout needs them; listed rates."""

    flop_per_s: float
    """Dense peak in the precision of the products."""
    attention_flop_per_s: float
    """Dense peak in the precision of attention: half precision, also where products have 8 or 4 bits."""
    memory_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    """Inside a node, per GPU and direction."""
    network_bytes_per_s: float
    """Between nodes, per GPU and direction."""
    gpus_per_node: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSetup:
    """A model, how it is split, and what it runs on."""

    model: Transformer
    layout: Layout
    sequence: int
    machine: LayoutMachine
    fused_attention: bool = True
    """Whether scores stay on the chip (FlashAttention)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutColumns:
    """The numbers of many set-ups. Names are those of `Transformer`, `Layout` and `LayoutMachine`."""

    layers: Column
    hidden: Column
    attention_width: Column
    attention_weights: Column
    key_width: Column
    heads: Column
    ffn: Column
    matrices: Column
    vocabulary: Column
    embeddings: Column
    experts: Column
    active_experts: Column
    sequence: Column
    fused: Column
    data: Column
    tensor: Column
    pipeline: Column
    context: Column
    expert: Column
    zero: Column
    micro_batch: Column
    accumulation: Column
    interleaving: Column
    recomputed: Column
    """Fraction of the forward pass done twice: 1 with full checkpointing."""
    selective: Column
    flop_per_s: Column
    attention_flop_per_s: Column
    memory_bytes_per_s: Column
    memory_bytes: Column
    link_bytes_per_s: Column
    network_bytes_per_s: Column
    gpus_per_node: Column

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def tokens(self) -> Column:
        """Tokens of one micro-batch on one GPU of a context group."""
        return self.micro_batch * self.sequence / self.context

    @property
    def gpus(self) -> Column:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def expert_weights(self) -> Column:
        """Parameters of one feed-forward block or expert."""
        return self.matrices * self.hidden * self.ffn

    @property
    def replicas(self) -> Column:
        """GPUs that hold the same weights: data and context ranks."""
        return self.data * self.context

    @property
    def expert_replicas(self) -> Column:
        """GPUs that hold the same experts; expert groups lie within the replicas."""
        return np.maximum(self.replicas / self.expert, 1.0)

    @property
    def layer_dense_weights(self) -> Column:
        """Parameters of one layer on one GPU that are no experts."""
        return (self.attention_weights + np.where(self.experts > 1, 0.0, self.expert_weights)) / self.tensor

    @property
    def layer_expert_weights(self) -> Column:
        """Parameters of one layer's experts on one GPU; tensor ranks hold them whole."""
        return np.where(self.experts > 1, self.experts / self.expert * self.expert_weights, 0.0)

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "LayoutColumns":
        """Some of the set-ups."""
        return LayoutColumns(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def on(self, machine: LayoutMachine) -> "LayoutColumns":
        """The same set-ups on other machines."""
        return replace(
            self, **{field.name: np.full(len(self), float(getattr(machine, field.name))) for field in fields(machine)}
        )


def columns_of(setups: Sequence[LayoutSetup]) -> LayoutColumns:
    """The numbers of set-ups, a column each."""
    rows = np.array([_numbers(setup) for setup in setups], dtype=np.float64).reshape(len(setups), -1)
    names = [field.name for field in fields(LayoutColumns)]
    return LayoutColumns(**{name: rows[:, place] for place, name in enumerate(names)})


def _numbers(setup: LayoutSetup) -> tuple[float, ...]:
    model, layout, machine = setup.model, setup.layout, setup.machine
    return (
        model.layers,
        model.hidden,
        model.attention_width,
        model.attention_weights,
        model.key_width,
        model.heads,
        model.ffn,
        3 if model.gated else 2,
        model.vocabulary,
        1 if model.tied else 2,
        model.experts,
        model.active_experts,
        setup.sequence,
        setup.fused_attention,
        layout.data,
        layout.tensor,
        layout.pipeline,
        layout.context,
        layout.expert,
        layout.zero,
        layout.micro_batch,
        layout.accumulation,
        layout.interleaving,
        layout.checkpointing == "full",
        layout.checkpointing == "selective",
        machine.flop_per_s,
        machine.attention_flop_per_s,
        machine.memory_bytes_per_s,
        machine.memory_bytes,
        machine.link_bytes_per_s,
        machine.network_bytes_per_s,
        machine.gpus_per_node,
    )
