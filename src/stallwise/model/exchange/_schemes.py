"""Schemes of exchanging gradients that schedule their own messages, and those that shard.

| scheme             | messages                                     | starts                      | gates              |
| horovod            | what is ready at a tick, fused up to a limit | at the tick                 | update             |
| p3, bytescheduler  | slices, the lowest layer that is ready first | backward of the layer       | next forward of it |
| hybrid             | zero3's in a node; 1/g across nodes          | as zero3; after the scatter | as zero3; update   |
| local-sgd          | buckets of parameters, every K passes        | after the last pass         | next pass          |

Each function gives messages in the order in which they use their channel. The order is that of the nominal costs.

**Sharded data parallelism.** Gradients of a unit (a run of layers, `bucket_bytes` large) are reduce-scattered once its
backward is done; parameters are all-gathered before they are needed. Traffic per GPU in units of (N-1)/N of the
parameter bytes: ZeRO-1, ZeRO-2 and SHARD_GRAD_OP 2, ZeRO-3 (FULL_SHARD) 3 (Rajbhandari et al., *ZeRO*, SC 2020).

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

import heapq
import math
from collections.abc import Iterator
from dataclasses import replace

from stallwise.errors import InputError
from stallwise.model.exchange._messages import CollectivePrices, LayerPass, Message, reductions
from stallwise.model.exchange.merge import Exchange, Gradients, Merge, message_bytes

MIB = 1024 * 1024
HOROVOD_FUSION_BYTES = 128 * MIB
HOROVOD_CYCLE_S = 1e-3
"""Horovod's defaults since 0.21 (before: 64 MB and 5 ms)."""
P3_SLICE_BYTES = 50_000 * 4
"""P3's slices of 50,000 parameters."""
BYTESCHEDULER_SLICE_BYTES = 1_000_000 * 4
"""ByteScheduler's partition of 1,000,000 parameters, before its tuning."""
SHARD_CHANNEL = "node link"


def horovod(
    gradients: Gradients, exchange: Exchange, *, fusion_bytes: float, cycle_s: float, part: float = 1.0, index: int = 0
) -> tuple[Message, ...]:
    """Tensor fusion (Sergeev & Del Balso, *Horovod*, arXiv 1802.05799; horovod/docs/tensor-fusion.rst).

    A background loop wakes every `cycle_s`, counted from the start of backward, takes all tensors that are ready, and
    all-reduces them in runs of at most `fusion_bytes` (a larger tensor travels alone, 0 fuses nothing). It is busy
    until they are done; a cycle that lasted longer is followed at once by the next:

        tick_0 = T,  tick_(k+1) = max(tick_k + T, end of what was sent at tick_k).

    Where backward stands in the cycle is not known and drifts; a tick at its very start is taken. Negotiating which
    tensors are ready on all ranks is taken to cost nothing.
    """
    if fusion_bytes < 0 or cycle_s < 0:
        raise InputError(f"fusion_bytes and cycle_s must not be negative, not {fusion_bytes} and {cycle_s}.")
    runs: list[range] = []
    ticks: list[float] = []
    tick_s, sent = cycle_s, 0
    while sent < len(gradients):
        tick_s = _tick(tick_s, gradients.ready_s[sent], cycle_s)
        ready = sent
        while ready < len(gradients) and gradients.ready_s[ready] <= tick_s:
            ready += 1
        fused = list(_fused(gradients, sent, ready, fusion_bytes))
        end_s = tick_s + sum(exchange(size * part) for size in message_bytes(gradients, tuple(fused)))
        runs += fused
        ticks += [tick_s] * len(fused)
        tick_s, sent = max(tick_s + cycle_s, end_s), ready
    costs = [exchange(size * part) for size in message_bytes(gradients, tuple(runs))]
    messages = reductions(gradients, tuple(runs), costs, part=part, index=index)
    # Without a cycle the loop polls continuously: the edges alone determine the start.
    return tuple(replace(m, not_before_s=at if cycle_s else 0.0) for m, at in zip(messages, ticks, strict=True))


def _tick(tick_s: float, ready_s: float, cycle_s: float) -> float:
    """The first tick from `tick_s` on at which something is ready."""
    if ready_s <= tick_s:
        return tick_s
    if not cycle_s:
        return ready_s
    next_s = tick_s + math.ceil((ready_s - tick_s) / cycle_s) * cycle_s
    return next_s if next_s >= ready_s else ready_s  # rounding


