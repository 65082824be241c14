"""Job speed from profiles: Dally's layer profiles, or the user's own runs and layer files.

Layer profiles: gradients are all-reduced layer by layer over the tiers that the placement spans, hidden behind backward
as far as possible; speed is compute over compute plus what is not hidden. This is what ASTRA-sim's analytical backend
computes for Dally (Sharma et al., arXiv 2401.16492), without the backend. Where a gang does not divide evenly over a
tier, all of it goes around one ring on that tier, as there.

Own runs: the step on a placement is that of `Analysis.on` with the links of the cluster: inside a machine the slowest
link that the gang crosses there, between machines likewise. Speed is the step on one GPU over the step on the
placement.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from stallwise.cluster.job import Job
from stallwise.cluster.speed.base import Shape, Speed
from stallwise.errors import InputError, UnknownNameError
from stallwise.inputs import bounded_rows
from stallwise.model.exchange.collectives import AlphaBeta, Wire, all_reduce, contended
from stallwise.model.exchange.fabric import Fabric, KnownLink, link_of_rate
from stallwise.model.step.graph import Graph, GraphDraft, NodeKind
from stallwise.model.step.paths import longest_path
from stallwise.units import parse_rate, parse_seconds
from stallwise.workload.layers import Layer, LayerTrace

if TYPE_CHECKING:
    from stallwise.analysis.job import JobModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """A border that a gang crosses: the link between the units on it."""

    inside_machine: bool
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class OwnProfile:
    """A measured job, with its step by placement."""

    model: "JobModel"
    cache: dict[tuple[int, Fabric], float] = field(default_factory=dict)

    @property
    def gradients(self) -> "LayerTrace":
        """Its layers with their gradients."""
        return self.model.job.trace

    def step_s(self, gpus: int, machines: int, tiers: Sequence[Tier]) -> float:
        """Return the seconds of one step of a gang on a number of machines."""
        from stallwise.analysis.prediction import step_s
        from stallwise.analysis.target import Target

        fabric = Fabric(
            gpus_per_node=math.ceil(gpus / machines),
            inside=_slowest([tier for tier in tiers if tier.inside_machine]),
            between=_slowest([tier for tier in tiers if not tier.inside_machine]),
        )
        key = (gpus, fabric)
        if key not in self.cache:
            self.cache[key] = step_s(self.model, Target(gpus=gpus, fabric=fabric))
        return self.cache[key]

    def rate(self, gpus: int, machines: int, tiers: Sequence[Tier]) -> float:
        """Return the speed on a placement over that of one GPU."""
        return min(1.0, self.step_s(1, 1, ()) / self.step_s(gpus, machines, tiers))


def own_profile(path: Path) -> OwnProfile:
    """Read the step from a run's folder, or from a layer file of any tool that what-if reads."""
    from stallwise.analysis.analysis import open_run

    model = open_run(path).model()
    if model.job.gpus is None or not model.job.trace.gradient_bytes:
        raise InputError(
            f"{path} has no sizes of gradients, so the cost of an exchange elsewhere is unknown. "
            "Give the folder of a run, or a layer file with sizes."
        )
    return OwnProfile(model)


def _slowest(tiers: Sequence[Tier]) -> KnownLink | None:
    if not tiers:
        return None
    return link_of_rate(min(tier.bytes_per_s for tier in tiers), max(tier.latency_s for tier in tiers), "given")


PIECES = 4
"""With 1 large messages pass the tiers one after the other and AlexNet over several machines comes out 0.19 too slow;
from 4 on all of ASTRA-sim's efficiencies are met within 0.05."""
LEVELS = ("gpu", "slot", "machine", "rack", "block")
"""What a link can connect, from the tightest out."""
SKEWED = 0.4
"""Fraction of the gradient in one tensor from which Tiresias calls a model skewed. Of Dally's six it splits the list
its authors give: AlexNet, VGG and MobileNetV3 on one side, the ResNets and BERT on the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierLink:
    """The link between the units of one tier."""

    topology: Literal["ring", "switch", "full", "single"]
    """The first three as the released Dally counts them; `single`: one link a unit, one hop."""
    bandwidth_bytes_per_s: float
    latency_s: float

    @property
    def hops(self) -> int:
        """Hops from unit to unit."""
        return 2 if self.topology == "switch" else 1

    def lanes(self, units: int) -> int:
        """Return the links that a unit can use at once."""
        if self.topology == "single":
            return 1
        if self.topology == "ring":
            return 4 if units == 2 else units
        return units if self.topology == "switch" else units // (units - 1)

    def all_reduce(self, units: int) -> AlphaBeta:
        """Return the cost of a ring all-reduce among the units."""
        wire = Wire(
            latency_s=self.hops * self.latency_s, s_per_byte=1 / (self.bandwidth_bytes_per_s * self.lanes(units))
        )
        return all_reduce("ring", wire, units)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierNetwork:
    """Links by what they connect: `gpu` inside the tightest domains, `slot`, `machine`, `rack`, `block`, …"""

    links: Mapping[str, TierLink]

    def link(self, level: str) -> TierLink:
        """Return the link between domains of a level; the widest that is named, for wider levels."""
        if level in self.links:
            return self.links[level]
        return self.links[list(self.links)[-1]]


_INSIDE = {
    "gpu": TierLink(topology="full", bandwidth_bytes_per_s=600e9, latency_s=0.0),
    "slot": TierLink(topology="ring", bandwidth_bytes_per_s=600e9, latency_s=500e-9),
    "machine": TierLink(topology="ring", bandwidth_bytes_per_s=200e9, latency_s=5e-6),
}
NETWORKS = {
    "released": TierNetwork(
        links=_INSIDE | {"rack": TierLink(topology="switch", bandwidth_bytes_per_s=400e9, latency_s=50e-6)}
    ),
    "congested": TierNetwork(
        links=_INSIDE | {"rack": TierLink(topology="switch", bandwidth_bytes_per_s=10e9, latency_s=50e-3)}
    ),
}
"""Dally's constants: as released, and with the slow core of its earlier versions (10 GB/s and 50 ms)."""

