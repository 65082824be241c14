"""When which phase runs: rounds of blocks, the same on every rank.

A *round* holds one block of every phase, so that drift hits all phases alike. A *segment* is a stretch of steps
under one phase; its first steps live on what the phase before left over (full queues, work still on the GPU)
and are not kept. All ranks follow the same segments by counting steps. What changes while the job runs (the
block length, whether another round follows) is decided by rank 0 and read by the others at the same step.
"""

import math
from dataclasses import dataclass

import msgspec

AS_IS = "as is"
HOST = "replay from host"
DEVICE = "replay from device"
NODE = "node only"
ALONE = "no exchange"
COLD = "cold"
LAYERS = "layers"
TRACE = "trace"
WARMUP = "warm-up"

DIFFERS = {
    AS_IS: "nothing",
    HOST: "the loader hands out batches of the block before again",
    DEVICE: "the same batches, already on the device",
    NODE: "gradients are exchanged inside each node only",
    ALONE: "no gradient exchange, no broadcast of buffers",
    COLD: "data files are read from storage, their cached pages dropped as they are opened",
    LAYERS: "as without exchange, with marks at every layer and gradient",
    TRACE: "nothing, while torch's profiler looks on",
}

LADDER = (AS_IS, HOST, DEVICE, NODE, ALONE)
"""Each phase lacks what the one before has, so times fall along it; the differences are the stalls."""

REAL_LOADER = frozenset({AS_IS, COLD, TRACE})
"""Phases in which the script's own loader hands out batches."""

WITHOUT_EXCHANGE = frozenset({ALONE, LAYERS})


@dataclass(frozen=True, slots=True)
class Segment:
    """`settle + steps` steps under one phase; only the last `steps` are kept."""

    phase: str
    settle: int
    steps: int


class Round(msgspec.Struct, frozen=True):
    """What rank 0 announces before each round; no phases means that the profile ends here."""

    phases: tuple[str, ...]
    block_steps: int
    settle_steps: int
    queue_steps: int

    def segments(self) -> tuple[Segment, ...]:
        """The stretches of this round in order.

        A phase that uses the real loader follows one that did not, so the batches already queued must be used up
        before its steps count.
        """
        return tuple(
            Segment(
                phase,
                self.settle_steps + (self.queue_steps if phase in REAL_LOADER else 0),
                self.block_steps,
            )
            for phase in self.phases
        )


def block_steps(step_s: float, block_s: float, quantum: int) -> int:
    """The length of a block: at least `block_s`, and a whole multiple of `quantum` (loader workers × depth).

    Loaders deliver in bursts of that size; a block that cuts a burst measures luck.
    """
    wanted = max(1, math.ceil(block_s / step_s)) if step_s > 0 else 1
    return math.ceil(max(wanted, 4) / quantum) * quantum


def phases_for(
    *, has_loader: bool, on_device: bool, world_size: int, nodes: int, has_exchange: bool
) -> tuple[str, ...]:
    """The phases that mean something for this job, in the order of the ladder."""
    local = world_size // nodes
    return (
        AS_IS,
        *((HOST,) if has_loader else ()),
        *((DEVICE,) if has_loader and on_device else ()),
        *((NODE,) if has_exchange and nodes > 1 and local > 1 else ()),
        *((ALONE,) if has_exchange and world_size > 1 else ()),
    )
