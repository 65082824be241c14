"""Transformers whose steps are split over many GPUs: shape, parameters, and the parallel layout of a job.

`from_config` reads the configuration files of Hugging Face and of Llama-style checkpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from stallwise.errors import InputError

Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """The shape of a decoder, dense or with experts."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    """Width inside a dense feed-forward block, or inside one expert."""
    vocabulary: int
    head_width: int = 0
    """0: hidden / heads."""
    gated: bool = True
    """Three matrices in a feed-forward block (SwiGLU) instead of two."""
    tied: bool = False
    """One matrix for the embedding and for the last product."""
    experts: int = 1
    active_experts: int = 1
    """Experts that a token passes, shared ones included."""
    attention_parameters: float | None = None
    """Of one layer, where attention is not the usual four products (latent attention, state spaces)."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "experts", "active_experts"):
            if getattr(self, name) < 1:
                raise InputError(f"{self.name}: {name} must be at least 1, got {getattr(self, name)}.")
        if self.active_experts > self.experts:
            raise InputError(f"{self.name}: {self.active_experts} of {self.experts} experts cannot be active.")

    @property
    def attention_width(self) -> int:
        """Width of all heads together."""
        return self.heads * (self.head_width or self.hidden // self.heads)

    @property
    def key_width(self) -> int:
        """Width of the keys, or of the values, of all heads together."""
        return self.kv_heads * (self.head_width or self.hidden // self.heads)

    @property
    def attention_weights(self) -> float:
        """Parameters of the attention of one layer."""
        if self.attention_parameters is not None:
            return self.attention_parameters
        return self.hidden * self.attention_width * (2 + 2 * self.kv_heads / self.heads)

    @property
    def expert_weights(self) -> float:
        """Parameters of one feed-forward block, or of one expert."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer, all experts included."""
        return self.attention_weights + self.experts * self.expert_weights

    @property
    def parameters(self) -> float:
        return self.layers * self.layer_parameters + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def flop_per_token(self, sequence: int) -> float:
        """Operations of forward and backward per token: 6 per active parameter, and attention without a mask."""
        active = self.attention_weights + self.active_experts * self.expert_weights
        scores = 12 * self.layers * self.attention_width * sequence
        return 6 * (self.layers * active + self.vocabulary * self.hidden) + scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a step is split over GPUs. `data` counts replicas of the model, sharded ones (ZeRO, FSDP) included."""

    data: int = 1
    tensor: int = 1
    """Tensor-parallel degree, with sequence parallelism."""
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    """Expert-parallel degree, within `data`."""
    zero: int = 0
    """ZeRO stage: 1 shards optimizer states, 2 also gradients, 3 (FSDP) also parameters."""
    micro_batch: int = 1
    """Sequences of one pass on one replica."""
    accumulation: int = 1
    """Micro-batches per step and replica."""
    interleaving: int = 1
    """Stages that a GPU holds of an interleaved pipeline (virtual stages)."""
    checkpointing: Checkpointing = "none"

    def __post_init__(self) -> None:
        degrees = ("data", "tensor", "pipeline", "context", "expert", "micro_batch", "accumulation", "interleaving")
        for name in degrees:
            if getattr(self, name) < 1:
                raise InputError(f"The {name} of a layout must be at least 1, got {getattr(self, name)}.")
        if self.zero not in (0, 1, 2, 3):
            raise InputError(f"ZeRO has the stages 0 to 3, not {self.zero}.")

    @property
    def gpus(self) -> int:
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def global_batch(self) -> int:
        return self.data * self.micro_batch * self.accumulation


_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "n_kv_heads", "num_kv_heads"),
    "ffn": ("moe_intermediate_size", "intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "ffn_hidden_size"),
    "vocabulary": ("vocab_size",),
    "head_width": ("head_dim",),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "active_experts": ("num_experts_per_tok", "experts_per_token"),
}
_REQUIRED = ("layers", "hidden", "heads", "vocabulary")
_UNGATED = frozenset(
    (
        *("gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "mpt", "falcon", "phi"),
        *("bert", "roberta", "distilbert", "starcoder2", "codegen", "nemotron"),
    )
)
_TIED = frozenset(
    (
        *("gpt2", "gpt_neo", "gpt_bigcode", "opt", "mpt", "bloom", "falcon", "bert", "roberta", "distilbert"),
        *("gemma", "gemma2", "gemma3", "gemma3_text"),
    )
)
_UNEVEN = ("interleave_moe_layer_step", "decoder_sparse_step")
"""Of layers with experts among others without: only models whose layers are alike are described."""


def from_config(config: Mapping[str, Any], name: str) -> Transformer:
    """A transformer from a `config.json` of Hugging Face, or a Llama-style `params.json`."""
    nested = config.get("text_config")
    values = {**config, **nested} if isinstance(nested, Mapping) else dict(config)
    sizes = {field: _whole(values, names, name) for field, names in _NAMES.items()}
    missing = [_NAMES[field][0] for field in _REQUIRED if not sizes[field]]
    if missing:
        raise InputError(f"{name} describes no transformer: {', '.join(missing)} missing.")
    uneven = [key for key in _UNEVEN if (_whole(values, (key,), name) or 1) > 1]
    if uneven:
        raise InputError(f"{name} has experts in some layers only ({uneven[0]}), which is not described here.")
    shape = _dense_shape(values, sizes, name)
    if not sizes["experts"] or sizes["experts"] == 1:
        return shape
    shared = _whole(values, ("n_shared_experts",), name) or 0
    active = (sizes["active_experts"] or 1) + shared
    return replace(shape, experts=sizes["experts"] + shared, active_experts=active)


def _dense_shape(values: Mapping[str, Any], sizes: Mapping[str, int | None], name: str) -> Transformer:
    """The transformer without experts."""
    kind = str(values.get("model_type", ""))
    hidden, heads = sizes["hidden"] or 0, sizes["heads"] or 0
    gated = kind not in _UNGATED
    ffn = sizes["ffn"] or (_llama_ffn(hidden, values) if "dim" in values else 4 * hidden)
    return Transformer(
        name=name,
        layers=sizes["layers"] or 0,
        hidden=hidden,
        heads=heads,
        kv_heads=sizes["kv_heads"] or (1 if values.get("multi_query") is True else heads),
        ffn=ffn,
        vocabulary=sizes["vocabulary"] or 0,
        head_width=sizes["head_width"] or 0,
        gated=gated,
        tied=bool(values.get("tie_word_embeddings", kind in _TIED)),
    )


def _whole(values: Mapping[str, Any], names: tuple[str, ...], source: str) -> int | None:
    """The first of several spellings that is there."""
    for name in names:
        value = values.get(name)
        if value is None or value == 0:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e7 or value != int(value):
            raise InputError(f"{source}: {name} is {str(value)[:40]}, expected a whole number.")
        return int(value)
    return None


def _llama_ffn(hidden: int, values: Mapping[str, Any]) -> int:
    """Width of the feed-forward block as Llama's reference code derives it from `dim`."""
    multiple = int(values.get("multiple_of") or 256)
    width = int(2 * 4 * hidden / 3 * float(values.get("ffn_dim_multiplier") or 1.0))
    return multiple * ((width + multiple - 1) // multiple)
