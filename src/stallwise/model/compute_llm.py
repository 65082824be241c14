"""Language models in FP32 or half precision: a pass by the shapes of its blocks, on one GPU or on several.

    forward = (products / R + attention / R + bytes / bandwidth) + start-ups

R is what the GPU attains in large matrix products (measured where its kernels were, else peak and power), less in
narrow blocks. Bytes are those of softmax, elementwise operators and the vocabulary. In training, dropout reads and
writes attention and hidden states once more (8 bytes and a mask per element: a training forward pass of BERT takes 16 %
longer than a plain one on a V100), and backward takes nearly twice the forward pass. Several GPUs (`option`): data
parallel adds an all-reduce of the gradients, tensor parallel four of the activations per block, pipeline parallel its
bubble.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.model.compute import Device, matrix_rate
from stallwise.workload.zoo_shapes import LanguageModel

_STREAM = 0.8  # of the memory bandwidth that long streams attain


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSetup:
    """A language model at a sequence length and batch on one kind of GPU."""

    device: Device
    model: LanguageModel
    sequence: int
    batch: float
    """Of all GPUs together."""
    training: bool
    option: str = ""
    """`fusion`, `dp4`, `tp4`, `pp4_1` (four stages, one micro-batch), or nothing."""
    element_bytes: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a forward pass does."""

    product_flop: float
    attention_flop: float
    softmax_bytes: float
    elementwise_bytes: float
    vocabulary_bytes: float
    dropout_bytes: float
    """In training alone."""
    blocks: int


def forward_pass(model: LanguageModel, sequence: int, batch: float, element_bytes: float = 4.0) -> Pass:
    """Counts of one forward pass; an encoder-decoder reads and writes sequences of the same length."""
    tokens = sequence * batch
    block = 4 * model.width**2 + 2 * model.width * model.inner
    blocks = model.layers + model.decoder_layers
    attentions = blocks + model.decoder_layers
    macs = blocks * block * tokens + model.decoder_layers * 4 * model.width**2 * tokens
    words = tokens * model.vocabulary if model.predicts_words else 0.0
    scores = attentions * model.heads * sequence * tokens
    dropped = (scores if model.drops_attention else 0.0) + 2 * blocks * tokens * model.width
    return Pass(
        product_flop=2 * (macs + words * model.width),
        attention_flop=2 * attentions * 2 * sequence * model.width * tokens,
        softmax_bytes=element_bytes * scores,
        elementwise_bytes=element_bytes * blocks * tokens * (10 * model.width + 3 * model.inner),
        vocabulary_bytes=element_bytes * words,
        dropout_bytes=(2 * element_bytes + 1) * dropped,
        blocks=blocks,
    )


def parallel(option: str) -> tuple[str, int, int]:
    """Kind, number of GPUs and micro-batches: `pp4_2` is ("pp", 4, 2)."""
    name, _, micro = option.partition("_")
    kind, count = name[:2], name[2:]
    if kind in ("dp", "tp", "pp") and count.isdigit() and (micro.isdigit() or not micro):
        return kind, max(1, int(count)), max(1, int(micro or 1))
    if option in ("", "fusion"):
        return option, 1, 1
    raise InputError(f"The option is dp, tp or pp with a number of GPUs, fusion, or nothing; not {option!r}.")


def attained_flop_per_s(device: Device, constants: Mapping[str, float]) -> float:
    """Large products: as measured on this GPU, else by peak and power."""
    measured = constants.get(f"attained:{device.name}")
    # What was measured is FP32 outside the matrix units.
    if measured is not None and not device.has_matrix_units:
        return measured * device.matrix_flop_per_s
    return matrix_rate(device, constants, constants["attained:"])


def step_s(setup: LlmSetup, constants: Mapping[str, float]) -> float:
    """Seconds of one step, or of one forward pass."""
    kind, count, micro = parallel(setup.option)
    per_gpu = setup.batch / count if kind == "dp" else setup.batch
    fused = setup.option == "fusion"
    forward = _forward_s(setup, max(per_gpu, 1e-9), constants, fused=fused)
    whole = forward * (1 + constants["backward"]) if setup.training else forward
    link = setup.device.link_bytes_per_s or setup.device.host_bytes_per_s / 2
    if kind == "dp":
        return whole + (_gradients_s(setup, count, link) if setup.training else 0.0)
    if kind == "tp":
        return whole / count + _activations_s(setup, count, link)
    if kind == "pp":
        return whole * (micro + count - 1) / (micro * count)
    return whole


def _forward_s(setup: LlmSetup, batch: float, constants: Mapping[str, float], *, fused: bool) -> float:
    work = forward_pass(setup.model, setup.sequence, batch, setup.element_bytes)
    width = setup.model.width / (setup.model.width + constants["narrow_width"])
    rate = constants["fraction"] * attained_flop_per_s(setup.device, constants) * width
    rate *= constants.get(f"fraction:{setup.device.architecture}", 1.0)
    compute_s = (work.product_flop + constants["attention"] * work.attention_flop) / rate
    soft = constants["softmax"] * work.softmax_bytes * (constants["fused_softmax"] if fused else 1.0)
    wise = constants["elementwise"] * work.elementwise_bytes * (constants["fused_elementwise"] if fused else 1.0)
    moved = soft + wise + constants["vocabulary"] * work.vocabulary_bytes
    moved += work.dropout_bytes if setup.training else 0.0
    experts = constants["experts"] if setup.model.experts > 1 else 1.0
    moved_s = moved / (_STREAM * setup.device.memory_bytes_per_s)
    return experts * (compute_s + moved_s) + constants["start_s"] * work.blocks


def _gradients_s(setup: LlmSetup, gpus: int, link_bytes_per_s: float) -> float:
    """A ring all-reduce of all gradients, half of it behind backward."""
    return 0.5 * 2 * (gpus - 1) / gpus * setup.element_bytes * setup.model.parameters / link_bytes_per_s


def _activations_s(setup: LlmSetup, gpus: int, link_bytes_per_s: float) -> float:
    """Two all-reduces per block forward, two backward, none behind anything."""
    message = setup.element_bytes * setup.sequence * setup.batch * setup.model.width
    count = (setup.model.layers + setup.model.decoder_layers) * (4 if setup.training else 2)
    return count * 2 * (gpus - 1) / gpus * message / link_bytes_per_s


def log_step_s(setup: LlmSetup, constants: Mapping[str, float]) -> float:
    """Logarithm of the seconds of a step."""
    return math.log(step_s(setup, constants))
