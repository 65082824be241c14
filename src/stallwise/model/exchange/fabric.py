"""The links of a fleet, and what collectives cost among any number of its GPUs.

A link is described by an all-reduce over it: measured on some ranks (a probe), or computed from a listed rate. For
other numbers of ranks the wire behind it (α, β) is taken through the formulas of `collectives`. Among GPUs of one node
the inside link counts; across nodes one ring runs through all of them and waits for its slowest hop.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self, TypedDict

from stallwise.errors import InputError
from stallwise.model.exchange._messages import CollectivePrices
from stallwise.model.exchange.collectives import (
    Algorithm,
    AlphaBeta,
    FastestCost,
    Segments,
    Wire,
    all_reduce,
    wire_of_ring,
)
from stallwise.model.exchange.merge import Exchange

GLOO: tuple[Algorithm, ...] = ("ring",)
NCCL: tuple[Algorithm, ...] = ("ring", "double tree")
"""NCCL takes whichever of its algorithms is faster for a size."""

INSIDE_LATENCY_S = 7e-6
BETWEEN_LATENCY_S = 30e-6
"""Start-up times where only a rate is known: those behind the a published for V100 nodes (HKBU-HPML/MG-WFBP), 42 µs on
4 GPUs of a node and 0.91 ms on 16 over 10 Gb/s Ethernet; a ring starts 2 (N-1) times."""

DDP_COPY_S_PER_BYTE = 0.15e-9
"""CPU seconds per byte of gradients that DDP's copies into buckets and back take a training thread, where gradients are
in the host's memory: 0.13 to 0.23 ns on 2 and 4 ranks, 8 and 32 MB (`python -m validation.exchange_parts`). One
process alone does not have them."""

_SLOW_BYTES_PER_S = 10e9 / 8
_SLOW_FACTORS = (1 / 1.12, 1.12)
_FAST_FACTORS = (1 / 1.12, 5.5)
LISTED_SOURCE = (
    "one fused all-reduce on 8 GPUs took 1.02 to 1.11 times what 10 Gb/s would take, and on 100 Gb/s 2.0 to 2.8 "
    "(RDMA) or 4.7 to 5.4 times (TCP) (HKBU-HPML/ddl-benchmarks)"
)


def listed_factors(bytes_per_s: float) -> tuple[float, float]:
    """Bounds, as factors, of an exchange that is computed from a listed rate; see `LISTED_SOURCE`.

    Up to 10 Gb/s the listed rate is nearly reached. Above, hosts, protocols and the links inside nodes limit it by an
    unknown amount: the whole range that was measured is the interval.
    """
    return _SLOW_FACTORS if bytes_per_s <= _SLOW_BYTES_PER_S else _FAST_FACTORS


def algorithms_of(backend: str | None) -> tuple[Algorithm, ...]:
    """Algorithms of a back end of torch.distributed; NCCL's where it is not known."""
    return GLOO if backend == "gloo" else NCCL


Origin = Literal["measured", "fitted", "listed", "given"]
"""Measured by a probe; fitted to the exchange of a run; listed in the catalog; given by the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLink:
    """An all-reduce over one link: seconds by size on `ranks`; `low` and `high` are factors it may be off by."""

    cost: Segments
    ranks: int
    origin: Origin
    source: str = ""
    """More about the origin, in words."""
    low: float = 1.0
    high: float = 1.0
    attained: float | None = None
    """Part of the listed rate that it is taken to attain (`attained`); None: another source of the rate."""

    @property
    def bytes_per_s(self) -> float | None:
        """Rate in one direction for large messages; None where they take no time."""
        s_per_byte = self.wires()[1].s_per_byte
        return 1 / s_per_byte if s_per_byte else None

    @property
    def latency_s(self) -> float:
        """Start-up time in seconds of a small message between two ranks."""
        return self.wires()[0].latency_s

    def slower(self, factor: float) -> Self:
        """Return the link with every message taking `factor` times as long."""
        small, large = (
            AlphaBeta(line.latency_s * factor, line.s_per_byte * factor) for line in (self.cost.small, self.cost.large)
        )
        return replace(self, cost=Segments(small, large, self.cost.break_bytes))

    def wires(self) -> tuple[Wire, Wire]:
        """The link seen by small and by large messages."""
        return wire_of_ring(self.cost.small, self.ranks), wire_of_ring(self.cost.large, self.ranks)

    def piece_bytes(self) -> float | None:
        """The size of a ring's pieces from which on messages count as large."""
        return None if self.cost.break_bytes is None else self.cost.break_bytes / self.ranks


def link_of_rate(
    bytes_per_s: float, latency_s: float, origin: Origin, source: str = "", *, low: float = 1.0, high: float = 1.0
) -> KnownLink:
    """A link known by its rate in one direction and its latency only."""
    if not bytes_per_s > 0:
        raise InputError(f"The rate of a link must be above 0 bytes/s, not {bytes_per_s}.")
    line = all_reduce("ring", Wire(latency_s=latency_s, s_per_byte=1 / bytes_per_s), 2)
    return KnownLink(cost=Segments(line, line), ranks=2, origin=origin, source=source, low=low, high=high)


