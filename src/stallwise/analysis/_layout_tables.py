"""Tables of large-model training with their parallel layouts, as they are published: what each row describes.

Five kinds are recognised by their header. Only columns that describe a set-up are read; what was measured may be there
and is never read. Shapes of the models are facts of the publications: each kind of table has its own names.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stallwise.analysis.tables import TableFormat, TableRow
from stallwise.analysis.target import link_of_gpu
from stallwise.errors import InputError
from stallwise.hardware.catalog import Catalog
from stallwise.hardware.gpu import Gpu
from stallwise.model.layout.columns import LayoutMachine, LayoutSetup
from stallwise.workload.transformer import Layout, Transformer

_VTRAIN = "vtrain"
_NANOTRON = "nanotron"
_FSDP = "fsdp"
_DEEPSPEED = "deepspeed"
_NEMO = "nemo"

LAYOUT_FORMATS = (
    TableFormat(
        name=_VTRAIN,
        marks=("tensor parallelism", "pipeline parallelism"),
        required=("gpu", "global batch", "micro batch", "hidden size", "# layers", "sequence length"),
        optional=("gpus_per_node", "attention heads", "data parallelism", "# GPUs"),
        predicts="iteration time (ms)",
    ),
    TableFormat(
        name=_NANOTRON,
        marks=("grad_acc", "zero", "tp"),
        required=("gpu", "model", "mbs", "dp", "pp"),
        optional=("gpus_per_node", "nodes"),
        predicts="tok_s_gpu",
    ),
    TableFormat(
        name=_FSDP,
        marks=("Sharding Strategy", "MicroBatchSize"),
        required=("Model", "SeqLen (T)", "# GPUs", "GPU", "GlobalBatchSize"),
        optional=("Activation Checkpointing", "Precision", "section"),
        predicts="Throughput (T/s/GPU)",
    ),
    TableFormat(
        name=_DEEPSPEED,
        marks=("layers_per_stage", "stages"),
        required=("model", "gpu", "dp", "tp", "mbs", "gbs"),
        optional=("nodes",),
        predicts="iteration_s",
    ),
    TableFormat(
        name=_NEMO,
        marks=("System", "VP", "EP"),
        required=("#-GPUs", "Precision", "GBS", "MBS", "Sequence Length", "TP", "PP", "CP"),
        optional=("heading", "Model", "kind", "FSDP"),
        predicts="Tokens / sec / GPU",
    ),
)


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """What a row describes, and how its table counts speed."""

    setup: LayoutSetup
    tokens_per_s: bool
    """Tokens per second and GPU; otherwise the time of a step."""
    unit_s: float = 1.0
    """Seconds of the table's unit of time."""
    says_recomputation: bool = True
    """Whether the table says if activations are recomputed; otherwise they are where they would not fit."""

    def value(self, step_s: float) -> float:
        """The table's own quantity."""
        layout = self.setup.layout
        if self.tokens_per_s:
            return layout.global_batch * self.setup.sequence / step_s / layout.gpus
        return step_s / self.unit_s


def layout_row(name: str, row: TableRow, catalog: Catalog) -> LayoutRow:
    """The set-up of one row of a table called `name`."""
    return _READERS[name](row, catalog)


def _dense(name: str, layers: int, hidden: int, heads: int, ffn: int, vocabulary: int, *, gpt: bool) -> Transformer:
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=ffn,
        vocabulary=vocabulary,
        gated=not gpt,
        tied=gpt,
    )


# The Ultra-Scale Playbook's models: shapes of Llama with as many key heads as query heads, vocabulary 131,072. The two
# small ones tie embedding and last product, as Llama 3.2's of these sizes do: measured memory is that of one matrix.
_NANOTRON_MODELS = {
    name: replace(_dense(name, layers, hidden, heads, ffn, 131_072, gpt=False), tied=tied)
    for name, layers, hidden, heads, ffn, tied in (
        ("1B", 16, 2048, 32, 8192, True),
        ("3B", 28, 3072, 24, 8192, True),
        ("8B", 32, 4096, 32, 14_336, False),
        ("80B", 80, 8192, 64, 28_672, False),
    )
}
# llm-foundry's MPT: (layers, width, heads); feed-forward four times as wide.
_MPT_MODELS = {
    name: _dense(name, layers, hidden, heads, 4 * hidden, 50_368, gpt=True)
    for name, layers, hidden, heads in (
        ("125m", 12, 768, 12),
        ("350m", 24, 1024, 16),
        ("760m", 24, 1536, 12),
        ("1b", 24, 2048, 16),
        ("3b", 32, 2560, 20),
        ("7b", 32, 4096, 32),
        ("13b", 40, 5120, 40),
        ("30b", 48, 7168, 56),
        ("70b", 80, 8192, 64),
    )
}
# Sailor counts embedding and head as layers; its plans name what they hold, not always what they are called.
_SAILOR_MODELS = {
    26: _dense("OPT-350", 24, 1024, 16, 4096, 50_272, gpt=True),
    34: _dense("GPT-NEO", 32, 2560, 20, 10_240, 50_257, gpt=True),
}


