"""Submission of jobs that describe how their speed depends on placement.

`sbatch_command` is sbatch with a hold and the job's description in its comment; nothing else is changed or hidden.

The description is predicted from a run or a network's name: steps on a machine, in a rack and beyond. The step is
`Analysis.on`'s: the job's gang on one machine, on as few machines as hold it in a rack, on as many of several racks,
each with the slowest link it crosses. Speeds are relative to the tightest placement that the partition has for the
gang:

    speed(level) = step(tightest) / step(level)
"""

import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stallwise.analysis.analysis import Analysis, analysis_of, open_run
from stallwise.analysis.target import Target
from stallwise.cluster.engine.build import least_spread
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, MissingFeatureError, UnknownNameError
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob
from stallwise.slurm.facts import JobDescription, SlurmError, comment_of
from stallwise.workload.layers import Layer, LayerTrace

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def sbatch_command(
    description: JobDescription, arguments: Sequence[str], *, gpus: int | None, nodes: str | None, partition: str | None
) -> list[str]:
    """Return the sbatch command. The user's own arguments come last, so that they override ours.

    Without `nodes` a gang may lie on anything from one node to one GPU per node: the policy decides.
    """
    if not arguments:
        raise InputError("No script was given. Name it after the options, as for sbatch.")
    if nodes is not None and (gpus is None or not _fits(nodes, gpus)):
        raise InputError(
            f"{nodes} nodes do not fit the number of GPUs: give a number or a range like 1-4 of nodes.",
            fields=("nodes", "gpus"),
        )
    command = ["sbatch", "--hold", "--requeue", f"--comment={comment_of(description)}"]
    if gpus is not None:
        command += [f"--gpus={gpus}", f"--nodes={nodes or f'1-{gpus}'}"]
    if partition is not None:
        command.append(f"--partition={partition}")
    return [*command, *arguments]


def _fits(nodes: str, gpus: int) -> bool:
    match = _RANGE.fullmatch(nodes)
    return match is not None and 1 <= int(match[1]) <= min(int(match[2] or match[1]), gpus)


def submit(command: Sequence[str], timeout_s: float = 60.0) -> str:
    """Run sbatch; returns what it prints on success."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except FileNotFoundError:
        raise MissingFeatureError("sbatch is not installed here. Run this where Slurm's commands are.") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"sbatch gave no answer within {timeout_s:g} s. Check with squeue whether the job was accepted."
        ) from None
    if process.returncode != 0:
        message = " ".join(process.stderr.split()) or f"exit code {process.returncode}"
        raise SlurmError(f"sbatch refused the job: {message}")
    return process.stdout.strip()


_PARTS = 50
"""Equal layers that a standard network is cut into; DDP's buckets hide most of the difference."""
_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links between the GPUs of the cluster, bytes/s in one direction."""

    gpu_bytes_per_s: float
    """Inside a machine."""
    machine_bytes_per_s: float
    """Between machines of a rack, per machine."""
    rack_bytes_per_s: float
    """Between racks, per machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedNetwork:
    """A standard network, and how it is trained."""

    model: str
    gpu: str
    batch: int
    """Samples per GPU."""
    tokens: int | None = None
    """Length of a sequence, of language models."""


def describe_run(folder: Path, gang: int, cluster: Cluster, links: Links) -> JobDescription:
    """Return the description of a job like that of a run."""
    job = open_run(folder)
    return describe(job, job.model().job.name, gang, cluster, links)


def describe_network(network: NamedNetwork, gang: int, cluster: Cluster, links: Links) -> JobDescription:
    """Return the description of a job that trains a standard network."""
    return describe(analysis_of(job_of_network(network)), network.model, gang, cluster, links)


def describe(job: Analysis, model: str, gang: int, cluster: Cluster, links: Links) -> JobDescription:
    """Return the description with speeds by level, and the step at full speed."""
    steps = [_step_s(job, gang, cluster, links, level) for level in range(len(cluster.levels) + 1)]
    speeds = tuple(round(min(1.0, steps[0] / step), 4) for step in steps)
    return JobDescription(speeds=speeds, model=model, step_s=float(f"{steps[0]:.4g}"))


def _step_s(job: Analysis, gang: int, cluster: Cluster, links: Links, level: int) -> float:
    """Return the step time when the gang spans a level."""
    machines = least_spread(cluster, gang, level).spans[0]
    # Wider than the rack all hops are taken to be as slow as the slowest.
    rate = links.machine_bytes_per_s if _inside_rack(cluster, gang, level) else links.rack_bytes_per_s
    target = Target(
        gpus=gang,
        gpus_per_node=math.ceil(gang / machines),
        link_bytes_per_s=links.gpu_bytes_per_s,
        network_bytes_per_s=rate,
    )
    return job.on(target).step_s


def _inside_rack(cluster: Cluster, gang: int, level: int) -> bool:
    spans = least_spread(cluster, gang, level).spans
    return all(count == 1 for count in spans[1:])


def job_of_network(network: NamedNetwork) -> MeasuredJob:
    """Return a job of a standard network: compute as the tables predict it, gradients spread evenly."""
    compute_s, parameters = _predicted(network)
    layers = [
        Layer(
            name=f"part {i + 1}",
            forward_s=compute_s / 3 / _PARTS,
            backward_s=compute_s * 2 / 3 / _PARTS,
            gradient_bytes=round(_BYTES * parameters / _PARTS),
        )
        for i in range(_PARTS)
    ]
    trace = LayerTrace.of(layers, source=network.model)
    return MeasuredJob(name=network.model, trace=trace, overlap=Overlap(scheme="ddp"), gpus=1, backend="nccl")


def _predicted(network: NamedNetwork) -> tuple[float, float]:
    """Return seconds of compute in a step, and parameters."""
    from stallwise.analysis.table_forecast import forecast_rows
    from stallwise.analysis.tables import FORMATS, TableRow
    from stallwise.hardware.catalog import load_catalog
    from stallwise.workload.shapes import LANGUAGE_MODELS
    from stallwise.workload.zoo import image_networks

    fields = {"model": network.model, "gpu": network.gpu, "batch": str(network.batch)}
    if network.model in LANGUAGE_MODELS:
        kind, parameters = "llm", LANGUAGE_MODELS[network.model].parameters
        fields |= {"seqlen": str(network.tokens or 512), "mode": "train"}
    elif network.model in image_networks():
        image_network = image_networks()[network.model]
        kind, parameters = "image_train", image_network.parameters
        fields |= {"img_size": str(image_network.image_size), "precision": "amp"}
    else:
        raise UnknownNameError("network", network.model, [*LANGUAGE_MODELS, *image_networks()])
    form = next(form for form in FORMATS if form.name == kind)
    (forecast,) = forecast_rows(form, [TableRow(fields, 1)], load_catalog())
    return (forecast.predicted / 1e3 if kind == "llm" else network.batch / forecast.predicted), parameters
