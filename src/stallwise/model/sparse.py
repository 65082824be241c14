"""What sparsified gradients cost: top-k by all-gather, and gTop-k by a tree.

Only the k = ρm largest of m values travel, each with its index: 2 ρ M bytes for M bytes of gradients. P ranks:

    top-k    log2 P α + 2 (P-1) ρ M β          every rank gathers every other rank's k
    gTop-k   2 log2 P α + 4 log2 P ρ M β       pairs merge to k again, level by level, and the result goes back

(Shi et al., *A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth Networks*,
ICDCS 2019; HKBU-HPML/gtopkssgd). Selecting the largest of x values takes s x log2 x seconds, with s = 5.0e-10 on a
V100 and 2.19e-10 on a P102-100 as the authors measured. Selection is counted with the message it belongs to: on the
channel, not on the GPU. What sparsification does to convergence is not modelled.
"""

import math
from dataclasses import dataclass
from typing import Literal

from stallwise.errors import InputError
from stallwise.model.collectives import AlphaBeta, Wire

Sparsifier = Literal["topk", "gtopk"]
V100_SELECT_S = 5.0e-10
P102_SELECT_S = 2.19e-10
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparse:
    """A sparsifier; `density` is ρ."""

    kind: Sparsifier
    density: float
    select_s: float = V100_SELECT_S
    """s of the selection, per element and doubling."""

    def __post_init__(self) -> None:
        if self.kind not in ("topk", "gtopk"):
            raise InputError(f"Sparsified gradients are exchanged by topk or gtopk, not {self.kind!r}.")
        if not 0 < self.density <= 1:
            raise InputError(f"A density of {self.density} is not a part between 0 and 1; 0.001 is usual.")

    def exchange(self, wire: Wire, ranks: int) -> AlphaBeta:
        """Start-up, and seconds per byte of the *dense* gradient; nothing among one."""
        if ranks == 1:
            return AlphaBeta(0.0, 0.0)
        levels, beta = math.log2(ranks), wire.s_per_byte
        if self.kind == "topk":
            return AlphaBeta(levels * wire.latency_s, 2 * (ranks - 1) * self.density * beta)
        return AlphaBeta(2 * levels * wire.latency_s, 4 * levels * self.density * beta)

    def selection_s(self, size_bytes: float) -> float:
        """s x log2 x for the x elements of `size_bytes` of 32-bit gradients."""
        elements = size_bytes / _ELEMENT_BYTES
        return self.select_s * elements * math.log2(elements) if elements > 1 else 0.0

    def time_s(self, size_bytes: float, wire: Wire, ranks: int) -> float:
        """Selection and exchange of one message."""
        if ranks == 1 or not size_bytes:
            return 0.0
        return self.selection_s(size_bytes) + self.exchange(wire, ranks).time_s(size_bytes)
