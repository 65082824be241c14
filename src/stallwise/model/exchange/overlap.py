"""Overlap schemes as edge sets: which messages a step sends, what each waits for, and what waits for it.

| scheme         | messages                                  | starts after                | gates                   |
| none           | one per layer                             | backward                    | update                  |
| fused          | one (SyncEASGD, BSP)                      | backward                    | update                  |
| wfbp           | one per layer                             | backward of the layer       | update                  |
| ddp            | torch's buckets in ready order            | backward of its last layer  | update                  |
| mg-wfbp        | merged, as published                      | backward of its last layer  | update                  |
| optimal        | merged, exact optimum                     | backward of its last layer  | update                  |
| zero1, zero2, shard-grad-op, zero3, dear        | see `schemes.py`                                      |
| horovod, p3, bytescheduler, hybrid, local-sgd   | see `schemes.py`                                      |
| p3-ideal       | all, in any order, sliced at will         | nothing                     | nothing: own loop       |

`p3-ideal` (P3, ByteScheduler) is the limit max(compute, exchange) that no scheduler reaches: compare with it, do not
predict with it. All-reduces may be replaced by parameter servers (`through`) or by sparsified exchange (`sparse`).

**Frameworks** of the DAG paper as sets of edges (Shi et al., arXiv 1805.03812):

| framework  | reading   | copy to the GPU         | exchange                                                    |
| caffe-mpi  | ahead     | hidden (buffer on GPU)  | all-reduce of every layer, beside backward                  |
| cntk       | ahead     | waits with compute      | all-reduce of every layer, after backward                   |
| mxnet      | ahead     | waits with compute      | push and pull of every layer, beside backward               |
| tensorflow | ahead     | waits with compute      | push and pull of every layer, beside backward               |

As they were in 2018, from recollection of the paper (its full text could not be read again): a starting point for
reading old measurements, not a statement about today's releases. Servers run on the workers' machines.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from stallwise.errors import InputError, UnknownNameError
from stallwise.model.exchange import _schemes as schemes
from stallwise.model.exchange import merge
from stallwise.model.exchange._messages import CollectivePrices, ExchangePlan, Message, Updates, reductions
from stallwise.model.exchange.collectives import Sparse, parameter_server
from stallwise.model.exchange.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES, Exchange, Gradients, Merge
from stallwise.workload.layers import LayerTrace

Scheme = Literal[
    "none",
    "fused",
    "wfbp",
    "ddp",
    "mg-wfbp",
    "optimal",
    "zero1",
    "zero2",
    "shard-grad-op",
    "zero3",
    "dear",
    "horovod",
    "p3",
    "bytescheduler",
    "hybrid",
    "local-sgd",
    "p3-ideal",
]
SCHEMES: tuple[str, ...] = get_args(Scheme)
FP16 = 0.5
"""Fraction of the bytes left of 32-bit gradients sent as 16-bit numbers; start-up times stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """How a job exchanges its gradients."""

    scheme: Scheme = "ddp"
    bucket_bytes: int = DDP_BUCKET_BYTES
    """Bucket size of ddp and the sharded schemes; torch uses it for the first bucket too once a user sets it."""
    first_bucket_bytes: int = DDP_FIRST_BYTES
    compression: float = 1.0
    """Fraction of the gradient bytes that is sent; 0.5 is fp16 (`FP16`). Costs of compressing are not modelled."""
    accumulate: int = 1
    """Forward and backward passes per update; the trace is of one of them. Local SGD: passes, each with its update,
    per averaging."""
    fusion_bytes: int = schemes.HOROVOD_FUSION_BYTES
    cycle_s: float = schemes.HOROVOD_CYCLE_S
    slice_bytes: int | None = None
    """Slice size of p3 and bytescheduler; None: the default of each."""
    through: Literal["all-reduce", "servers"] = "all-reduce"
    """Servers: gradients are pushed to parameter servers, one on every worker's machine, and parameters pulled."""
    sparse: Sparse | None = None
    """Sparsified exchange: only the largest values are sent."""

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise UnknownNameError("overlap scheme", self.scheme, SCHEMES)
        if not 0 < self.compression <= 1:
            raise InputError(f"A compression of {self.compression} is not a fraction between 0 and 1; fp16 is {FP16}.")
        if self.accumulate < 1:
            raise InputError(f"There must be at least 1 pass per update, not {self.accumulate}.")
        if self.sparse and (self.scheme not in _MERGES or self.through == "servers" or self.compression != 1.0):
            raise InputError(
                f"Sparsified gradients replace whole all-reduces, which overlap {self.scheme!r} does not send as they "
                f"are. Use one of {', '.join(_MERGES)}, uncompressed."
            )

    @property
    def updates(self) -> Updates:
        """When parameters are updated."""
        if self.scheme in _PRIORITY:
            return "by layer"
        return "every pass" if self.scheme == "local-sgd" else "once"


