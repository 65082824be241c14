"""Time of a collective on a link: α-β-γ formulas, by number of ranks, servers and jobs.

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
in each direction at once, no all-reduce of three or more ranks can be that fast: some rank sends
2 (N-1)/N M bytes (Patarasuk & Yuan 2009). Its M bytes up and M bytes down take 2 β.

Every cost has `time_s(size_bytes)`, which the graph calls. Costs measured on real ranks are in `linkfit`.

**Sparsified gradients.** Only the k = ρm largest of m values travel, each with its index: 2 ρ M bytes for M bytes of
gradients. P ranks:

    top-k    log2 P α + 2 (P-1) ρ M β          every rank gathers every other rank's k
    gTop-k   2 log2 P α + 4 log2 P ρ M β       pairs merge to k again, level by level, and the result goes back

(Shi et al., *A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth Networks*,
ICDCS 2019; HKBU-HPML/gtopkssgd). Selecting the largest of x values takes s x log2 x seconds, with s = 5.0e-10 on a
V100 and 2.19e-10 on a P102-100 as the authors measured. Selection is counted with the message it belongs to: on the
channel, not on the GPU. What sparsification does to convergence is not modelled.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from stallwise.errors import InputError

Algorithm = Literal["ring", "recursive doubling", "halving and doubling", "tree", "double tree"]


class Cost(Protocol):
    """The time of a message by its size."""

    def time_s(self, size_bytes: float) -> float:
        """Seconds of a message of `size_bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """A straight line: `latency_s` + `s_per_byte` · bytes. Nothing to send takes no time."""

    latency_s: float
    s_per_byte: float

    def __post_init__(self) -> None:
        if not (0 <= self.latency_s < math.inf and 0 <= self.s_per_byte < math.inf):
            raise InputError(
                f"latency_s and s_per_byte must be finite and not negative, not {self.latency_s} and {self.s_per_byte}."
            )

    def time_s(self, size_bytes: float) -> float:
        return self.latency_s + self.s_per_byte * size_bytes if size_bytes > 0 else 0.0

    def __add__(self, other: "AlphaBeta") -> "AlphaBeta":
        return AlphaBeta(self.latency_s + other.latency_s, self.s_per_byte + other.s_per_byte)


@dataclass(frozen=True, slots=True)
class Segments:
    """Two lines, because libraries change their protocol with the size: `large` from `break_bytes` on.

    Without a break both lines are the same. A message just above the break is never faster than one just below it,
    whatever the two lines say there, because the library could have used the other protocol.
    """

    small: AlphaBeta
    large: AlphaBeta
    break_bytes: float | None = None

    def time_s(self, size_bytes: float) -> float:
        if self.break_bytes is None or size_bytes < self.break_bytes:
            return self.small.time_s(size_bytes)
        return max(self.large.time_s(size_bytes), self.small.time_s(self.break_bytes))


@dataclass(frozen=True, slots=True)
class FastestCost:
    """The cost of a library that picks the fastest algorithm for each size."""

    costs: tuple[Cost, ...]

    def time_s(self, size_bytes: float) -> float:
        return min(cost.time_s(size_bytes) for cost in self.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A link between neighbours: α, β of one direction (both directions at once), γ of adding up."""

    latency_s: float
    s_per_byte: float
    reduce_s_per_byte: float = 0.0


def all_reduce(algorithm: Algorithm, wire: Wire, ranks: int) -> AlphaBeta:
    """All-reduce: every rank ends with the sum of all; see the table above."""
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
    """Rounds among the largest power of two of ranks, and the cost of folding in the rest."""
    rounds = ranks.bit_length() - 1
    if ranks == 2**rounds:
        return rounds, AlphaBeta(0.0, 0.0)
    return rounds, AlphaBeta(2 * wire.latency_s, 2 * wire.s_per_byte + wire.reduce_s_per_byte)


def reduce_scatter(wire: Wire, ranks: int) -> AlphaBeta:
    """Reduce-scatter: every rank ends with its 1/N of the sum (ring).

    (N-1) α + (N-1)/N (β + γ) M, for M bytes before.
    """
    _check(ranks)
    return AlphaBeta((ranks - 1) * wire.latency_s, (ranks - 1) / ranks * (wire.s_per_byte + wire.reduce_s_per_byte))


def all_gather(wire: Wire, ranks: int) -> AlphaBeta:
    """All-gather: every rank ends with all M bytes, of which each had 1/N (ring): (N-1) α + (N-1)/N β M."""
    _check(ranks)
    return AlphaBeta((ranks - 1) * wire.latency_s, (ranks - 1) / ranks * wire.s_per_byte)


def parameter_server(wire: Wire, workers: int, servers: int, *, colocated: bool = False) -> AlphaBeta:
    """Push of all gradients and pull of all parameters, spread evenly over the servers.

    A server takes in w/s of M from w workers, and gives out as much: 2 α + (2 max(1, w/s) β + w/s γ) M. Where the
    servers run on workers' machines (s ≤ w) the local part is not sent: (w-1)/s in place of w/s.
    """
    _check(workers)
    _check(servers)
    if colocated and servers > workers:
        raise InputError(
            f"{servers} servers cannot run on the machines of {workers} workers; there can be at most {workers}."
        )
    load = (workers - 1) / servers if colocated else max(1.0, workers / servers)
    if load == 0:
        return AlphaBeta(0.0, 0.0)
    summed = workers / servers * wire.reduce_s_per_byte
    return AlphaBeta(2 * wire.latency_s, 2 * load * wire.s_per_byte + summed)


def contended(cost: AlphaBeta, jobs: int, penalty_s_per_byte: float = 0.0) -> AlphaBeta:
    """Cost for one of `jobs` jobs on a link they share: a + k b M + (k-1) η M.

    η is what the jobs lose by interfering (Wang et al., *Communication Contention Aware Scheduling of
    Multiple Deep Learning Training Jobs*, 2020). 0 is fair sharing without loss; two all-reduces that do not fill the
    link have a negative one (η = -b/2 gives the a + 1.5 b M seen with two concurrent streams).
    """
    _check(jobs)
    return AlphaBeta(cost.latency_s, jobs * cost.s_per_byte + (jobs - 1) * penalty_s_per_byte)


def wire_of_ring(measured: AlphaBeta, ranks: int) -> Wire:
    """The link behind a ring all-reduce measured on `ranks`: α = a / 2(N-1), β = b N / 2(N-1).

    γ cannot be separated from β here and is part of it; both have the same (N-1)/N in a ring, so that is exact for
    rings.
    """
    if ranks < 2:
        raise InputError(f"An all-reduce of {ranks} rank does not determine a link. Measure with two ranks or more.")
    return Wire(
        latency_s=measured.latency_s / (2 * (ranks - 1)),
        s_per_byte=measured.s_per_byte * ranks / (2 * (ranks - 1)),
    )


def rescale(measured: Segments, measured_ranks: int, ranks: int, algorithm: Algorithm = "ring") -> Segments:
    """A ring all-reduce measured on N ranks, as it would be on N' ranks of the same link.

    α and β of each line by `wire_of_ring`, then the algorithm's formula for N'. For a ring:
    a' = a (N'-1)/(N-1),  b' = b [(N'-1)/N'] / [(N-1)/N]. The break moves to N'/N of where it was: a ring sends pieces
    of M/N bytes, and the library changes its protocol by their size.
    """
    lines = (measured.small, measured.large)
    small, large = (all_reduce(algorithm, wire_of_ring(line, measured_ranks), ranks) for line in lines)
    moved = None if measured.break_bytes is None else measured.break_bytes * ranks / measured_ranks
    return Segments(small, large, moved)


def bus_factor(ranks: int) -> float:
    """Bytes on the link per byte of an all-reduce, as nccl-tests count them: 2 (N-1)/N."""
    return 2 * (ranks - 1) / ranks


def _check(count: int) -> None:
    if count < 1:
        raise InputError(f"There must be at least one rank, node, server or job, not {count}.")


Sparsifier = Literal["topk", "gtopk"]
V100_SELECT_S = 5.0e-10
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """A sparsified exchange; `density` is ρ."""

    kind: Sparsifier
    density: float
    select_s: float = V100_SELECT_S
    """Seconds of the selection per element and doubling (s)."""

    def __post_init__(self) -> None:
        if self.kind not in ("topk", "gtopk"):
            raise InputError(f"Sparsified gradients are exchanged by topk or gtopk, not {self.kind!r}.")
        if not 0 < self.density <= 1:
            raise InputError(f"A density of {self.density} is not a fraction between 0 and 1; 0.001 is usual.")

    def exchange(self, wire: Wire, ranks: int) -> AlphaBeta:
        """Start-up, and seconds per byte of the *dense* gradient; 0 for one rank."""
        if ranks == 1:
            return AlphaBeta(0.0, 0.0)
        levels, beta = math.log2(ranks), wire.s_per_byte
        if self.kind == "topk":
            return AlphaBeta(levels * wire.latency_s, 2 * (ranks - 1) * self.density * beta)
        return AlphaBeta(2 * levels * wire.latency_s, 4 * levels * self.density * beta)

    def selection_s(self, size_bytes: float) -> float:
        """Seconds of the selection: s x log2 x for the x elements of `size_bytes` of 32-bit gradients."""
        elements = size_bytes / _ELEMENT_BYTES
        return self.select_s * elements * math.log2(elements) if elements > 1 else 0.0

    def time_s(self, size_bytes: float, wire: Wire, ranks: int) -> float:
        """Seconds of selection and exchange of one message."""
        if ranks == 1 or not size_bytes:
            return 0.0
        return self.selection_s(size_bytes) + self.exchange(wire, ranks).time_s(size_bytes)