def _llama(name: str, layers: int, hidden: int, heads: int, ffn: int) -> Transformer:
    return Transformer(
        name=name, layers=layers, hidden=hidden, heads=heads, kv_heads=8, ffn=ffn, vocabulary=128_256, tied=False
    )


_NEMO_MODELS = {
    "LLAMA3_8B": _llama("LLAMA3_8B", 32, 4096, 32, 14_336),
    "LLAMA3_70B": _llama("LLAMA3_70B", 80, 8192, 64, 28_672),
    "LLAMA3.1_405B": _llama("LLAMA3.1_405B", 126, 16_384, 128, 53_248),
    "Qwen3_30B_a3B": Transformer(
        name="Qwen3_30B_a3B",
        layers=48,
        hidden=2048,
        heads=32,
        head_width=128,
        kv_heads=4,
        ffn=768,
        vocabulary=151_936,
        experts=128,
        active_experts=8,
    ),
    "Qwen3_235B_a22B": Transformer(
        name="Qwen3_235B_a22B",
        layers=94,
        hidden=4096,
        heads=64,
        head_width=128,
        kv_heads=4,
        ffn=1536,
        vocabulary=151_936,
        experts=128,
        active_experts=8,
    ),
    "GPT OSS 120B": Transformer(
        name="GPT OSS 120B",
        layers=36,
        hidden=2880,
        heads=64,
        head_width=64,
        kv_heads=8,
        ffn=2880,
        vocabulary=201_088,
        experts=128,
        active_experts=4,
    ),
    "DeepSeekV3": Transformer(
        name="DeepSeekV3",
        layers=61,
        hidden=7168,
        heads=128,
        head_width=160,
        kv_heads=128,
        ffn=2048,
        vocabulary=129_280,
        experts=257,
        active_experts=9,
        attention_parameters=187e6,
    ),
}


def _whole(row: TableRow, column: str, default: int | None = None) -> int:
    """A positive whole number; blank is the default where there is one."""
    text = row.text(column)
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if value >= 1 and value == int(value) and value < 1e9:
        return int(value)
    raise row.error(f"column {column} holds {text[:40]!r}, expected a whole number of at least 1.")


def _gpu(row: TableRow, catalog: Catalog, name: str) -> Gpu:
    gpu = catalog.gpus.get(name)
    if gpu is None:
        raise row.error(f"GPU {name!r} is not known. Known are those of the publication.")
    return gpu


def _named_gpu(row: TableRow, catalog: Catalog, names: Mapping[str, str]) -> Gpu:
    name = row.name("gpu")
    if name not in names:
        raise row.error(f"tables of this kind were measured on {', '.join(names)}, not on {name[:40]!r}.")
    return _gpu(row, catalog, names[name])


def machine_of(gpu: Gpu, *, bits: int = 16, network_bytes_per_s: float, gpus_per_node: int = 8) -> LayoutMachine:
    """A node of these GPUs at listed rates; products in 16, 8 or 4 bits, attention in 16."""
    half = gpu.bf16_flop_per_s or gpu.fp16_flop_per_s or gpu.fp32_flop_per_s
    if half is None or gpu.memory_bytes_per_s is None:
        raise InputError(f"The catalog lists no half-precision rate or no memory rate of {gpu.name}.")
    products = (gpu.fp8_flop_per_s if bits == 8 else None) or half * 16 / bits
    return LayoutMachine(
        flop_per_s=products,
        attention_flop_per_s=half,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        memory_bytes=gpu.memory_bytes,
        link_bytes_per_s=link_of_gpu(gpu) or 16e9,
        network_bytes_per_s=network_bytes_per_s,
        gpus_per_node=gpus_per_node,
    )


