"""What a collective costs on a link: α-β-γ formulas, and how costs change with ranks, nodes and jobs.

A message of M bytes takes α + βM: α seconds to start, β seconds per byte in one direction, and γ seconds per byte
where bytes are added up. N ranks, M bytes per rank:

    algorithm                   constant a              per byte b
    ring                        2(N-1) α                2 (N-1)/N β + (N-1)/N γ
    recursive doubling          log2 N α                log2 N (β + γ)
    halving and doubling        2 log2 N α              2 (N-1)/N β + (N-1)/N γ
    binary tree                 2 log2 N α              log2 N (2 β + γ)
    double binary tree          2 log2 N α              2 β + γ

(Thakur, Rabenseifner & Gropp 2005; Shi et al., *MG-WFBP*, INFOCOM 2019.) Between powers of two, the two that pair
ranks first fold the surplus ranks into the others and send them the sum at the end: 2 α and 2 β + γ more; trees
have ⌈log2 N⌉ levels. MG-WFBP prints β + γ for the double binary tree. On links as meant here, which carry β per byte
in each direction at once, no all-reduce of three or more ranks can be that quick: some rank sends
2 (N-1)/N M bytes (Patarasuk & Yuan 2009). Its M bytes up and M bytes down take 2 β.

Every cost has `time_s(size_bytes)`, which is what the graph takes. Costs measured on real ranks are in `linkfit`.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from stallwise.errors import InputError

Algorithm = Literal["ring", "recursive doubling", "halving and doubling", "tree", "double tree"]


class Cost(Protocol):
    """Anything that says how long a message takes."""

    def time_s(self, size_bytes: float) -> float:
        """Seconds for `size_bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """A straight line: `latency_s` + `s_per_byte` · bytes. Nothing to send takes no time."""

    latency_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 <= self.s_per_byte < math.inf):
            raise InputError(
                f"A link cannot take {self.latency_s} s and {self.s_per_byte} s/byte; both are finite and not negative."
            )

    def time_s(self, size_bytes: float) -> float:
        """Seconds for `size_bytes`."""
        return self.latency_s + self.s_per_byte * size_bytes if size_bytes > 0 else 0.0

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        return AlphaBeta(self.latency_s + other.latency_s, self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True, slots=True)
class Segments:
    """Two lines, because libraries change their protocol with the size: `large` from `break_bytes` on.

    Without a break both lines are the same. A message just above the break is never quicker than one just below it,
    whatever the two lines say there: the library could have sent it the other way.
    """

    small: AlphaBeta
    large: AlphaBeta
    break_bytes: float | None = None

    def time_s(self, size_bytes: float) -> float:
        """Seconds for `size_bytes`."""
        if self.break_bytes is None or size_bytes < self.break_bytes:
            return self.small.time_s(size_bytes)
        return max(self.large.time_s(size_bytes), self.small.time_s(self.break_bytes))


@dataclass(frozen=True, slots=True)
class Quickest:
    """A library that picks the quickest algorithm for each size."""

    costs: tuple[Cost, ...]

    def time_s(self, size_bytes: float) -> float:
        """Seconds for `size_bytes`."""
        return min(cost.time_s(size_bytes) for cost in self.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A link between neighbours: α, β of one direction (both directions at once), γ of adding up."""

    latency_s: float
    s_per_byte: float
    reduce_s_per_byte: float = 0.0


def all_reduce(algorithm: Algorithm, wire: Wire, ranks: int) -> AlphaBeta:
    """Every rank ends with the sum of all; see the table above."""
    _check(ranks)
    if ranks == 1:
        return AlphaBeta(0.0, 0.0)
    alpha, beta, gamma = wire.latency_s, wire.s_per_byte, wire.reduce_s_per_byte
    share = (ranks - 1) / ranks
    match algorithm:
        case "ring":
            return AlphaBeta(2 * (ranks - 1) * alpha, share * (2 * beta + gamma))
        case "recursive doubling":
            rounds, fold = _paired(wire, ranks)
            return AlphaBeta(rounds * alpha, rounds * (beta + gamma)) + fold
        case "halving and doubling":
            rounds, fold = _paired(wire, ranks)
            paired_share = 1 - 2.0**-rounds
            return AlphaBeta(2 * rounds * alpha, paired_share * (2 * beta + gamma)) + fold
        case "tree":
            levels = math.ceil(math.log2(ranks))
            return AlphaBeta(2 * levels * alpha, levels * (2 * beta + gamma))
        case "double tree":
            return AlphaBeta(2 * math.ceil(math.log2(ranks)) * alpha, 2 * beta + gamma)


def _paired(wire: Wire, ranks: int) -> tuple[int, AlphaBeta]:
    """Rounds among the largest power of two of ranks, and what folding in the rest costs."""
    rounds = ranks.bit_length() - 1
    if ranks == 2**rounds:
        return rounds, AlphaBeta(0.0, 0.0)
    return rounds, AlphaBeta(2 * wire.latency_s, 2 * wire.s_per_byte + wire.reduce_s_per_byte)


def reduce_scatter(wire: Wire, ranks: int) -> AlphaBeta:
    """Every rank ends with its 1/N of the sum (ring): (N-1) α + (N-1)/N (β + γ) M, for M bytes before."""
    _check(ranks)
    return AlphaBeta((ranks - 1) * wire.latency_s, (ranks - 1) / ranks * (wire.s_per_byte + wire.reduce_s_per_byte))


def all_gather(wire: Wire, ranks: int) -> AlphaBeta:
    """Every rank ends with all M bytes, of which each had 1/N (ring): (N-1) α + (N-1)/N β M."""
    _check(ranks)
    return AlphaBeta((ranks - 1) * wire.latency_s, (ranks - 1) / ranks * wire.s_per_byte)


def broadcast(wire: Wire, ranks: int) -> Quickest:
    """One rank's M bytes to all: the quicker of two ways (van de Geijn; Thakur et al. 2005).

    A binomial tree, ⌈log2 N⌉ (α + βM), for small messages; scatter and then ring all-gather,
    (⌈log2 N⌉ + N-1) α + 2 (N-1)/N βM, for large ones.
    """
    _check(ranks)
    levels, share = math.ceil(math.log2(ranks)), (ranks - 1) / ranks
    tree = AlphaBeta(levels * wire.latency_s, levels * wire.s_per_byte)
    scattered = AlphaBeta((levels + ranks - 1) * wire.latency_s, 2 * share * wire.s_per_byte)
    return Quickest((tree, scattered))


def hierarchical(inside: Wire, between: Wire, ranks_per_node: int, nodes: int) -> AlphaBeta:
    """All-reduce in three parts: reduce-scatter in the node, all-reduce between nodes, all-gather in the node.

    `between` is the node's NIC. Each of the node's g ranks exchanges its 1/g of the bytes with its peers on the other
    n-1 nodes in a ring, all g at once through the one NIC, which so carries 2 (n-1)/n M in each direction:
    2(n-1) α + (n-1)/n (2 β + γ/g) M. The sums are taken on g devices at a time.
    """
    _check(ranks_per_node)
    shared = Wire(
        latency_s=between.latency_s,
        s_per_byte=between.s_per_byte,
        reduce_s_per_byte=between.reduce_s_per_byte / ranks_per_node,
    )
    middle = all_reduce("ring", shared, nodes)
    return reduce_scatter(inside, ranks_per_node) + middle + all_gather(inside, ranks_per_node)


def flat_ring(inside: Wire, between: Wire, ranks_per_node: int, nodes: int) -> AlphaBeta:
    """One ring through all ranks, node after node: every round waits for its slowest hop.

    The ring enters and leaves each node once, so a NIC carries one rank's traffic, not that of all its node's ranks.
    """
    _check(ranks_per_node)
    _check(nodes)
    hops = [wire for wire, used in ((inside, ranks_per_node > 1), (between, nodes > 1)) if used]
    if not hops:
        return AlphaBeta(0.0, 0.0)
    slowest = Wire(
        latency_s=max(hop.latency_s for hop in hops),
        s_per_byte=max(hop.s_per_byte for hop in hops),
        reduce_s_per_byte=max(hop.reduce_s_per_byte for hop in hops),
    )
    return all_reduce("ring", slowest, ranks_per_node * nodes)


def parameter_server(wire: Wire, workers: int, servers: int, *, colocated: bool = False) -> AlphaBeta:
    """Push of all gradients and pull of all parameters, spread evenly over the servers.

    A server takes in w/s of M from w workers, and gives out as much: 2 α + (2 max(1, w/s) β + w/s γ) M. Where the
    servers run on workers' machines (s ≤ w) the own part stays at home: (w-1)/s in place of w/s.
    """
    _check(workers)
    _check(servers)
    if colocated and servers > workers:
        raise InputError(f"{servers} servers cannot run on the machines of {workers} workers. Give at most {workers}.")
    load = (workers - 1) / servers if colocated else max(1.0, workers / servers)
    if load == 0:
        return AlphaBeta(0.0, 0.0)
    summed = workers / servers * wire.reduce_s_per_byte
    return AlphaBeta(2 * wire.latency_s, 2 * load * wire.s_per_byte + summed)


def contended(cost: AlphaBeta, jobs: int, penalty_s_per_byte: float = 0.0) -> AlphaBeta:
    """What one of `jobs` jobs sees on a link they share: a + k b M + (k-1) η M.

    η is what the jobs lose by getting in each other's way (Wang et al., *Communication Contention Aware Scheduling of
    Multiple Deep Learning Training Jobs*, 2020). 0 is fair sharing without loss; two all-reduces that do not fill the
    link have a negative one (η = -b/2 gives the a + 1.5 b M seen with two concurrent streams).
    """
    _check(jobs)
    return AlphaBeta(cost.latency_s, jobs * cost.s_per_byte + (jobs - 1) * penalty_s_per_byte)


def wire_of_ring(measured: AlphaBeta, ranks: int) -> Wire:
    """The link behind a ring all-reduce measured on `ranks`: α = a / 2(N-1), β = b N / 2(N-1).

    γ cannot be told from β here and is part of it; both have the same (N-1)/N in a ring, so that is exact for rings.
    """
    if ranks < 2:
        raise InputError(f"An all-reduce of {ranks} rank says nothing about a link. Measure with two ranks or more.")
    return Wire(
        latency_s=measured.latency_s / (2 * (ranks - 1)),
        s_per_byte=measured.s_per_byte * ranks / (2 * (ranks - 1)),
    )


def rescale(measured: Segments, measured_ranks: int, ranks: int, algorithm: Algorithm = "ring") -> Segments:
    """A ring all-reduce measured on N ranks, as it would be on N' ranks of the same link.

    α and β of each line by `wire_of_ring`, then the algorithm's formula for N'. For a ring:
    a' = a (N'-1)/(N-1),  b' = b [(N'-1)/N'] / [(N-1)/N]. The break moves to N'/N of where it was: a ring sends pieces
    of M/N bytes, and it is their size that makes the library change its ways.
    """
    small, large = (all_reduce(algorithm, wire_of_ring(line, measured_ranks), ranks) for line in _lines(measured))
    moved = None if measured.break_bytes is None else measured.break_bytes * ranks / measured_ranks
    return Segments(small, large, moved)


def _lines(measured: Segments) -> tuple[AlphaBeta, AlphaBeta]:
    return measured.small, measured.large


def bus_factor(ranks: int) -> float:
    """What a byte of an all-reduce means for the link, as nccl-tests count it: 2 (N-1)/N."""
    return 2 * (ranks - 1) / ranks


def _check(count: int) -> None:
    if count < 1:
        raise InputError(f"There must be at least one rank, node, server or job, not {count}.")