_LATENCIES_S = {"gpu": 7e-6, "slot": 7e-6}
_LATENCY_S = 30e-6
"""Latency of links given without one, in seconds: as what-if assumes inside and between nodes."""


def network_of(text: str) -> TierNetwork:
    """Parse a network: its name, or links by what they connect: `gpu=300GB/s,machine=25gbit,rack=10gbit:50us`."""
    if "=" not in text:
        if text not in NETWORKS:
            raise UnknownNameError(f"network ({', '.join(NETWORKS)}, or links as machine=25gbit)", text, NETWORKS)
        return NETWORKS[text]
    links = dict(NETWORKS["released"].links)
    for piece in text.split(","):
        level, _, value = (part.strip() for part in piece.partition("="))
        if level not in LEVELS:
            raise UnknownNameError("level of a network", level, LEVELS)
        rate, _, latency = value.partition(":")
        latency_s = parse_seconds(latency) if latency else _LATENCIES_S.get(level, _LATENCY_S)
        bandwidth = parse_rate(rate)
        if not bandwidth > 0:
            raise InputError(f"{piece!r}: a link carries more than nothing.")
        links[level] = TierLink(topology="single", bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
    return TierNetwork(links={level: links[level] for level in LEVELS if level in links})


COMPUTE_SCALES = {
    "ResNet50": 0.03395,
    "ResNet18": 0.001223,
    "AlexNet": 0.0199,
    "MobileNetV3": 0.00639,
    "VGG": 0.01549,
    "BERT": 0.0001121,
}
"""What Dally multiplies the profiled times by, from the seconds of a batch to those of its iterations."""
_FILES = {
    "AlexNet": "alexnet_b512.csv",
    "BERT": "bert_large_b256.csv",
    "MobileNetV3": "mobilenet_v3_b512.csv",
    "ResNet18": "resnet18_b512.csv",
    "ResNet50": "resnet50_b512.csv",
    "VGG": "vgg11_b256.csv",
}


def read_profiles(folder: Path) -> dict[str, LayerTrace]:
    """Read Dally's six models from its per-layer files, times scaled as there."""
    return {model: read_profile(folder / name, COMPUTE_SCALES[model]) for model, name in _FILES.items()}


def read_profile(path: Path, scale: float = 1.0) -> LayerTrace:
    """One profile. A layer's message leaves after its weight gradient; the input gradient behind it delays the next.

    So the backward time of a layer here is its own weight gradient and the input gradient of the layer above; the
    first layer needs no input gradient.
    """
    try:
        with path.open(newline="") as file:
            rows = list(bounded_rows(csv.DictReader(file), path))
        times = [
            (
                row["layer"],
                float(row["fwd_compute_ns"]) * 1e-9 * scale,
                float(row["input_grad_compute_ns"]) * 1e-9 * scale,
                float(row["weight_grad_compute_ns"]) * 1e-9 * scale,
                int(row["weight_grad_bytes"]),
            )
            for row in rows
        ]
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise InputError(f"{path} is not a layer profile: {error}. Columns are those of Dally's profiles.") from error
    above = [0.0, *(entry[2] for entry in reversed(times))][: len(times)][::-1]
    layers = [
        Layer(name=name, forward_s=forward, backward_s=weight + late, gradient_bytes=size)
        for (name, forward, _, weight, size), late in zip(times, above, strict=True)
    ]
    return LayerTrace.of(layers, source=path.name)


@dataclass(frozen=True, slots=True, eq=False)
class LayerProfiles(Speed):
    """Speed of the models that have a profile; a job without a model is never slowed."""

    profiles: Mapping[str, LayerTrace]
    network: TierNetwork
    levels: tuple[str, ...] = ("machine", "rack")
    """Of the cluster the shapes come from."""
    own: Mapping[str, OwnProfile] = field(default_factory=dict)
    """Those of the models that one has measured oneself."""
    cache: dict[tuple[str | None, Shape], float] = field(default_factory=dict)
    shares: ClassVar[bool] = True

    def kind(self, job: Job) -> str | None:
        if job.model is not None and job.model not in self.profiles:
            raise UnknownNameError("model", job.model, self.profiles)
        return job.model

    def skewed(self, job: Job) -> bool:
        """Whether one tensor holds much of the gradient (Tiresias)."""
        if job.model is None:
            return False
        trace = self.profiles[job.model]
        return max(layer.gradient_bytes for layer in trace.layers) > SKEWED * trace.gradient_bytes

    def rate(self, job: Job, shape: Shape) -> float:
        key = (job.model, shape)
        if key not in self.cache:
            self.cache[key] = self._rate(job.model, shape)
        return self.cache[key]

    def _rate(self, model: str | None, shape: Shape) -> float:
        if model is None or shape.gpus == 1:
            return 1.0
        if model in self.own:
            machines = shape.spans[self.levels.index("machine")] if "machine" in self.levels else 1
            return self.own[model].rate(shape.gpus, machines, self.tiers(shape))
        trace = self.profiles[model]
        step_s = longest_path(step_graph(trace, self.costs(shape))).seconds
        return (trace.forward_s + trace.backward_s + trace.update_s) / (step_s + trace.update_s)

    def costs(self, shape: Shape) -> list[AlphaBeta]:
        """Return the all-reduce of each tier the gang uses, tightest first; shared links cost more per byte."""
        tiers = [("gpu", 1), *((level, self._sharers(shape, number)) for number, level in enumerate(self.levels))]
        return [
            contended(self.network.link(level).all_reduce(units), jobs)
            for (level, jobs), units in zip(tiers, units_of(shape), strict=True)
            if units > 1
        ]

    def tiers(self, shape: Shape) -> list[Tier]:
        """Return the borders that a gang crosses, tightest first; a link shared with others carries less."""
        inside = self.levels.index("machine") if "machine" in self.levels else len(self.levels)
        tiers = []
        for number, units in enumerate(units_of(shape)):
            link = self.network.link("gpu" if number == 0 else self.levels[number - 1])
            sharers = 1 if number == 0 else self._sharers(shape, number - 1)
            if number == 0:
                # A gang that does not divide evenly has more than one GPU on some machine, whatever the tiers say.
                units = max(units, -(-shape.gpus // shape.spans[0]) if shape.spans else shape.gpus)
            if units > 1:
                tiers.append(
                    Tier(
                        inside_machine=number <= inside,
                        bytes_per_s=link.bandwidth_bytes_per_s * link.lanes(units) / sharers,
                        latency_s=link.hops * link.latency_s,
                    )
                )
        return tiers

    @staticmethod
    def _sharers(shape: Shape, level: int) -> int:
        return shape.sharers[level] if shape.sharers else 1


def units_of(shape: Shape) -> list[int]:
    """Return the units on each tier, tightest first; a gang that does not divide is all on one tier."""
    counts = [shape.gpus, *shape.spans, 1]
    for tier in range(len(counts) - 2, -1, -1):
        if counts[tier] % counts[tier + 1]:
            return [shape.gpus if k == tier + 1 else 1 for k in range(len(counts) - 1)]
    return [counts[k] // counts[k + 1] for k in range(len(counts) - 1)]


def step_graph(trace: LayerTrace, costs: list[AlphaBeta]) -> Graph:
    """Build one step: forward, backward, and every layer's all-reduce through the tiers, one at a time on each."""
    draft = GraphDraft()
    before: int | None = None
    for layer in trace.layers:
        before = draft.node(NodeKind.FORWARD, layer.name, layer.forward_s, "GPU", [before])
    channel: list[int | None] = [None] * len(costs)
    pieces: list[int | None]
    for layer in reversed(trace.layers):
        before = draft.node(NodeKind.BACKWARD, layer.name, layer.backward_s, "GPU", [before])
        pieces = [before] * (PIECES if len(costs) > 1 else 1)
        for tier, cost in enumerate(costs):
            seconds = cost.time_s(layer.gradient_bytes) / len(pieces)
            for number, piece in enumerate(pieces):
                channel[tier] = draft.node(
                    NodeKind.EXCHANGE, layer.name, seconds, f"tier {tier}", [piece, channel[tier]]
                )
                pieces[number] = channel[tier]
    return draft.graph()
