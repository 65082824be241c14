"""The links of a fleet as prices: what an all-reduce costs among any number of its GPUs.

A link is known by an all-reduce over it: measured on some ranks (a probe), or worked out from a listed rate. For other
numbers of ranks the wire behind it (α, β) is taken through the formulas of `collectives`. Among GPUs of one node the
inside link counts; across nodes one ring runs through all of them and waits for its slowest hop.
"""

from dataclasses import dataclass

from stallwise.errors import InputError
from stallwise.model.collectives import (
    Algorithm,
    AlphaBeta,
    Quickest,
    Segments,
    Wire,
    all_reduce,
    wire_of_ring,
)
from stallwise.model.messages import Prices

GLOO: tuple[Algorithm, ...] = ("ring",)
NCCL: tuple[Algorithm, ...] = ("ring", "double tree")
"""NCCL takes whichever of its algorithms is quicker for a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLink:
    """An all-reduce over one link: seconds by size on `ranks`; `low` and `high` are factors it may be off by."""

    cost: Segments
    ranks: int
    source: str
    low: float = 1.0
    high: float = 1.0

    def wires(self) -> tuple[Wire, Wire]:
        """The link seen by small and by large messages."""
        return wire_of_ring(self.cost.small, self.ranks), wire_of_ring(self.cost.large, self.ranks)

    def piece_bytes(self) -> float | None:
        """The size of a ring's pieces from which on messages count as large."""
        return None if self.cost.break_bytes is None else self.cost.break_bytes / self.ranks


def listed_link(bytes_per_s: float, latency_s: float, source: str, *, low: float = 1.0, high: float = 1.0) -> KnownLink:
    """A link known by its rate in one direction and its latency only."""
    if not bytes_per_s > 0:
        raise InputError(f"A link of {bytes_per_s} bytes/s moves nothing; give a rate above 0.")
    line = all_reduce("ring", Wire(latency_s=latency_s, s_per_byte=1 / bytes_per_s), 2)
    return KnownLink(cost=Segments(line, line), ranks=2, source=source, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a fleet of nodes with `gpus_per_node` each; a link that is None is not needed, or not known."""

    gpus_per_node: int
    inside: KnownLink | None = None
    between: KnownLink | None = None
    algorithms: tuple[Algorithm, ...] = NCCL

    def prices(self, gpus: int) -> Prices:
        """What messages cost among `gpus` of the fleet, filled node by node."""
        used = self.used(gpus)
        if not used:
            return Prices(all_reduce=_nothing)
        costs = [self._cost(used, algorithm, gpus) for algorithm in self.algorithms]
        return Prices(all_reduce=costs[0].time_s if len(costs) == 1 else Quickest(tuple(costs)).time_s)

    def used(self, gpus: int) -> tuple[KnownLink, ...]:
        """The links that an exchange among `gpus` crosses; an error that says what to give where one is not known."""
        if gpus <= 1:
            return ()
        inside, between = min(gpus, self.gpus_per_node) > 1, gpus > self.gpus_per_node
        if inside and self.inside is None:
            raise InputError(
                f"The link between the {self.gpus_per_node} GPUs of a node is not known. Measure it with "
                "stallwise probe, or give --link (300GB/s)."
            )
        if between and self.between is None:
            raise InputError(
                f"{gpus} GPUs need more than one node of {self.gpus_per_node}, and the network between nodes is not "
                "known. Measure it with stallwise probe, or give --network (25gbit)."
            )
        links = (self.inside if inside else None, self.between if between else None)
        return tuple(link for link in links if link is not None)

    def factors(self, gpus: int) -> tuple[float, float]:
        """How far prices among `gpus` may be off."""
        used = self.used(gpus)
        low = min((link.low for link in used), default=1.0)
        return min(1.0, low), max(1.0, max((link.high for link in used), default=1.0))

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
