"""The set-up of a prediction, and the nodes it is made of.

One default per assumption, for every command: what is not specified stays as measured, per GPU. A target with an
instance type or a GPU has that machine's compute, links, cores, memory and storage. A link comes from the first of
these that has it: a rate that was given, a machine record, the instance's listed rate, the GPU's own, the run's own
exchange.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from stallwise.analysis.compute import (
    ComputeTime,
    MachineRatios,
    as_measured,
    compute_time,
    cost_of,
    machine_ratios,
    precision_on,
)
from stallwise.analysis.job import JobModel
from stallwise.errors import InputError
from stallwise.hardware.board import Board, board_of_gpu, narrowest_hop
from stallwise.hardware.coefficients import FittedCoefficients, load_fitted
from stallwise.hardware.gpu import Gpu, Link
from stallwise.hardware.instance import Instance, board_of
from stallwise.hardware.machine import LinkRecord, MachineRecord, Scope
from stallwise.model.exchange.attained import ATTAINED_SOURCE, attained_fraction
from stallwise.model.exchange.fabric import (
    BETWEEN_LATENCY_S,
    DDP_COPY_S_PER_BYTE,
    GLOO,
    INSIDE_LATENCY_S,
    LISTED_SOURCE,
    NCCL,
    Fabric,
    KnownLink,
    Origin,
    algorithms_of,
    link_of_rate,
    listed_factors,
)
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob, OwnLinks
from stallwise.model.step.setups import Copy
from stallwise.sentences import Sentence
from stallwise.units import show_percent

Workers = int | Literal["auto"] | None
"""Loader workers per GPU: a number, as many as the node has cores for, or None: as measured, limited by the cores."""

USUAL_GPUS_PER_NODE = 8
"""GPUs in a node of which only the GPU's model is named: as in most servers of the catalog."""