def _fused(gradients: Gradients, first: int, end: int, fusion_bytes: float) -> Iterator[range]:
    begin, filled = first, 0
    for i in range(first, end):
        size = gradients.bytes[i]
        if i > begin and filled + size > fusion_bytes:
            yield range(begin, i)
            begin, filled = i, 0
        filled += size
    if end > begin:
        yield range(begin, end)


def priority(
    gradients: Gradients, exchange: Exchange, *, slice_bytes: float, part: float = 1.0, index: int = 0
) -> tuple[Message, ...]:
    """Slices in the order of need (Jayarajan et al., *P3*, MLSys 2019; Peng et al., *ByteScheduler*, SOSP 2019).

    A gradient of M bytes travels as ⌈M / slice⌉ equal slices. Whenever the channel is free it takes a slice of the
    lowest layer that is ready; a slice once begun is not interrupted. Layer l's last slice gates forward l of the next
    step, so exchange hides behind the next forward too; each layer is updated before its forward. All slices of a step
    are sent before the next backward begins (its forward waits for them), so one step's order is the whole order.

    Every slice pays the start-up time in full: with a start-up of a the channel is busy for ⌈M/slice⌉ a more than with
    one message, which is why real schedulers were often slower than plain WFBP. Slices sent one after the other for
    the same layer are one message here; that changes no time.
    """
    if not slice_bytes > 0:
        raise InputError(f"A slice of {slice_bytes} bytes holds nothing; give at least 1 byte.")
    counts = [max(1, math.ceil(size * part / slice_bytes)) for size in gradients.bytes]
    each_s = [exchange(size * part / count) for size, count in zip(gradients.bytes, counts, strict=True)]
    return tuple(
        Message(
            what="all-reduce",
            layers=(gradients.layers[i], gradients.layers[i]),
            bytes=gradients.bytes[i] * part * slices / counts[i],
            seconds=each_s[i] * slices,
            after=("backward", gradients.layers[i]),
            # Slices that are followed by others of their layer gate nothing that those do not.
            gates=("forward", gradients.layers[i]),
            next_step=True,
            index=index,
        )
        for i, slices in _in_order_of_need(gradients, counts, each_s)
    )


def _in_order_of_need(gradients: Gradients, counts: list[int], each_s: list[float]) -> Iterator[tuple[int, int]]:
    """(Gradient, slices in a row) as the channel sends them."""
    waiting: list[int] = []  # negated: the gradient that became ready last belongs to the lowest layer
    left = list(counts)
    now_s, arrived = 0.0, 0
    while arrived < len(left) or waiting:
        if not waiting:
            now_s = max(now_s, gradients.ready_s[arrived])
        while arrived < len(left) and gradients.ready_s[arrived] <= now_s:
            heapq.heappush(waiting, -arrived)
            arrived += 1
        i = -waiting[0]
        slices = left[i]
        # Until the next gradient, which is of a lower layer, is ready.
        if arrived < len(left) and (until_s := gradients.ready_s[arrived] - now_s) < slices * each_s[i]:
            slices = max(1, math.ceil(until_s / each_s[i]))
        yield i, slices
        now_s += slices * each_s[i]
        left[i] -= slices
        if not left[i]:
            heapq.heappop(waiting)


def hybrid(
    gradients: Gradients, runs: Merge, prices: CollectivePrices, *, passes: int, last_layer: int, part: float = 1.0
) -> tuple[Message, ...]:
    """Hybrid sharding (FSDP's HYBRID_SHARD: Zhao et al., *PyTorch FSDP*, VLDB 2023; MiCS, arXiv 2205.00119).

    Parameters are sharded over the g GPUs of a node and replicated over n nodes. In the node everything is as with
    zero3; after a unit's reduce-scatter each GPU all-reduces its 1/g of the unit with its peers, all g at once
    through the node's one NIC: 2(n-1) α + 2 (n-1)/n β M for M bytes of the unit. Traffic of a GPU in the node is
    3 (g-1)/g M, of a NIC 2 (n-1)/n M. The two kinds of link work beside each other. One node is zero3; nodes of one
    GPU are plain buckets.
    """
    if prices.shard is None or prices.replicas is None:
        raise InputError(
            "Hybrid sharding needs the link inside a node and the one between nodes.",
            fields=("gpus_per_node", "link", "network", "machine"),
        )
    units = ShardedUnits(gradients, runs, prices.shard, part=part)
    sent: list[Message] = []
    for message in sharded_messages(units, "zero3", passes, last_layer=last_layer):
        sent.append(replace(message, channel=SHARD_CHANNEL, follows=None))
        if message.what == "reduce-scatter":
            sent.append(_across(message, len(sent) - 1, prices.replicas))
    return tuple(sent)