def _vtrain(row: TableRow, catalog: Catalog) -> LayoutRow:
    """Megatron-DeepSpeed on A100, four adapters of 200 Gb/s per node of eight; plain attention, vocabulary 51,200.

    Runs on several nodes recompute activations: most would not fit without, and all are as slow as with it.
    """
    per_node = _whole(row, "gpus_per_node", 8)
    hidden, layers = _whole(row, "hidden size"), _whole(row, "# layers")
    heads = _whole(row, "attention heads", max(1, hidden // 64))
    data, micro = _whole(row, "data parallelism", 1), _whole(row, "micro batch")
    machine = machine_of(
        _named_gpu(row, catalog, {"A100": "A100-80GB-SXM"}),
        network_bytes_per_s=12.5e9,
        gpus_per_node=per_node,
    )
    tensor, pipeline = _whole(row, "tensor parallelism"), _whole(row, "pipeline parallelism")
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        micro_batch=micro,
        accumulation=_accumulation(row, _whole(row, "global batch"), data * micro),
        checkpointing="full" if data * tensor * pipeline > per_node else "none",
    )
    model = _dense(f"{layers} layers of {hidden}", layers, hidden, heads, 4 * hidden, 51_200, gpt=True)
    sequence = _whole(row, "sequence length")
    setup = LayoutSetup(model=model, layout=layout, sequence=sequence, machine=machine, fused_attention=False)
    return LayoutRow(setup, tokens_per_s=False, unit_s=1e-3)


def _nanotron(row: TableRow, catalog: Catalog) -> LayoutRow:
    """nanotron on H100, one adapter of 400 Gb/s per GPU, sequences of 4,096."""
    layout = Layout(
        data=_whole(row, "dp"),
        tensor=_whole(row, "tp"),
        pipeline=_whole(row, "pp"),
        zero=1 if row.text("zero") == "1" else 0,
        micro_batch=_whole(row, "mbs"),
        accumulation=_whole(row, "grad_acc"),
    )
    machine = machine_of(
        _named_gpu(row, catalog, {"H100": "H100-SXM"}),
        network_bytes_per_s=50e9,
        gpus_per_node=_whole(row, "gpus_per_node", 8),
    )
    model = _named(row, row.name("model"), _NANOTRON_MODELS)
    return LayoutRow(LayoutSetup(model=model, layout=layout, sequence=4096, machine=machine), tokens_per_s=True)


_MPT_GPUS = {
    "a100_40gb": ("A100-40GB-SXM", 25e9),
    "a100_80gb": ("A100-80GB-SXM", 25e9),
    "h100_80gb": ("H100-SXM", 50e9),
}
# FlashAttention of 2023 issues Ampere's matrix instructions, with which an H100 attains 62 % of its peak (Luo et al.,
# "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024, arXiv 2402.13499).
_AMPERE_ON_HOPPER = 0.62


_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}


def _fsdp(row: TableRow, catalog: Catalog) -> LayoutRow:
    """llm-foundry's FSDP: 1.6 Tb/s between nodes of eight A100, 3.2 Tb/s between those of H100."""
    gpu, network = _MPT_GPUS.get(row.name("GPU").lower(), (row.name("GPU"), 25e9))
    strategy = row.name("Sharding Strategy")
    if strategy not in _STRATEGIES:
        raise row.error(f"sharding {strategy[:40]!r} is not known. Known are {', '.join(_STRATEGIES)}.")
    bits = 8 if "fp8" in row.text("Precision").lower() else 16
    gpus, micro = _whole(row, "# GPUs"), _whole(row, "MicroBatchSize")
    recomputed = row.text("Activation Checkpointing", "False").lower() == "true"
    layout = Layout(
        data=gpus,
        zero=_STRATEGIES[strategy],
        micro_batch=micro,
        accumulation=_accumulation(row, _whole(row, "GlobalBatchSize"), gpus * micro),
        checkpointing="full" if recomputed else "none",
    )
    machine = machine_of(_gpu(row, catalog, gpu), bits=bits, network_bytes_per_s=network)
    if gpu == "H100-SXM":
        machine = replace(machine, attention_flop_per_s=_AMPERE_ON_HOPPER * machine.attention_flop_per_s)
    model = _named(row, row.name("Model").lower(), _MPT_MODELS)
    setup = LayoutSetup(model=model, layout=layout, sequence=_whole(row, "SeqLen (T)"), machine=machine)
    return LayoutRow(setup, tokens_per_s=True)


