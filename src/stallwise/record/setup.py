"""The set-up a prediction is asked for: how many GPUs on which nodes, and what is known of the links between them.

A link comes from the first of these that has it: a rate that was given, a machine record, the instance's listed rate,
the run's own exchange.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.hardware.instance import Instance, gpu_link_bytes_per_s
from stallwise.hardware.machine import LinkRecord, MachineRecord, Scope
from stallwise.model.calibrate import OwnLinks
from stallwise.model.fabric import (
    BETWEEN_LATENCY_S,
    INSIDE_LATENCY_S,
    LISTED_SOURCE,
    Fabric,
    KnownLink,
    Origin,
    algorithms_of,
    link_of_rate,
    listed_factors,
)
from stallwise.model.whatif import Job
from stallwise.record.link_points import cost_of

_WORDS: dict[Scope, str] = {"inside": "between the GPUs of a node", "between": "between nodes", "all": "of all ranks"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Numbers of GPUs and links as the user gave them; None: not said."""

    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    network_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    latency_s: float | None = None
    instance: Instance | None = None
    machine: MachineRecord | None = None
    machine_name: str = ""

    def __post_init__(self) -> None:
        for name in ("gpus", "nodes", "gpus_per_node"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError(f"--{name.replace('_', '-')} takes a whole number from 1, not {count}.")
        for name in ("network", "link"):
            rate = getattr(self, f"{name}_bytes_per_s")
            if rate is not None and not 0 < rate < math.inf:
                raise InputError(f"--{name} takes a rate above 0, not {rate:g} bytes/s.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is to be predicted."""

    gpus: int | None
    fabric: Fabric | None
    said: tuple[str, ...] = ()
    """How the links came to be known."""


def setup_of(job: Job, asked: Asked, own: OwnLinks) -> Setup:
    """Where the job is to run; an `InputError` where a link that its GPUs need is not known."""
    if job.gpus is None and asked == Asked():
        return Setup(gpus=None, fabric=None)
    gpus, per_node = layout_of(job, asked)
    fabric = fabric_of(job, asked, own, per_node)
    _check_known(fabric, asked, gpus)
    _check_own(job, fabric, own, gpus)
    return Setup(gpus=gpus, fabric=fabric, said=_said(fabric, own, gpus))


def layout_of(job: Job, asked: Asked) -> tuple[int, int]:
    """GPUs in all and per node: what was said, else what follows, else as measured."""
    gpus, nodes, per_node = asked.gpus, asked.nodes, asked.gpus_per_node
    if gpus and nodes and not per_node:
        if gpus % nodes:
            raise InputError(f"{gpus} GPUs cannot be spread evenly over {nodes} nodes. Give a multiple of {nodes}.")
        per_node = gpus // nodes
    per_node = per_node or _per_node(job, asked)
    gpus = gpus or (nodes * per_node if nodes else None) or _measured_gpus(job, asked, per_node)
    if nodes and gpus != nodes * per_node:
        raise InputError(
            f"{nodes} nodes of {per_node} GPUs are {nodes * per_node} GPUs, not {gpus}. Leave one of them out."
        )
    return gpus, per_node


def _per_node(job: Job, asked: Asked) -> int:
    if asked.instance is not None:
        return asked.instance.gpu_count
    if job.gpus is not None and job.gpus > 1:
        return job.gpus_per_node
    if asked.machine is not None:
        return max(1, asked.machine.ranks // asked.machine.nodes)
    only_inside = asked.link_bytes_per_s is not None and asked.network_bytes_per_s is None
    return asked.gpus if only_inside and asked.gpus and not asked.nodes else 1


def _measured_gpus(job: Job, asked: Asked, per_node: int) -> int:
    """As many as the run had; a whole node where only a kind of node is named."""
    if asked.instance is not None or (asked.gpus_per_node and (job.gpus or 1) == 1):
        return per_node
    return job.gpus or 1


def fabric_of(job: Job, asked: Asked, own: OwnLinks, per_node: int) -> Fabric:
    """The links of nodes of `per_node` GPUs, each from the best source there is."""
    inside = _first(
        lambda: _rated(asked.link_bytes_per_s, asked.latency_s, INSIDE_LATENCY_S, "given"),
        lambda: _of_machine(asked, "inside"),
        lambda: _of_instance(asked, "inside"),
        lambda: own.inside,
    )
    between = _first(
        lambda: _rated(asked.network_bytes_per_s, asked.latency_s, BETWEEN_LATENCY_S, "given"),
        lambda: _of_machine(asked, "all") if per_node > 1 and _same_nodes(asked, per_node) else None,
        lambda: _of_machine(asked, "between"),
        lambda: _of_instance(asked, "between"),
        lambda: own.between,
    )
    backend = next((link.backend for link in asked.machine.links), None) if asked.machine else job.backend
    return Fabric(gpus_per_node=per_node, inside=inside, between=between, algorithms=algorithms_of(backend))


def own_fabric(job: Job, own: OwnLinks) -> Fabric:
    """The links of the run itself."""
    return Fabric(
        gpus_per_node=job.gpus_per_node,
        inside=own.inside,
        between=own.between,
        algorithms=algorithms_of(job.backend),
    )


def _first(*sources: Callable[[], KnownLink | None]) -> KnownLink | None:
    return next((link for link in (source() for source in sources) if link is not None), None)


def _rated(
    rate: float | None, latency_s: float | None, usual_s: float, origin: Origin, source: str = ""
) -> KnownLink | None:
    if rate is None:
        return None
    low, high = listed_factors(rate)
    return link_of_rate(rate, usual_s if latency_s is None else latency_s, origin, source, low=low, high=high)


def _same_nodes(asked: Asked, per_node: int) -> bool:
    return asked.machine is not None and asked.machine.ranks == per_node * asked.machine.nodes


def _of_machine(asked: Asked, scope: Scope) -> KnownLink | None:
    link: LinkRecord | None = asked.machine.link(scope) if asked.machine else None
    if link is None:
        return None
    return KnownLink(
        cost=cost_of(link),
        ranks=link.ranks,
        origin="measured",
        source=f"on {link.ranks} ranks, {asked.machine_name}",
        low=link.fit.low,
        high=link.fit.high,
    )


def _of_instance(asked: Asked, scope: Scope) -> KnownLink | None:
    instance = asked.instance
    if instance is None:
        return None
    usual_s = INSIDE_LATENCY_S if scope == "inside" else BETWEEN_LATENCY_S
    network = instance.network.bytes_per_s if instance.network else None
    rate = gpu_link_bytes_per_s(instance) if scope == "inside" else network
    return _rated(rate, asked.latency_s, usual_s, "listed", f"for {instance.name}")


def _check_own(job: Job, fabric: Fabric, own: OwnLinks, gpus: int) -> None:
    """Links of which only a bound is known are good for the set-up they were measured on, and for no other.

    A link that stands for both tiers cannot stay in one while the other is changed: nobody knows which was the slower.
    """
    origins = {link.origin for link in fabric.used(gpus)}
    if own.merged and "fitted" in origins and len(origins) > 1:
        raise InputError(
            "Exchange inside and between nodes was not told apart in this run, so one of them cannot be changed alone. "
            "Give both --link and --network."
        )
    if own.vague is None or (gpus == job.gpus and fabric.gpus_per_node == job.gpus_per_node):
        return
    if "fitted" in origins:
        raise InputError(f"{own.vague} Give the link with --link or --network, or probe it and give --machine.")


def _check_known(fabric: Fabric, asked: Asked, gpus: int) -> None:
    try:
        fabric.used(gpus)
    except InputError as error:
        if asked.machine is None:
            raise
        held = " and ".join(_WORDS[link.scope] for link in asked.machine.links) or "nowhere"
        raise InputError(f"{asked.machine_name} holds a link {held}, which is not enough. {error}") from None


def _said(fabric: Fabric, own: OwnLinks, gpus: int) -> tuple[str, ...]:
    used = dict.fromkeys(fabric.used(gpus))
    origins = {link.origin for link in used}
    said = []
    if "fitted" in origins:
        said += [*own.said, *([own.vague] if own.vague else [])]
    if origins & {"listed", "given"}:
        said.append(f"How far an exchange by a listed or given rate may be off: {LISTED_SOURCE}.")
    said += [
        f"A link measured on {link.ranks} ranks is taken to {gpus} by the formulas of ring and tree."
        for link in used
        if link.origin == "measured" and link.ranks != gpus
    ]
    return tuple(said)