def _across(scattered: Message, place: int, replicas: Exchange) -> Message:
    return replace(scattered, what="all-reduce", seconds=replicas(scattered.bytes), channel="network", follows=place)


def local_sgd(
    gradients: Gradients, exchange: Exchange, *, runs: Merge, passes: int, part: float = 1.0
) -> tuple[Message, ...]:
    """Local SGD (Stich, ICLR 2019; Lin et al., *Don't Use Large Mini-Batches, Use Local SGD*, ICLR 2020).

    Every GPU updates its own parameters after every pass; after `passes` of them the parameters are averaged, in
    messages of `runs`, and nothing overlaps: (F + Bk + t_u) K + Σ t(M). Parameters are as large as their gradients.
    With K = 1 that is exchange after backward. What staleness does to convergence is not modelled.
    """
    costs = [exchange(size * part) for size in message_bytes(gradients, runs)]
    averaged = reductions(gradients, runs, costs, part=part, index=passes - 1)
    # Averaging comes after the last update; before it, the step is as long.
    return tuple(replace(message, after=("backward", 0)) for message in averaged)


SHARDED_SCHEMES = ("zero1", "zero2", "shard-grad-op", "zero3", "dear")
_AHEAD = 2


class ShardedUnits:
    """Sharded units in forward order, each with the layers it spans and the bytes of its parameters."""

    def __init__(self, gradients: Gradients, runs: Merge, prices: CollectivePrices, *, part: float = 1.0) -> None:
        self.spans = [(gradients.layers[run.stop - 1], gradients.layers[run.start]) for run in reversed(runs)]
        self.bytes = message_bytes(gradients, runs)[::-1]
        self._prices, self._part = prices, part

    def gather(self, unit: int, index: int, after: LayerPass | None, gates: LayerPass) -> Message:
        """The all-gather of a unit's parameters in pass `index`."""
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
        """The reduce-scatter of a unit's gradients, a fraction `part` of which is sent."""
        size = self.bytes[unit] * self._part
        return Message(
            what="reduce-scatter",
            layers=self.spans[unit],
            bytes=size,
            seconds=self._prices.scatter_s(size),
            after=("backward", self.spans[unit][0]),
            index=index,
        )


def sharded_messages(units: ShardedUnits, scheme: str, passes: int, *, last_layer: int) -> tuple[Message, ...]:
    """The messages of all passes of a step, in channel order. Compression is of gradients, not of parameters."""
    sent: list[Message] = []
    for index in range(passes):
        sent += _gathers(units, scheme, index)
        if scheme == "zero3":
            sent += _backward_of_zero3(units, index, last_layer)
        elif index == passes - 1 or scheme in ("zero2", "shard-grad-op"):
            sent += [units.scatter(unit, index) for unit in reversed(range(len(units.spans)))]
    return tuple(sent)


def _gathers(units: ShardedUnits, scheme: str, index: int) -> Iterator[Message]:
    if index and scheme in ("zero1", "zero2", "dear"):
        return  # parameters are whole until the next update
    for unit, (first, _) in enumerate(units.spans):
        limited = scheme in ("shard-grad-op", "zero3") and unit >= _AHEAD
        after: LayerPass | None = ("forward", units.spans[unit - _AHEAD][1]) if limited else None
        yield units.gather(unit, index, after, ("forward", 0 if scheme in ("zero1", "zero2") else first))


def _backward_of_zero3(units: ShardedUnits, index: int, last_layer: int) -> Iterator[Message]:
    count = len(units.spans)
    for unit in reversed(range(count)):
        # Requested when the unit above begins its backward; the topmost when forward is done.
        above = units.spans[unit + 2][0] if unit + 2 < count else None
        after: LayerPass = ("forward", last_layer) if above is None else ("backward", above)
        yield units.gather(unit, index, after, ("backward", units.spans[unit][1]))
        if unit + 1 < count:
            yield units.scatter(unit + 1, index)
    if count:
        yield units.scatter(0, index)