_PRIORITY = {"p3": schemes.P3_SLICE_BYTES, "bytescheduler": schemes.BYTESCHEDULER_SLICE_BYTES}


def plan(trace: LayerTrace, prices: CollectivePrices | Exchange | None, overlap: Overlap) -> ExchangePlan:
    """Plan the messages of one step in the order they use the channel.

    Without prices the exchange times in the trace are used; then nothing can be merged, split or compressed.
    """
    gradients = merge.gradients_of(trace)
    if prices is not None:
        messages = _messages(trace, gradients, _priced(prices, trace), overlap)
    else:
        messages = _measured(trace, gradients, overlap)
    if overlap.scheme in ("none", "fused"):
        messages = tuple(replace(message, after=("backward", 0)) for message in messages)
    detached = overlap.scheme == "p3-ideal"
    return ExchangePlan(messages=messages, passes=overlap.accumulate, detached=detached, updates=overlap.updates)


def _messages(
    trace: LayerTrace, gradients: Gradients, prices: CollectivePrices, overlap: Overlap
) -> tuple[Message, ...]:
    scheme, part, index = overlap.scheme, overlap.compression, overlap.accumulate - 1
    if scheme in schemes.SHARDED_SCHEMES:
        return _sharded(trace, gradients, prices, overlap)
    if scheme == "hybrid":
        last = len(trace.layers) - 1
        if _free(prices, gradients):
            prices = replace(prices, shard=prices, replicas=prices.all_reduce)
        return schemes.hybrid(
            gradients, _units(gradients, overlap), prices, passes=overlap.accumulate, last_layer=last, part=part
        )
    exchange = _exchange(prices, overlap)
    if scheme == "horovod":
        cycle_s = 0.0 if _free(prices, gradients) else overlap.cycle_s
        return schemes.horovod(
            gradients, exchange, fusion_bytes=overlap.fusion_bytes, cycle_s=cycle_s, part=part, index=index
        )
    if scheme in _PRIORITY:
        size = overlap.slice_bytes or _PRIORITY[scheme]
        return schemes.priority(gradients, exchange, slice_bytes=size, part=part, index=index)
    if scheme == "local-sgd":
        runs = _units(gradients, overlap)
        return schemes.local_sgd(gradients, exchange, runs=runs, passes=overlap.accumulate, part=part)
    return _reduced(gradients, exchange, overlap)


def _exchange(prices: CollectivePrices, overlap: Overlap) -> Exchange:
    """The exchange in place of an all-reduce: itself, parameter servers, or sparsified exchange."""
    sparse, wire, ranks = overlap.sparse, prices.wire, prices.ranks
    if sparse is None and overlap.through == "all-reduce":
        return prices.all_reduce

    def priced(size: float) -> float:
        if not prices.all_reduce(size):
            return 0.0  # only one rank
        if wire is None or ranks is None:
            raise InputError(
                "Parameter servers and sparsified gradients are priced by the rate and start-up time of a link, and "
                "only the cost of an all-reduce is known here.",
                fields=("network", "link"),
            )
        if sparse is not None:
            return sparse.time_s(size, wire, ranks)
        return parameter_server(wire, ranks, ranks, colocated=True).time_s(size)

    return priced


def _free(prices: CollectivePrices, gradients: Gradients) -> bool:
    """Whether exchange costs nothing: there is only one rank."""
    return not any(prices.all_reduce(size) for size in gradients.bytes)


def _units(gradients: Gradients, overlap: Overlap) -> Merge:
    return merge.ddp_buckets(gradients, first_bytes=overlap.bucket_bytes, bucket_bytes=overlap.bucket_bytes)


