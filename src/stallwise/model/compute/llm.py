"""Language models in FP32 or half precision: a pass by the shapes of its blocks, on one GPU or on several.

    forward = products / R + attention / R + bytes / bandwidth
    step = (device^4 + launching^4)^(1/4)

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
from stallwise.model.compute.host import HostWork, joined_s, launch_s
from stallwise.model.compute.roofline import Device, matrix_rate
from stallwise.workload.shapes import LanguageModel

_STREAM = 0.8  # of the memory bandwidth that long streams attain
UPDATE_BYTES = {"none": 0.0, "sgd": 12.0, "momentum": 32.0, "adam": 72.0, "adamw": 80.0}
"""Read and written for a parameter by the update, gradient and moments in FP32: every pass over lists of tensors of
torch's own (`foreach`) reads its operands and writes its result."""
_REDUCED, _REDUCED_COMPILED = 1.6, 1.1
"""Of what a pass on matrix units takes by their peak: casts and norms in FP32 surround its products, and compiling
fuses them. H200: 1.8 and 1.9 for Llama and BERT (`fitting/own_steps.csv`), 1.3 for GPT-2, and 1.1 compiled."""
_FUSED_ELEMENTWISE = 0.45  # of the elementwise bytes that a compiled step still moves
_CAST_BYTES = 12.0  # of a weight that autocast reads and writes once a step, and of its gradient
_OPERATORS = 15  # of a block's forward pass, and of what surrounds the blocks
_PLAIN_PRODUCTS = 2
_GATED_OPERATORS = 23  # with rotary positions and norms of several operators, as gated blocks have


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSetup:
    """A language model at a sequence length and batch on one kind of GPU."""

    device: Device
    model: LanguageModel
    sequence: int
    batch: float
    """Samples of all GPUs together."""
    training: bool
    option: str = ""
    """`fusion`, `dp4`, `tp4`, `pp4_1` (four stages, one micro-batch), or nothing."""
    element_bytes: float = 4.0
    autocast: bool = False
    """Whether weights are FP32 and cast for every step."""
    reduced: bool = False
    """Whether products are in TF32 or 16 bits."""
    flash: bool = False
    """Whether attention never writes its scores to memory."""
    optimizer: str = "none"
    """Whose update is part of a training step."""
    compiled: bool = False
    cpu_speed: float = 1.0
    """Of the host's CPU over the reference's (`hardware.processors`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """What a forward pass does."""

    product_flop: float
    attention_flop: float
    softmax_bytes: float
    elementwise_bytes: float
    vocabulary_bytes: float
    dropout_bytes: float
    """In training alone."""
    scores_dropout_bytes: float
    """Of them, those of attention's scores."""


