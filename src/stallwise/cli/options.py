"""Options that several commands share, declared once: those that describe a set-up, and those of torchrun."""

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.analysis.analysis import Analysis
    from stallwise.analysis.target import Target, Workers


class Optimizer(enum.StrEnum):
    """Optimizers, by the state that they keep in memory."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"


def complete_gpu(incomplete: str) -> list[str]:
    """Names of GPUs and families that begin like this."""
    from stallwise.hardware import load_catalog

    gpus = load_catalog().gpus
    return _beginning({*gpus, *(gpu.family for gpu in gpus.values())}, incomplete)


def complete_instance(incomplete: str) -> list[str]:
    """Names of instance types that begin like this."""
    from stallwise.hardware import load_catalog

    return _beginning({name for _, name in load_catalog().instances}, incomplete)


def _beginning(names: set[str], incomplete: str) -> list[str]:
    return [name for name in sorted(names) if name.lower().startswith(incomplete.lower())]


GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="MODEL",
        help="Model of the GPU: H100, RTX4090, or its name as torch or nvidia-smi print it. Default: the run's.",
        autocompletion=complete_gpu,
    ),
]
Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", help="GPUs in all. Default: as many as the run had.")]
Nodes = Annotated[
    int | None,
    typer.Option("--nodes", metavar="N", help="Nodes that the GPUs are spread over. Default: as few as hold them."),
]
PerNode = Annotated[int | None, typer.Option("--gpus-per-node", metavar="N", help="GPUs of one node.")]
InstanceName = Annotated[
    str | None,
    typer.Option(
        "--instance",
        metavar="TYPE",
        help="Nodes of this instance type: GPU, links, cores and memory as listed in the catalog.",
        autocompletion=complete_instance,
    ),
]
Network = Annotated[str | None, typer.Option("--network", metavar="RATE", help="Rate between nodes: 25gbit.")]
Link = Annotated[str | None, typer.Option("--link", metavar="RATE", help="Rate between the GPUs of a node: 300GB/s.")]
Latency = Annotated[str | None, typer.Option("--latency", metavar="TIME", help="Start-up time of a message: 20us.")]
MachineFile = Annotated[
    Path | None,
    typer.Option("--machine", metavar="FILE", help="Links as measured by stallwise probe; they go before listed ones."),
]
HereMachine = Annotated[
    Path | None,
    typer.Option(
        "--here-machine",
        metavar="FILE",
        help="Machine record of the run's own machine: with --machine, compute, decoding and disk as measured on both.",
    ),
]
Batch = Annotated[
    str | None,
    typer.Option("--batch", metavar="N|Nx", help="Samples per GPU: 64, or a factor of the measured number: 2x."),
]
GlobalBatch = Annotated[
    int | None, typer.Option("--global-batch", metavar="N", help="Samples of all GPUs together, instead of --batch.")
]
WorkersText = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|auto",
        help="Loader workers per GPU; auto: as many as the node has cores for. Default: as measured, limited by cores.",
    ),
]
Cores = Annotated[int | None, typer.Option("--cores", metavar="N", help="CPU cores of a node.")]
Cached = Annotated[
    str | None, typer.Option("--cached", metavar="PERCENT", help="Fraction of the data found in memory: 80%.")
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory of a node: 64GiB; its page cache keeps part of the data."),
]
Storage = Annotated[
    str | None, typer.Option("--storage", metavar="Nx", help="Speed of storage, as a factor of the measured: 2x.")
]
Compute = Annotated[
    str | None, typer.Option("--compute", metavar="Nx", help="Speed of compute, as a factor of the measured: 2x.")
]
DatasetSize = Annotated[str | None, typer.Option("--dataset-size", metavar="SIZE", help="Size of the dataset: 140GB.")]
OptimizerName = Annotated[
    Optimizer, typer.Option("--optimizer", case_sensitive=False, help="Optimizer, for the memory that it needs.")
]


def target_of(job: "Analysis", options: Mapping[str, Any]) -> "Target":
    """The options above, by the names of their parameters, as a target."""
    from stallwise.hardware.machine import read_machine
    from stallwise.units import parse_bytes, parse_factor, parse_rate, parse_seconds, parse_share

    values = {name: value for name, value in options.items() if value is not None}

    def read(name: str, parse: Any) -> Any:
        return parse(values[name]) if name in values else None

    machine = values.get("machine")
    return job.target(
        gpu=values.get("gpu"),
        instance=values.get("instance"),
        gpus=values.get("gpus"),
        nodes=values.get("nodes"),
        gpus_per_node=values.get("gpus_per_node"),
        network_bytes_per_s=read("network", parse_rate),
        link_bytes_per_s=read("link", parse_rate),
        latency_s=read("latency", parse_seconds),
        machine=read("machine", read_machine),
        machine_name="" if machine is None else machine.name,
        own_machine=read("here_machine", read_machine),
        batch=read("batch", lambda text: batch_factor(job, text)),
        global_batch=read("global_batch", float),
        workers=read("workers", workers_of),
        cores=values.get("cores"),
        cached=read("cached", parse_share),
        memory_bytes=read("memory", parse_bytes),
        storage_speed=read("storage", parse_factor),
        compute_speed=read("compute", parse_factor),
        dataset_bytes=read("dataset_size", parse_bytes),
        optimizer=optimizer_of(values.get("optimizer", Optimizer.ADAM)),
        overlap=values.get("overlap"),
        copy=values.get("copy", "inline"),
    )


def batch_factor(job: "Analysis", text: str) -> float:
    """`2x` of the measured batch, or samples per GPU over the measured number."""
    from stallwise.units import parse_factor

    if text.strip().lower().endswith(("x", "×")):
        return parse_factor(text)
    try:
        samples = float(text)
    except ValueError:
        samples = 0.0
    if not 0 < samples < 1e9:
        raise InputError(f"--batch takes samples per GPU like 64, or a factor like 2x, not {text!r}.")
    return samples / job.model().samples


def workers_of(text: str) -> "Workers":
    """A number of loader workers, or `auto`."""
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise InputError(f"--workers takes a whole number from 0, or auto, not {text!r}.")
    return int(text)


def optimizer_of(optimizer: Optimizer) -> str:
    """The optimizer, named by the state that it keeps."""
    return "adam" if optimizer is Optimizer.ADAMW else optimizer.value


def seconds(text: str, option: str, *, least_s: float = 0.0, most_s: float = 10 * 365 * 86400.0) -> float:
    """A time that an option takes, above `least_s` where that is 0 and from there on where it is not."""
    from stallwise.report.format import show_seconds
    from stallwise.units import parse_seconds

    value_s = parse_seconds(text)
    if value_s > most_s or value_s < least_s or value_s <= 0:
        lowest = f"from {show_seconds(least_s)}" if least_s > 0 else "above 0"
        raise InputError(f"{option} takes a time {lowest} to {show_seconds(most_s)}, like 30s or 2min, not {text!r}.")
    return value_s


def usd(text: str | None) -> float | None:
    """`500usd`, `$500` or `500`; None stays None."""
    from stallwise.units import parse_usd

    return None if text is None else parse_usd(text)


Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write the answer as a self-contained page.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**31, help="Seed of the random numbers.")]
Epochs = Annotated[float | None, typer.Option("--epochs", metavar="N", help="Epochs of the job.")]
EpochSamples = Annotated[
    float | None,
    typer.Option("--epoch-samples", metavar="N", help="Samples of one epoch. Default: as the run recorded."),
]
JobSamples = Annotated[
    float | None, typer.Option("--samples", metavar="N", help="Samples of the whole job, instead of --epochs.")
]
Evaluation = Annotated[
    str | None, typer.Option("--evaluation", metavar="TIME", help="Time of the evaluation after every epoch: 40s.")
]
CheckpointTime = Annotated[
    str | None,
    typer.Option("--checkpoint-time", metavar="TIME", help="Time training pauses for each checkpoint: 5s."),
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option("--checkpoint-every", metavar="TIME", help="Time between checkpoints: 10min. Default: every epoch."),
]

HangAfter = Annotated[
    str, typer.Option("--hang-after", metavar="TIME", help="Time without a step after which the job counts as hung.")
]

_PANEL = "torchrun's options"

NprocPerNode = Annotated[
    str | None, typer.Option("--nproc-per-node", help="Processes on this node.", rich_help_panel=_PANEL)
]
Nnodes = Annotated[int, typer.Option("--nnodes", help="Nodes.", rich_help_panel=_PANEL)]
NodeRank = Annotated[int, typer.Option("--node-rank", help="This node's number.", rich_help_panel=_PANEL)]
MasterAddr = Annotated[str | None, typer.Option("--master-addr", help="Address of node 0.", rich_help_panel=_PANEL)]
MasterPort = Annotated[int | None, typer.Option("--master-port", help="Port on node 0.", rich_help_panel=_PANEL)]
RdzvBackend = Annotated[str | None, typer.Option("--rdzv-backend", help="Rendezvous back end.", rich_help_panel=_PANEL)]
RdzvEndpoint = Annotated[
    str | None, typer.Option("--rdzv-endpoint", help="Rendezvous HOST:PORT.", rich_help_panel=_PANEL)
]
RdzvId = Annotated[str | None, typer.Option("--rdzv-id", help="Rendezvous id.", rich_help_panel=_PANEL)]