class _Hybrid(TypedDict):
    shard: CollectivePrices | None
    replicas: Exchange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a fleet of nodes with `gpus_per_node` each; a link that is None is not needed, or not known."""

    gpus_per_node: int
    inside: KnownLink | None = None
    """Among all GPUs of a node."""
    fewer: tuple[tuple[int, KnownLink], ...] = ()
    """Among fewer of them, by how many, ascending: those that share less, or have fewer links; else `inside`."""
    between: KnownLink | None = None
    algorithms: tuple[Algorithm, ...] = NCCL
    copy_s_per_byte: float = 0.0
    """What copying gradients into buckets and back adds, where neither links nor run have it in their times."""

    def prices(self, gpus: int) -> CollectivePrices:
        """Prices of collectives among `gpus` of the fleet, filled node by node."""
        used = self.used(gpus)
        if not used:
            return CollectivePrices(all_reduce=_nothing)
        costs = [self._cost(used, algorithm, gpus) for algorithm in self.algorithms]
        fastest = costs[0].time_s if len(costs) == 1 else FastestCost(tuple(costs)).time_s
        small, large = (_slowest([link.wires()[size] for link in used]) for size in (0, 1))
        wire = replace(large, latency_s=small.latency_s)
        return CollectivePrices(
            all_reduce=lambda size: fastest(size) + self.copy_s_per_byte * size,
            wire=wire,
            ranks=gpus,
            **self._hybrid(gpus),
        )

    def _hybrid(self, gpus: int) -> "_Hybrid":
        """Collectives in a node alone, and of every GPU of a node with its peers at once; see `schemes.hybrid`."""
        on_node = min(gpus, self.gpus_per_node)
        if on_node == gpus:
            return _Hybrid(shard=self._ring(gpus), replicas=_nothing)
        if self.between is None:
            return _Hybrid(shard=None, replicas=None)
        shard = CollectivePrices(all_reduce=_nothing) if on_node == 1 else self._ring(on_node)
        return _Hybrid(shard=shard, replicas=self._cost((self.between,), "ring", -(-gpus // on_node)).time_s)

    def _ring(self, gpus: int) -> CollectivePrices:
        return CollectivePrices(all_reduce=self._cost(self.used(gpus), "ring", gpus).time_s)

    def used(self, gpus: int) -> tuple[KnownLink, ...]:
        """The links that an exchange among `gpus` crosses; raises an `InputError` where one is not known."""
        if gpus <= 1:
            return ()
        on_node = min(gpus, self.gpus_per_node)
        inside, between = on_node > 1, gpus > self.gpus_per_node
        if inside and self.inside is None:
            raise InputError(
                f"The link between the {self.gpus_per_node} GPUs of a node is not known. Measure it with "
                "stallwise probe, or give a rate (300GB/s).",
                fields=("link",),
            )
        if between and self.between is None:
            raise InputError(
                f"{gpus} GPUs need more than one node of {self.gpus_per_node}, and the network between nodes is not "
                "known. Measure it with stallwise probe, or give a rate (25gbit).",
                fields=("network",),
            )
        among = next((link for count, link in self.fewer if on_node <= count), self.inside)
        links = (among if inside else None, self.between if between else None)
        return tuple(link for link in links if link is not None)

    def bounds(self, gpus: int) -> tuple[CollectivePrices, CollectivePrices]:
        """Prices with every link at its lower and at its upper bound."""
        self.used(gpus)
        return self._at(lambda link: link.low).prices(gpus), self._at(lambda link: link.high).prices(gpus)

    def _at(self, factor: Callable[[KnownLink], float]) -> Self:
        inside, between = (None if link is None else link.slower(factor(link)) for link in (self.inside, self.between))
        fewer = tuple((count, link.slower(factor(link))) for count, link in self.fewer)
        return replace(self, inside=inside, fewer=fewer, between=between)

    def _cost(self, used: tuple[KnownLink, ...], algorithm: Algorithm, gpus: int) -> Segments:
        small = _slowest([link.wires()[0] for link in used])
        large = _slowest([link.wires()[1] for link in used])
        pieces = [piece for piece in (link.piece_bytes() for link in used) if piece is not None]
        breaks = max(pieces) * gpus if pieces else None
        return Segments(_line(algorithm, small, gpus), _line(algorithm, large, gpus), breaks)


def _line(algorithm: Algorithm, wire: Wire, gpus: int) -> AlphaBeta:
    return all_reduce(algorithm, wire, gpus)


def _slowest(wires: list[Wire]) -> Wire:
    """A round of a ring waits for its slowest hop."""
    return Wire(
        latency_s=max(wire.latency_s for wire in wires),
        s_per_byte=max(wire.s_per_byte for wire in wires),
    )


def _nothing(_: float) -> float:
    return 0.0
