"""How much a job suffers from its placement: predicted steps on a machine, in a rack and beyond, from a run or a name.

The step is the what-if graph's (`model/whatif.py`): the job's gang on one machine, on as few machines as hold it in a
rack, on as many of several racks, each with the slowest link it crosses. Speeds are relative to the tightest placement
that the partition has for the gang:

    speed(level) = step(tightest) / step(level)
"""

import math
from dataclasses import dataclass
from pathlib import Path

from stallwise.cluster.rules import least_spread
from stallwise.cluster.topology import Cluster
from stallwise.errors import UnknownNameError
from stallwise.model.fabric import BETWEEN_LATENCY_S, INSIDE_LATENCY_S, Fabric, algorithms_of, link_of_rate
from stallwise.model.overlap import Overlap
from stallwise.model.whatif import Change, Job, what_if
from stallwise.slurm.ask import Ask
from stallwise.workload.layers import Layer, LayerTrace

_PARTS = 50
"""Layers a network known by name alone is cut into, all alike; DDP's buckets hide most of the difference."""
_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What the GPUs of the cluster are joined by, bytes/s in one direction."""

    gpu_bytes_per_s: float
    """Inside a machine."""
    machine_bytes_per_s: float
    """Between machines of a rack, per machine."""
    rack_bytes_per_s: float
    """Between racks, per machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A network by name, and how it is trained."""

    model: str
    gpu: str
    batch: int
    """Of each GPU."""
    tokens: int | None = None
    """Length of a sequence, of language models."""


def ask_of_run(folder: Path, gang: int, cluster: Cluster, links: Links) -> Ask:
    """What a job like that in a run is to say of itself."""
    from stallwise.record.job import job_of
    from stallwise.run.reader import Run

    job = job_of(Run.open(folder))
    return ask_of(job, job.name, gang, cluster, links)


def ask_of_name(named: Named, gang: int, cluster: Cluster, links: Links) -> Ask:
    """What a job that trains a standard network is to say of itself."""
    return ask_of(job_named(named), named.model, gang, cluster, links)


def ask_of(job: Job, model: str, gang: int, cluster: Cluster, links: Links) -> Ask:
    """Speeds by level, and the step at full speed."""
    steps = [_step_s(job, gang, cluster, links, level) for level in range(len(cluster.levels) + 1)]
    speeds = tuple(round(min(1.0, steps[0] / step), 4) for step in steps)
    return Ask(speeds=speeds, model=model, step_s=float(f"{steps[0]:.4g}"))


def _step_s(job: Job, gang: int, cluster: Cluster, links: Links, level: int) -> float:
    """One step when the gang must go out to a level."""
    machines = least_spread(cluster, gang, level).spans[0]
    # Wider than the rack all hops are taken to be as slow as the slowest.
    rate = links.machine_bytes_per_s if _inside_rack(cluster, gang, level) else links.rack_bytes_per_s
    fabric = Fabric(
        gpus_per_node=math.ceil(gang / machines),
        inside=link_of_rate(links.gpu_bytes_per_s, INSIDE_LATENCY_S, "given"),
        between=link_of_rate(rate, BETWEEN_LATENCY_S, "given"),
        algorithms=algorithms_of(job.backend),
    )
    return what_if(job, Change(), fabric, gang).step_s


def _inside_rack(cluster: Cluster, gang: int, level: int) -> bool:
    spans = least_spread(cluster, gang, level).spans
    return all(count == 1 for count in spans[1:])


def job_named(named: Named) -> Job:
    """A job of a network that is known by name: its compute as the tables predict it, its gradients spread evenly."""
    compute_s, parameters = _predicted(named)
    layers = [
        Layer(
            name=f"part {i + 1}",
            forward_s=compute_s / 3 / _PARTS,
            backward_s=compute_s * 2 / 3 / _PARTS,
            gradient_bytes=round(_BYTES * parameters / _PARTS),
        )
        for i in range(_PARTS)
    ]
    trace = LayerTrace.of(layers, source=named.model)
    return Job(name=named.model, trace=trace, overlap=Overlap(scheme="ddp"), gpus=1, backend="nccl")


def _predicted(named: Named) -> tuple[float, float]:
    """Seconds of compute in a step, and parameters."""
    from stallwise.hardware.catalog import load_catalog
    from stallwise.record.table_forecast import forecast_rows
    from stallwise.record.table_rows import FORMATS, TableRow
    from stallwise.workload.zoo import image_networks
    from stallwise.workload.zoo_shapes import LANGUAGE_MODELS

    fields = {"model": named.model, "gpu": named.gpu, "batch": str(named.batch)}
    if named.model in LANGUAGE_MODELS:
        kind, parameters = "llm", LANGUAGE_MODELS[named.model].parameters
        fields |= {"seqlen": str(named.tokens or 512), "mode": "train"}
    elif named.model in image_networks():
        network = image_networks()[named.model]
        kind, parameters = "image_train", network.parameters
        fields |= {"img_size": str(network.image_size), "precision": "amp"}
    else:
        raise UnknownNameError("network", named.model, [*LANGUAGE_MODELS, *image_networks()])
    form = next(form for form in FORMATS if form.name == kind)
    (found,) = forecast_rows(form, [TableRow(fields, 1)], load_catalog())
    return (found.predicted / 1e3 if kind == "llm" else named.batch / found.predicted), parameters
