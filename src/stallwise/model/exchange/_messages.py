"""The messages of a step: the price of each, what it waits for and what waits for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stallwise.model.exchange.collectives import Wire
from stallwise.model.exchange.merge import Exchange, Gradients, Merge, checked, message_bytes

LayerPass = tuple[Literal["forward", "backward"], int]
"""The forward or backward of a layer (index in forward order) in the pass a message belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One collective of `layers` (first and last, forward order) on the channel."""

    what: Literal["all-reduce", "reduce-scatter", "all-gather"]
    layers: tuple[int, int]
    bytes: float
    seconds: float
    after: LayerPass | None
    """Starts after this; None: with the step, as soon as the last update is done."""
    gates: LayerPass | None = None
    """This waits for it; None: the update does."""
    index: int = 0
    """Which forward and backward pass of an accumulated step it belongs to."""
    next_step: bool = False
    """What it gates belongs to the first pass of the next step; otherwise to its own pass."""
    not_before_s: float = 0.0
    """Earliest start, from the start of backward of its pass (a timer)."""
    channel: str = "network"
    """Messages of one channel follow each other; different channels work in parallel."""
    follows: int | None = None
    """Index in the plan of a message of another channel that must have ended; None: there is none."""


Updates = Literal["once", "every pass", "by layer"]
"""When parameters are updated: after the last pass; after each (local SGD); each layer's before its next forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangePlan:
    """The messages of a step in channel order."""

    messages: tuple[Message, ...]
    passes: int = 1
    updates: Updates = "once"
    detached: bool = False
    """An idealised limit: messages wait only for each other, and nothing waits for them."""

    @property
    def exchange_s(self) -> float:
        """Seconds that the channel is busy in a step."""
        return sum(message.seconds for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrices:
    """Seconds of each collective over the bytes it concerns (the whole tensor, not a shard).

    Where only all-reduce is known, its two halves are priced at half of it each: a ring all-reduce *is* a
    reduce-scatter and an all-gather of equal cost.
    """

    all_reduce: Exchange
    reduce_scatter: Exchange | None = None
    all_gather: Exchange | None = None
    wire: Wire | None = None
    """The slowest link on the way, where it is known: exchanges other than all-reduce are priced by it."""
    ranks: int | None = None
    shard: "CollectivePrices | None" = None
    """Collectives among the GPUs of one node alone; with `replicas`, what hybrid sharding needs."""
    replicas: Exchange | None = None
    """All-reduces of every GPU of a node with its peers on the other nodes, all at once; by the bytes of all shards."""

    def scatter_s(self, size: float) -> float:
        """Seconds of a reduce-scatter of `size` bytes."""
        return self.reduce_scatter(size) if self.reduce_scatter else self.all_reduce(size) / 2

    def gather_s(self, size: float) -> float:
        """Seconds of an all-gather of `size` bytes."""
        return self.all_gather(size) if self.all_gather else self.all_reduce(size) / 2

    def checked(self, source: str) -> "CollectivePrices":
        """Return the same prices, which raise an `InputError` where a price is not a valid time."""
        return replace(
            self,
            all_reduce=checked(self.all_reduce, source),
            reduce_scatter=checked(self.reduce_scatter, source) if self.reduce_scatter else None,
            all_gather=checked(self.all_gather, source) if self.all_gather else None,
            shard=self.shard.checked(source) if self.shard else None,
            replicas=checked(self.replicas, source) if self.replicas else None,
        )


def reductions(
    gradients: Gradients, runs: Merge, seconds: Sequence[float], *, part: float = 1.0, index: int = 0
) -> tuple[Message, ...]:
    """One all-reduce per run, started by the backward of its last layer; a fraction `part` of the bytes is sent."""
    return tuple(
        Message(
            what="all-reduce",
            layers=(gradients.layers[run.stop - 1], gradients.layers[run.start]),
            bytes=size * part,
            seconds=cost,
            after=("backward", gradients.layers[run.stop - 1]),
            index=index,
        )
        for run, size, cost in zip(runs, message_bytes(gradients, runs), seconds, strict=True)
    )