def forward_pass(model: LanguageModel, sequence: int, batch: float, element_bytes: float = 4.0) -> ForwardPass:
    """Counts of one forward pass; an encoder-decoder reads and writes sequences of the same length."""
    tokens = sequence * batch
    block = (2 + 2 * model.key_value_fraction) * model.width**2 + model.inner_products * model.width * model.inner
    blocks = model.layers + model.decoder_layers
    attentions = blocks + model.decoder_layers
    macs = blocks * block * tokens + model.decoder_layers * 4 * model.width**2 * tokens
    words = tokens * model.vocabulary if model.predicts_words else 0.0
    scores = attentions * model.heads * sequence * tokens
    dropped_scores = scores if model.drops_attention else 0.0
    dropped = dropped_scores + (2 * blocks * tokens * model.width if model.drops_hidden else 0.0)
    return ForwardPass(
        product_flop=2 * (macs + words * model.width),
        attention_flop=2 * attentions * 2 * sequence * model.width * tokens,
        softmax_bytes=element_bytes * scores,
        elementwise_bytes=element_bytes * blocks * tokens * (10 * model.width + 3 * model.inner),
        vocabulary_bytes=element_bytes * words,
        dropout_bytes=(2 * element_bytes + 1) * dropped,
        scores_dropout_bytes=(2 * element_bytes + 1) * dropped_scores,
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
    """Rate of large matrix products: as measured on this GPU, else by peak and power."""
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
    device = forward * (1 + constants["backward"]) + _update_s(setup) if setup.training else forward
    whole = joined_s(device, host_s(setup))
    link = setup.device.link_bytes_per_s or setup.device.host_bytes_per_s / 2
    if kind == "dp":
        return whole + (_gradients_s(setup, count, link) if setup.training else 0.0)
    if kind == "tp":
        return whole / count + _activations_s(setup, count, link)
    if kind == "pp":
        return whole * (micro + count - 1) / (micro * count)
    return whole


def host_s(setup: LlmSetup) -> float:
    """Seconds of launching a step."""
    blocks = setup.model.layers + 1.5 * setup.model.decoder_layers + 1
    work = HostWork(
        operators=(_GATED_OPERATORS if setup.model.inner_products > _PLAIN_PRODUCTS else _OPERATORS) * blocks,
        training=setup.training,
        autocast=setup.autocast,
        compiled=setup.compiled,
        adam=setup.optimizer in ("adam", "adamw"),
    )
    return launch_s(work, setup.cpu_speed)


def _update_s(setup: LlmSetup) -> float:
    """The optimizer's update of all parameters, and the casts of autocast."""
    moved = UPDATE_BYTES[setup.optimizer] + (_CAST_BYTES if setup.autocast else 0.0)
    return moved * setup.model.parameters / (_STREAM * setup.device.memory_bytes_per_s)


def _forward_s(setup: LlmSetup, batch: float, constants: Mapping[str, float], *, fused: bool) -> float:
    work = forward_pass(setup.model, setup.sequence, batch, setup.element_bytes)
    width = setup.model.width / (setup.model.width + constants["narrow_width"])
    rate = constants["fraction"] * attained_flop_per_s(setup.device, constants) * width
    rate *= constants.get(f"fraction:{setup.device.architecture}", 1.0)
    compute_s = (work.product_flop + constants["attention"] * work.attention_flop) / rate
    soft = constants["softmax"] * work.softmax_bytes * (constants["fused_softmax"] if fused else 1.0)
    wise = constants["elementwise"] * work.elementwise_bytes * (constants["fused_elementwise"] if fused else 1.0)
    wise *= _FUSED_ELEMENTWISE if setup.compiled else 1.0
    moved = (0.0 if setup.flash else soft) + wise + constants["vocabulary"] * work.vocabulary_bytes
    if setup.training:
        moved += work.dropout_bytes - (work.scores_dropout_bytes if setup.flash else 0.0)
    experts = constants["experts"] if setup.model.experts > 1 else 1.0
    moved_s = moved / (_STREAM * setup.device.memory_bytes_per_s)
    factor = _REDUCED_COMPILED if setup.compiled else _REDUCED
    units = factor if setup.reduced and setup.device.has_matrix_units else 1.0
    return units * experts * (compute_s + moved_s)


def _gradients_s(setup: LlmSetup, gpus: int, link_bytes_per_s: float) -> float:
    """Ring all-reduce of all gradients, half of it hidden by backward."""
    return 0.5 * 2 * (gpus - 1) / gpus * setup.element_bytes * setup.model.parameters / link_bytes_per_s


def _activations_s(setup: LlmSetup, gpus: int, link_bytes_per_s: float) -> float:
    """Two all-reduces per block forward, two backward, none hidden."""
    message = setup.element_bytes * setup.sequence * setup.batch * setup.model.width
    count = (setup.model.layers + setup.model.decoder_layers) * (4 if setup.training else 2)
    return count * 2 * (gpus - 1) / gpus * message / link_bytes_per_s


def log_step_s(setup: LlmSetup, constants: Mapping[str, float]) -> float:
    """Logarithm of the seconds of a step."""
    return math.log(step_s(setup, constants))
