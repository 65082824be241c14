"""Sharded data parallelism: what ZeRO, FSDP and DeAR send, and when.

Gradients of a unit (a run of layers, `bucket_bytes` large) are reduce-scattered once its backward is done; parameters
are all-gathered before they are needed. Traffic per GPU in units of (N-1)/N of the parameter bytes: ZeRO-1, ZeRO-2 and
SHARD_GRAD_OP 2, ZeRO-3 (FULL_SHARD) 3 (Rajbhandari et al., *ZeRO*, SC 2020).

| scheme        | gather                                                         | gradients                          |
| zero1         | all units after the update, before any forward                 | scattered in the last pass         |
| zero2         | the same                                                       | scattered in every pass            |
| shard-grad-op | a unit before its forward, at most two ahead; kept for backward | scattered in every pass           |
| zero3         | the same, and again before its backward, one ahead             | scattered in every pass            |
| dear          | a unit before its forward, as far ahead as the channel allows  | scattered in the last pass         |

zero1 and zero2 are DeepSpeed's stages (the gather is not overlapped), shard-grad-op and zero3 FSDP's strategies with
its defaults: `limit_all_gathers` allows two gathered units ahead, `BACKWARD_PRE` fetches the next unit before the
current gradients are computed, and its gather uses the channel before the current scatter. DeAR: arXiv 2302.12445.
"""

from collections.abc import Iterator

from stallwise.model.merge import Gradients, Merge, message_bytes
from stallwise.model.messages import Message, Point, Prices

SCHEMES = ("zero1", "zero2", "shard-grad-op", "zero3", "dear")
_AHEAD = 2


class Units:
    """Units in forward order, each with the layers it spans and the bytes of its parameters."""

    def __init__(self, gradients: Gradients, runs: Merge, prices: Prices, *, part: float = 1.0) -> None:
        self.spans = [(gradients.layers[run.stop - 1], gradients.layers[run.start]) for run in reversed(runs)]
        self.bytes = message_bytes(gradients, runs)[::-1]
        self._prices, self._part = prices, part

    def gather(self, unit: int, index: int, after: Point | None, gates: Point) -> Message:
        """The parameters of a unit, in pass `index`."""
        return Message(
            what="all-gather",
            layers=self.spans[unit],
            bytes=self.bytes[unit],
            seconds=self._prices.gather_s(self.bytes[unit]),
            after=after,
            gates=gates,
            index=index,
        )

    def scatter(self, unit: int, index: int) -> Message:
        """The gradients of a unit, of which `part` travels."""
        size = self.bytes[unit] * self._part
        return Message(
            what="reduce-scatter",
            layers=self.spans[unit],
            bytes=size,
            seconds=self._prices.scatter_s(size),
            after=("backward", self.spans[unit][0]),
            index=index,
        )


def messages(units: Units, scheme: str, passes: int, *, last_layer: int) -> tuple[Message, ...]:
    """The messages of all passes of a step, in channel order. Compression is of gradients, not of parameters."""
    found: list[Message] = []
    for index in range(passes):
        found += _gathers(units, scheme, index)
        if scheme == "zero3":
            found += _backward_of_zero3(units, index, last_layer)
        elif index == passes - 1 or scheme in ("zero2", "shard-grad-op"):
            found += [units.scatter(unit, index) for unit in reversed(range(len(units.spans)))]
    return tuple(found)


def _gathers(units: Units, scheme: str, index: int) -> Iterator[Message]:
    if index and scheme in ("zero1", "zero2", "dear"):
        return  # parameters are whole until the next update
    for unit, (first, _) in enumerate(units.spans):
        limited = scheme in ("shard-grad-op", "zero3") and unit >= _AHEAD
        after: Point | None = ("forward", units.spans[unit - _AHEAD][1]) if limited else None
        yield units.gather(unit, index, after, ("forward", 0 if scheme in ("zero1", "zero2") else first))


def _backward_of_zero3(units: Units, index: int, last_layer: int) -> Iterator[Message]:
    count = len(units.spans)
    for unit in reversed(range(count)):
        # Asked for when the unit above begins its backward; the topmost when forward is done.
        above = units.spans[unit + 2][0] if unit + 2 < count else None
        after: Point = ("forward", last_layer) if above is None else ("backward", above)
        yield units.gather(unit, index, after, ("backward", units.spans[unit][1]))
        if unit + 1 < count:
            yield units.scatter(unit + 1, index)
    if count:
        yield units.scatter(0, index)