def _priced(prices: CollectivePrices | Exchange, trace: LayerTrace) -> CollectivePrices:
    for layer in trace.layers:
        if layer.exchange_s and not layer.gradient_bytes:
            raise InputError(
                f"Layer {layer.name!r} of {trace.source} was exchanged, but the size of its gradient is not known; "
                "only its measured exchange times can be used (overlap none or wfbp, no other network)."
            )
    return (prices if isinstance(prices, CollectivePrices) else CollectivePrices(all_reduce=prices)).checked(
        trace.source
    )


def _reduced(gradients: Gradients, all_reduce: Exchange, overlap: Overlap) -> tuple[Message, ...]:
    def price(size: float) -> float:
        return all_reduce(size * overlap.compression)

    # torch fills buckets with gradients as they are; a compression hook shrinks the full bucket.
    runs = _MERGES[overlap.scheme](gradients, price, overlap)
    seconds = [price(size) for size in merge.message_bytes(gradients, runs)]
    return reductions(gradients, runs, seconds, part=overlap.compression, index=overlap.accumulate - 1)


def _measured(trace: LayerTrace, gradients: Gradients, overlap: Overlap) -> tuple[Message, ...]:
    changed = overlap.compression != 1.0 or overlap.sparse is not None or overlap.through != "all-reduce"
    if overlap.scheme not in ("none", "wfbp", "p3-ideal") or changed:
        raise InputError(
            f"Overlap {overlap.scheme!r} needs to know what a message of any size costs, but of {trace.source} "
            "only the exchange times of single layers are known. Use a known network, or none or wfbp uncompressed.",
            fields=("network", "overlap"),
        )
    seconds = []
    for layer in (trace.layers[index] for index in gradients.layers):
        if layer.exchange_s is None:
            raise InputError(
                f"Layer {layer.name!r} of {trace.source} has no measured exchange time.", fields=("network",)
            )
        seconds.append(layer.exchange_s)
    return reductions(gradients, merge.each_alone(gradients), seconds, index=overlap.accumulate - 1)


def _sharded(
    trace: LayerTrace, gradients: Gradients, prices: CollectivePrices, overlap: Overlap
) -> tuple[Message, ...]:
    runs = _units(gradients, overlap)
    units = schemes.ShardedUnits(gradients, runs, prices, part=overlap.compression)
    return schemes.sharded_messages(units, overlap.scheme, overlap.accumulate, last_layer=len(trace.layers) - 1)


_MERGES: dict[str, Callable[[Gradients, Exchange, Overlap], Merge]] = {
    "none": lambda gradients, _, __: merge.each_alone(gradients),
    "fused": lambda gradients, _, __: merge.all_in_one(gradients),
    "wfbp": lambda gradients, _, __: merge.each_alone(gradients),
    "ddp": lambda gradients, _, overlap: merge.ddp_buckets(
        gradients, first_bytes=overlap.first_bucket_bytes, bucket_bytes=overlap.bucket_bytes
    ),
    "mg-wfbp": lambda gradients, price, _: merge.mg_wfbp(gradients, price),
    "optimal": lambda gradients, price, _: merge.optimal_merge(gradients, price),
    "p3-ideal": lambda gradients, _, __: merge.each_alone(gradients),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How a framework exchanges gradients and copies batches."""

    name: str
    overlap: Overlap
    copy: Literal["inline", "engine"]


FRAMEWORKS: Mapping[str, Framework] = {
    framework.name: framework
    for framework in (
        Framework(name="caffe-mpi", overlap=Overlap(scheme="wfbp"), copy="engine"),
        Framework(name="cntk", overlap=Overlap(scheme="none"), copy="inline"),
        Framework(name="mxnet", overlap=Overlap(scheme="wfbp", through="servers"), copy="inline"),
        Framework(name="tensorflow", overlap=Overlap(scheme="wfbp", through="servers"), copy="inline"),
    )
}


def framework(name: str) -> Framework:
    """Return a framework by name; raises an `UnknownNameError` for others."""
    match = FRAMEWORKS.get(name.lower())
    if match is None:
        raise UnknownNameError("framework", name, tuple(FRAMEWORKS))
    return match