def _deepspeed(row: TableRow, catalog: Catalog) -> LayoutRow:
    """Sailor's plans with like stages: nodes of four GH200, 200 Gb/s per GPU, plain attention over 2,048 tokens."""
    if row.name("gpu") != "GH-96":
        raise row.error("only plans of one kind of GPU, GH-96, can be answered.")
    stages = [_part(row, "layers_per_stage", part) for part in row.name("layers_per_stage").split("/")]
    replicas = {_part(row, "dp", part) for part in row.name("dp").split("/")}
    if len(replicas) > 1:
        raise row.error("stages with different numbers of replicas cannot be answered.")
    model = _SAILOR_MODELS.get(sum(stages))
    if model is None:
        raise row.error(f"a model of {sum(stages)} layers is not known. Known are 26 (OPT-350) and 34 (GPT-NEO).")
    data, micro = replicas.pop(), _whole(row, "mbs")
    layout = Layout(
        data=data,
        tensor=_whole(row, "tp"),
        pipeline=len(stages),
        micro_batch=micro,
        accumulation=_accumulation(row, _whole(row, "gbs"), data * micro),
    )
    machine = machine_of(_gpu(row, catalog, "GH200-96GB"), network_bytes_per_s=25e9, gpus_per_node=4)
    setup = LayoutSetup(model=model, layout=layout, sequence=2048, machine=machine, fused_attention=False)
    return LayoutRow(setup, tokens_per_s=False)


_NEMO_GPUS = {"DGX-H100": ("H100-SXM", 8), "DGX-B200": ("B200", 8), "DGX-GB200": ("GB200", 72)}


def _nemo(row: TableRow, catalog: Catalog) -> LayoutRow:
    """NeMo's performance tables: DGX systems with one adapter of 400 Gb/s per GPU."""
    heading = row.text("heading")
    system = row.text("System") or heading.removeprefix("System: ")
    name = re.sub(r"\s*\(.*\)", "", row.text("Model") or heading.removeprefix("Model: "))
    if row.text("kind", "Pre-Training Performance") != "Pre-Training Performance":
        raise row.error("only pre-training is answered, not fine-tuning.")
    if system not in _NEMO_GPUS:
        raise row.error(f"system {system!r} is not known. Known are {', '.join(_NEMO_GPUS)}.")
    gpu, per_node = _NEMO_GPUS[system]
    precision = row.text("Precision", "FP8").upper()
    bits = 4 if "FP4" in precision else 8 if "FP8" in precision else 16
    tensor, pipeline, context = _whole(row, "TP"), _whole(row, "PP"), _whole(row, "CP")
    gpus, group = _whole(row, "#-GPUs"), tensor * pipeline * context
    if gpus % group:
        raise row.error(f"{gpus} GPUs are no multiple of {group}, those of one replica.")
    data = gpus // group
    micro = _whole(row, "MBS")
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=_whole(row, "EP", 1),
        interleaving=_whole(row, "VP", 1) if pipeline > 1 else 1,
        micro_batch=micro,
        accumulation=max(1, _whole(row, "GBS") // (data * micro)),
        zero=1 if row.text("FSDP", "0") in ("0", "1") else 3,
    )
    machine = machine_of(_gpu(row, catalog, gpu), bits=bits, network_bytes_per_s=50e9, gpus_per_node=per_node)
    model = _named(row, name, _NEMO_MODELS)
    setup = LayoutSetup(model=model, layout=layout, sequence=_whole(row, "Sequence Length"), machine=machine)
    return LayoutRow(setup, tokens_per_s=True, says_recomputation=False)


def _part(row: TableRow, column: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 10_000:
        raise row.error(f"column {column} holds {text[:40]!r}, expected whole numbers with / between them.")
    return int(text)


def _named(row: TableRow, name: str, models: Mapping[str, Transformer]) -> Transformer:
    if name not in models:
        raise row.error(f"the shape of model {name[:60]!r} is not known. Known are {', '.join(models)}.")
    return models[name]


def _accumulation(row: TableRow, global_batch: int, per_pass: int) -> int:
    if global_batch < per_pass:
        raise row.error(f"a global batch of {global_batch} is less than one pass of all replicas, {per_pass}.")
    return global_batch // per_pass


_READERS: Mapping[str, Callable[[TableRow, Catalog], LayoutRow]] = {
    _VTRAIN: _vtrain,
    _NANOTRON: _nanotron,
    _FSDP: _fsdp,
    _DEEPSPEED: _deepspeed,
    _NEMO: _nemo,
}