_POWERS = tuple(2**i for i in range(1, 10))
"""Numbers of GPUs of one machine, fewer than all of them, that have a link of their own."""
_MOST = 1_000_000
"""GPUs, nodes, cores or workers at most: ten times the largest cluster."""
_OPTIONS = {"compute_speed": "compute", "storage_speed": "storage", "memory_bytes": "memory"}
"""Fields whose command-line option has another name."""
_SCOPES: dict[Scope, str] = {"inside": "between the GPUs of a node", "between": "between nodes", "all": "of all ranks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A set-up to predict. None: not specified, and as measured (or as listed, on another machine).

    Examples:
        >>> import stallwise
        >>> job = stallwise.open_run("examples/runs/images")
        >>> four = stallwise.Target(gpus=4, network_bytes_per_s=125e6, batch=0.5)
        >>> job.on(four).samples_per_s > job.profile.samples_per_s
        True
    """

    gpu: Gpu | None = None
    """The GPU; an instance type brings its own."""
    instance: Instance | None = None
    gpus: int | None = None
    """Number of GPUs in all."""
    nodes: int | None = None
    gpus_per_node: int | None = None
    network_bytes_per_s: float | None = None
    """Rate between nodes."""
    link_bytes_per_s: float | None = None
    """Rate between the GPUs of a node."""
    latency_s: float | None = None
    fabric: Fabric | None = None
    """The links themselves, instead of any other source."""
    machine: MachineRecord | None = None
    """Measured values of the target machine; they go before listed ones."""
    machine_name: str = ""
    own_machine: MachineRecord | None = None
    """Record of the run's own machine, which `machine` is compared with."""
    batch: float | None = None
    """Samples per GPU, as a factor of the measured number."""
    global_batch: float | None = None
    """Samples of a step of all GPUs together, instead."""
    workers: Workers = None
    cores: int | None = None
    """CPU cores of a node."""
    cached: float | None = None
    """Fraction of the dataset that is found in memory."""
    memory_bytes: float | None = None
    """Memory of a node, which decides what its page cache keeps; needs the size of the dataset."""
    storage_speed: float | None = None
    """Speed of storage as a factor of the measured one."""
    compute_speed: float | None = None
    """Speed of compute as a factor of the measured one, whatever the GPU."""
    overlap: Overlap | None = None
    copy: Copy = "inline"
    dataset_bytes: float | None = None
    optimizer: str = "adam"
    parameters: float | None = None
    """Of the model, where the run did not count them."""

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes", "gpus_per_node", "cores"):
            count = getattr(self, name)
            if count is not None and not 1 <= count <= _MOST:
                raise InputError(f"{name} must be a whole number from 1 to {_MOST:,}, not {count:,}.", fields=(name,))
        for name in ("network", "link"):
            rate = getattr(self, f"{name}_bytes_per_s")
            if rate is not None and not 0 < rate < math.inf:
                raise InputError(f"The rate of a {name} must be above 0, not {rate:g} bytes/s.", fields=(name,))
        if isinstance(self.workers, int) and not 0 <= self.workers <= _MOST:
            raise InputError(
                f"workers must be a whole number from 0 to {_MOST:,}, or auto, not {self.workers:,}.",
                fields=("workers",),
            )
        if self.batch is not None and self.global_batch is not None:
            raise InputError(
                "Give the batch of each GPU or the global batch of all of them, not both.",
                fields=("batch", "global_batch"),
            )
        for name in ("batch", "global_batch", "compute_speed", "storage_speed", "memory_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} must be a number above 0, not {value:g}.", fields=(_OPTIONS.get(name, name),))
        if self.own_machine is not None and self.machine is None:
            raise InputError(
                "The record of the run's own machine needs the record of the target machine beside it.",
                fields=("machine", "here_machine"),
            )
        if self.gpu is not None and self.instance is not None and self.instance.gpu != self.gpu:
            raise InputError(
                f"{self.instance.name} has {self.instance.gpu.name}, not {self.gpu.name}. Give one of the two."
            )

    @property
    def device(self) -> Gpu | None:
        """The GPU of the target; None: the run's own."""
        return self.instance.gpu if self.instance is not None else self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A kind of machine: what a step on several of them depends on."""

    gpu: Gpu | None
    """None: the run's own device, whatever it is."""
    instance: Instance | None
    gpus: int
    """GPUs of the machine."""
    compute: ComputeTime
    fabric: Fabric
    cores: int | None
    memory_bytes: float | None
    storage_bytes_per_s: float | None
    """What one machine reads from disk or volume; None: no source gives it."""
    measured: bool = False
    """From a machine record."""
    ratios: MachineRatios = field(default_factory=MachineRatios)
    """Times on that machine over times on the run's own."""

    @property
    def networked(self) -> bool:
        """Whether the rate between machines is known."""
        return self.fabric.between is not None

    @property
    def linked(self) -> bool:
        """Whether the rate between its GPUs is known; without it, one of them can be used."""
        return self.gpus == 1 or self.fabric.inside is not None

    @property
    def prepare(self) -> float:
        """How many times as long a core takes for a sample as one of the run's; 1 where it was not measured."""
        return self.ratios.decode or 1.0

    @property
    def storage(self) -> float:
        """How many times as long its storage blocks a loader as that of the run; 1 where it was not measured."""
        return self.ratios.disk or 1.0


def node_of(model: JobModel, target: Target, own: OwnLinks, gpus_per_node: int) -> Node:
    """The machine of a target, with `gpus_per_node` GPUs; an `InputError` where its GPU cannot be predicted."""
    gpu, instance, record = target.device, target.instance, target.machine
    ratios = MachineRatios()
    if record is not None and target.own_machine is not None:
        ratios = machine_ratios(record, target.own_machine, precision_on(model, gpu))
    host = record.hosts[0] if record is not None and record.hosts else None
    memory = (
        target.memory_bytes
        or (host.memory_bytes if host else None)
        or (instance.memory_bytes if instance else model.node_memory_bytes)
    )
    return Node(
        gpu=gpu,
        instance=instance,
        gpus=gpus_per_node,
        compute=_compute(model, target, ratios),
        fabric=fabric_of(model.job, target, own, gpus_per_node),
        cores=target.cores
        or (host.cores if host else None)
        or (instance.vcpus if instance else _cores(model.job, target, gpus_per_node)),
        memory_bytes=None if memory is None else float(memory),
        storage_bytes_per_s=(record.disk_read_bytes_per_s if record else None) or _storage_bytes_per_s(instance),
        measured=record is not None,
        ratios=ratios,
    )


def _cores(job: MeasuredJob, target: Target, gpus_per_node: int) -> int | None:
    """Cores of a node that nothing says: those of the run's node, or as many per GPU where another GPU is named."""
    if job.cores_per_node is None or target.gpu is None:
        return job.cores_per_node
    return max(1, job.cores_per_node * gpus_per_node // job.gpus_per_node)


def _compute(model: JobModel, target: Target, ratios: MachineRatios) -> ComputeTime:
    gpu = target.device
    if target.compute_speed is not None:
        return as_measured(model, target.compute_speed)
    if gpu is not None and not (model.work is None and model.source is None and model.job.step is None):
        hosts = target.machine.hosts if target.machine is not None else ()
        return compute_time(model, gpu, ratios, hosts[0].cpu_model if hosts else None)
    measured = as_measured(model, 1 / ratios.compute if ratios.compute else 1.0)
    if gpu is not None:
        # A layer file says nothing of the GPU it was made on.
        note = Sentence(
            "compute.as-in-file", f"Compute stays as in the file, which says nothing about the speed of {gpu.name}."
        )
        return replace(measured, note=note)
    if ratios.compute is None:
        return measured
    return replace(measured, low=measured.low * ratios.compute_low, high=measured.high * ratios.compute_high)


def layout_of(job: MeasuredJob, target: Target) -> tuple[int, int]:
    """GPUs in all and per node: as specified, else as follows from what was, else as measured."""
    gpus, nodes, per_node = target.gpus, target.nodes, target.gpus_per_node
    if gpus and nodes and not per_node:
        if gpus % nodes:
            raise InputError(f"{gpus} GPUs cannot be spread evenly over {nodes} nodes. Give a multiple of {nodes}.")
        per_node = gpus // nodes
    per_node = per_node or _per_node(job, target)
    if target.instance is not None and per_node > target.instance.gpu_count:
        raise InputError(f"{target.instance.name} has {target.instance.gpu_count} GPUs, not {per_node}.")
    gpus = gpus or (nodes * per_node if nodes else None) or _measured_gpus(job, target, per_node)
    if nodes and gpus != nodes * per_node:
        raise InputError(
            f"{nodes} nodes of {per_node} GPUs are {nodes * per_node} GPUs, not {gpus}. Leave one of them out."
        )
    return gpus, per_node


def _per_node(job: MeasuredJob, target: Target) -> int:
    if target.instance is not None:
        return target.instance.gpu_count
    if target.fabric is not None:
        return target.fabric.gpus_per_node
    one_node = (job.gpus or 1) <= job.gpus_per_node
    if target.gpu is not None and target.machine is None and target.gpus and not target.nodes and one_node:
        # Other machines than the run's: its own count of GPUs in a node says nothing of them.
        return min(target.gpus, USUAL_GPUS_PER_NODE)
    if job.gpus is not None and job.gpus > 1:
        return job.gpus_per_node
    if target.machine is not None:
        return max(1, target.machine.ranks // target.machine.nodes)
    only_inside = target.network_bytes_per_s is None and target.link_bytes_per_s is not None
    return target.gpus if only_inside and target.gpus and not target.nodes else 1


def _measured_gpus(job: MeasuredJob, target: Target, per_node: int) -> int:
    """As many as the run had; a whole node where only a kind of node is named."""
    if target.instance is not None or (target.gpus_per_node and (job.gpus or 1) == 1):
        return per_node
    return job.gpus or 1


def fabric_of(job: MeasuredJob, target: Target, own: OwnLinks, per_node: int) -> Fabric:
    """The links of nodes of `per_node` GPUs, each from the best source there is."""
    if target.fabric is not None:
        return replace(target.fabric, gpus_per_node=per_node)
    elsewhere = target.device is not None
    inside = _first(
        lambda: _rated(target.link_bytes_per_s, target.latency_s, INSIDE_LATENCY_S, "given"),
        lambda: _of_machine(target, "inside"),
        # A link that stands for both tiers of the run stays in both.
        lambda: None if own.merged and target.instance is None else _of_board(target, per_node),
        lambda: own.inside if target.instance is None and (own.merged or not elsewhere) else None,
    )
    between = _first(
        lambda: _rated(target.network_bytes_per_s, target.latency_s, BETWEEN_LATENCY_S, "given"),
        lambda: _of_machine(target, "all") if per_node > 1 and _same_nodes(target, per_node) else None,
        lambda: _of_machine(target, "between"),
        lambda: _of_instance(target),
        lambda: None if target.instance is not None else own.between,
    )
    fewer: tuple[tuple[int, KnownLink], ...] = ()
    if inside is not None and inside.origin == "listed":
        links = [(count, _of_board(target, count)) for count in _POWERS if count < per_node]
        fewer = tuple((count, link) for count, link in links if link is not None)
    algorithms = _algorithms(job, target)
    on_host = algorithms == GLOO and (job.gpus or 1) == 1  # of several processes the copies are in the record
    return Fabric(
        gpus_per_node=per_node,
        inside=inside,
        fewer=fewer,
        between=between,
        algorithms=algorithms,
        copy_s_per_byte=DDP_COPY_S_PER_BYTE if on_host else 0.0,
    )


def _algorithms(job: MeasuredJob, target: Target) -> tuple[Literal["ring", "double tree"], ...]:
    if target.machine is not None and target.machine.links:
        return algorithms_of(target.machine.links[0].backend)  # type: ignore[return-value]
    # GPUs talk by NCCL, whatever the run used.
    return NCCL if target.device is not None else algorithms_of(job.backend)  # type: ignore[return-value]


def own_fabric(job: MeasuredJob, own: OwnLinks) -> Fabric:
    """The links of the run itself."""
    return Fabric(
        gpus_per_node=job.gpus_per_node,
        inside=own.inside,
        between=own.between,
        algorithms=algorithms_of(job.backend),
    )


def link_of_gpu(gpu: Gpu) -> float | None:
    """Between the GPUs of one machine of which nothing else is known: NVLink, AMD's fabric, else PCIe; bytes/s."""
    if gpu.nvlink_bytes_per_s and gpu.nvlink_bridge_gpus is None:
        return gpu.nvlink_bytes_per_s
    if gpu.infinity_fabric_bytes_per_s is not None:
        return gpu.infinity_fabric_bytes_per_s
    return gpu.host_link.bytes_per_s if gpu.host_link else None


def check_links(job: MeasuredJob, fabric: Fabric, target: Target, own: OwnLinks, gpus: int) -> None:
    """Raise an `InputError` where a link that the exchange crosses is not known, or known for the run alone.

    Links of which only a bound is known are good for the set-up they were measured on. A link that stands for both
    tiers cannot stay in one while the other is changed: nobody knows which was the slower.
    """
    try:
        origins = {link.origin for link in fabric.used(gpus)}
    except InputError as error:
        if target.machine is None:
            raise
        scopes = " and ".join(_SCOPES[link.scope] for link in target.machine.links) or "nowhere"
        raise InputError(
            f"{target.machine_name} holds a link {scopes}, which is not enough. {error}", fields=error.fields
        ) from None
    if own.merged and "fitted" in origins and len(origins) > 1:
        raise InputError(
            "Exchange inside and between nodes was not told apart in this run, so one of them cannot be changed alone. "
            "Give both rates.",
            fields=("link", "network"),
        )
    if own.caveat is None or (gpus == job.gpus and fabric.gpus_per_node == job.gpus_per_node):
        return
    if "fitted" in origins:
        raise InputError(
            f"{own.caveat} Give the rate of the link, or a machine record of a probe.",
            fields=("link", "network", "machine"),
        )


def link_notes(fabric: Fabric, own: OwnLinks, gpus: int) -> tuple[Sentence, ...]:
    """How the links came to be known, in sentences."""
    used = dict.fromkeys(fabric.used(gpus))
    origins = {link.origin for link in used}
    notes: list[Sentence] = []
    if "fitted" in origins:
        notes += [*own.notes, *([own.caveat] if own.caveat else [])]
    parts = {link.attained for link in used if link.attained is not None}
    if parts:
        notes.append(
            Sentence(
                "links.attained",
                f"An exchange inside a machine attains {show_percent(min(parts))} of the listed rate; its interval is "
                f"how far {ATTAINED_SOURCE} were off.",
                attained=min(parts),
            )
        )
    if any(link.origin in ("listed", "given") and link.attained is None for link in used):
        notes.append(
            Sentence("links.uncertain", f"How far an exchange by a listed or given rate may be off: {LISTED_SOURCE}.")
        )
    notes += [
        Sentence(
            "links.other-ranks",
            f"A link measured on {link.ranks} ranks is taken to {gpus} by the formulas of ring and tree.",
            ranks=link.ranks,
            gpus=gpus,
        )
        for link in used
        if link.origin == "measured" and link.ranks != gpus
    ]
    return tuple(notes)


def _first(*sources: Callable[[], KnownLink | None]) -> KnownLink | None:
    return next((link for link in (source() for source in sources) if link is not None), None)


def _rated(
    rate: float | None, latency_s: float | None, usual_s: float, origin: Origin, source: str = ""
) -> KnownLink | None:
    if rate is None:
        return None
    low, high = listed_factors(rate)
    return link_of_rate(rate, usual_s if latency_s is None else latency_s, origin, source, low=low, high=high)


def _same_nodes(target: Target, per_node: int) -> bool:
    return target.machine is not None and target.machine.ranks == per_node * target.machine.nodes


def _of_machine(target: Target, scope: Scope) -> KnownLink | None:
    link: LinkRecord | None = target.machine.link(scope) if target.machine else None
    if link is None:
        return None
    return KnownLink(
        cost=cost_of(link),
        ranks=link.ranks,
        origin="measured",
        source=f"on {link.ranks} ranks, {target.machine_name}",
        low=link.fit.low,
        high=link.fit.high,
    )


def _of_instance(target: Target) -> KnownLink | None:
    """The listed network of the instance type."""
    instance = target.instance
    if instance is None:
        return None
    rate = instance.network.bytes_per_s if instance.network else None
    return _rated(rate, target.latency_s, BETWEEN_LATENCY_S, "listed", f"for {instance.name}")


def _of_board(target: Target, gpus: int) -> KnownLink | None:
    """What a ring through `gpus` of one machine attains, by what they share; None where no rate is listed."""
    instance, gpu = target.instance, target.device
    if gpu is None or gpus <= 1 or (target.machine is not None and instance is None):
        return None
    board: Board = (board_of(instance) if instance is not None else None) or board_of_gpu(gpu, gpus)
    host_link: Link | None = (instance.host_link if instance is not None else None) or gpu.host_link
    hop = narrowest_hop(board, host_link, gpus)
    if hop is None:
        return None
    fitted = _links()
    part = attained_fraction(hop.link, hop.streams, fitted.weights)
    low, high, _ = fitted.spreads["link" if hop.link == "host" else "link|direct"]
    latency_s = INSIDE_LATENCY_S if target.latency_s is None else target.latency_s
    source = f"for {instance.name if instance is not None else gpu.name}"
    # A time above the prediction is a rate below it, but none is above the listed one.
    low, high = max(part, math.exp(low)), math.exp(high)
    link = link_of_rate(hop.bytes_per_s * part, latency_s, "listed", source, low=low, high=high)
    return replace(link, attained=part)


def _links() -> FittedCoefficients:
    return load_fitted("scaling")


def _storage_bytes_per_s(instance: Instance | None) -> float | None:
    """Local disks where their rate is listed, else the volumes'."""
    if instance is None:
        return None
    storage = instance.storage
    rates = [rate for rate in (storage.local_read_bytes_per_s, storage.block_bytes_per_s) if rate]
    return max(rates) if rates else None
