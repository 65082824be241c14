"""The model in a trace: its gradients as they become ready, its passes, its gradient buckets.

Autograd marks the moment it stores a gradient (`AccumulateGrad`), with its shape where the trace was recorded with
`record_shapes=True`. Else the collectives of DDP's buckets stand for the gradients in them. A gradient is ready on the
device when the last kernel launched before that mark has ended.

Of a step that accumulates gradients over several passes, the gradients are those of the last pass, the one that
exchanges them. What the step model cannot represent is refused: several updates or exchanges in a step, and collectives
of several process groups.

Bucket limits are read from the all-reduces. torch fills buckets in the order gradients become ready and closes one
after the gradient that reaches its limit (`ddp_buckets`). A bucket of B bytes whose last gradient has m of them was
therefore closed by a limit in (B - m, B]; the last bucket may have stayed below its limit, so it says only that this is
above B - m. Any limits that all buckets allow cut the same gradients the same way.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from stallwise.analysis.traces._ranks import RankView, TracedJob, TracedPass, passes_of, updates_of
from stallwise.model.exchange.merge import DDP_BUCKET_BYTES, DDP_FIRST_BYTES, MIB
from stallwise.run.manifest import ModelRecord
from stallwise.run.schema import GradientRow
from stallwise.run.traces.device_trace import NO_LAUNCH, CollectiveCall, Gradient, ProfilerStep, Times, WorkKind
from stallwise.workload.layers import unnamed

_PRECISIONS = {4: "fp32", 2: "bf16", 8: "fp64"}
# Backward does twice the arithmetic of forward.
_PASSES_OF_FLOPS = 3.0
# Of the bytes that the last pass exchanges: beyond this much in the others they exchange gradients too.
_SOME = 0.5


@dataclass(frozen=True, slots=True)
class PassTimes:
    """The parts of one step on the device, in seconds."""

    forward_s: float
    backward_s: float
    update_s: float


@dataclass(frozen=True, slots=True)
class TracedModel:
    """What a prediction needs; `why_not` says what the trace lacks where `record` is None."""

    record: ModelRecord | None
    gradients: tuple[GradientRow, ...] = ()
    why_not: str | None = None
    strange_buckets: bool = False
    """Gradients were all-reduced, but not in buckets that torch's DDP would make of them with any limit."""


def traced_model(job: TracedJob, flops: float | None = None) -> TracedModel:
    """The model as the lowest rank that left a trace shows it, over the steps kept."""
    view = job.ranks[0]
    steps = _usual_steps(job, view)
    times = [seconds for step in steps if (seconds := _passes(view, step)) is not None]
    if not times:
        return TracedModel(
            None,
            why_not="no backward pass is in the trace, so the step cannot be taken apart by layers; record a whole "
            "step, backward pass included",
        )
    unsupported = _not_modelled(view, steps)
    if unsupported is not None:
        return TracedModel(None, why_not=unsupported)
    gradients = _of_autograd(view, steps) or _of_buckets(view, steps)
    if not gradients:
        return TracedModel(
            None,
            why_not="sizes of gradients are not in the trace; record it with record_shapes=True",
        )
    sizes, sent = [row.bytes for row in gradients], [size for _, _, size in _reduced(view, steps[-1].last)]
    buckets = buckets_among(sizes, sent)
    limits = None if buckets is None else limits_of(sizes, buckets)
    elements = sum(row.elements for row in gradients)
    return TracedModel(
        ModelRecord(
            parameters=elements,
            trained_parameters=elements,
            gradient_tensors=len(gradients),
            gradient_bytes=sum(sizes),
            layers=len(gradients),
            precision=_PRECISIONS.get(gradients[0].bytes // max(1, gradients[0].elements)),
            flops_per_step=flops if flops is not None else _flops(view, steps[-1]),
            micro_batches=len(steps[-1].passes),
            step_s=statistics.median((view.ends(step.number) - step.start_ns) / 1e9 for step in steps),
            forward_s=statistics.median(seconds.forward_s for seconds in times),
            backward_s=statistics.median(seconds.backward_s for seconds in times),
            update_s=statistics.median(seconds.update_s for seconds in times),
            bucket_bytes=tuple(buckets or sent),
            bucket_cap_bytes=limits.later_bytes if limits else None,
            first_bucket_bytes=limits.first_bytes if limits else None,
        ),
        tuple(gradients),
        strange_buckets=bool(sent) and limits is None,
    )


def _usual_steps(job: TracedJob, view: RankView) -> "list[_StepPasses]":
    """Kept steps with the usual number of passes: a short accumulation at an epoch's end is another step."""
    steps = [
        passes for step in view.steps if step.number in job.kept and (passes := _step_passes(view, step)) is not None
    ]
    usual = statistics.mode(len(step.passes) for step in steps) if steps else 0
    return [step for step in steps if len(step.passes) == usual]


@dataclass(frozen=True, slots=True)
class _StepPasses:
    """A step with its passes on the host."""

    number: int
    start_ns: int
    end_ns: int
    passes: tuple[TracedPass, ...]

    @property
    def last(self) -> TracedPass:
        return self.passes[-1]


def _step_passes(view: RankView, step: ProfilerStep) -> _StepPasses | None:
    end_ns = view.ends(step.number)
    passes = passes_of(view.trace, step.start_ns, end_ns)
    if not passes:
        return None
    if updates_of(view.trace, passes) < 2 and len({len(_gradients(view, each)) for each in passes}) > 1:
        # Products of a communication hook or of several losses: passes of one model have equally many gradients.
        first, last = passes[0], passes[-1]
        passes = (TracedPass(first.begin_ns, first.backward_ns, last.backward_end_ns, last.end_ns),)
    return _StepPasses(step.number, step.start_ns, end_ns, passes)


def _not_modelled(view: RankView, steps: list[_StepPasses]) -> str | None:
    """What the step does that predictions do not model; None where there is nothing."""
    step = steps[-1]
    if updates_of(view.trace, step.passes) > 1:
        return f"a step of the trace holds {len(step.passes)} backward passes with optimizer updates between them"
    sent = [sum(size for _, _, size in _reduced(view, each)) for each in step.passes]
    if len(sent) > 1 and sum(sent[:-1]) > _SOME * sent[-1] * (len(sent) - 1):
        return (
            f"gradients are exchanged in each of the {len(sent)} passes of a step, not in the last alone; "
            "DistributedDataParallel.no_sync() around all but the last would save the others"
        )
    within = [call for call in view.trace.calls if step.start_ns <= call.at_ns < _update_ns(view, step.last)]
    groups = {call.group.ranks if call.group else "" for call in within if call.bytes}
    if len(groups - {""}) > 1 or ("" in groups and not view.one_group):
        return (
            "collectives of several process groups are in its step (tensor, expert or sharded parallelism beside data "
            "parallelism)"
        )
    if any("reducescatter" in call.name.replace("_", "").lower() for call in _called(view, step.last)):
        return "its gradients are scattered over ranks (FSDP, ZeRO), and a trace shows shards only"
    return None


def _passes(view: RankView, step: _StepPasses) -> PassTimes | None:
    """Of each pass forward from its first kernel to backward's first, backward to its last; the update likewise."""
    work = view.trace.work
    launched = _launched(view)
    compute = view.of(WorkKind.COMPUTE) & (view.step == step.number)
    updates = np.zeros(len(work), dtype=np.bool_)
    for mark in view.trace.optimizer:
        if step.start_ns <= mark.start_ns < step.end_ns:
            updates |= compute & (launched >= mark.start_ns) & (launched <= mark.end_ns)
    compute &= ~updates
    forward_ns = backward_ns = 0
    for each in step.passes:
        in_backward = compute & (launched >= each.backward_ns) & (launched <= each.backward_end_ns)
        before = compute & (launched >= each.begin_ns) & (launched < each.backward_ns)
        if not in_backward.any():
            return None
        begin = int(work.start_ns[in_backward].min())
        first = int(work.start_ns[before].min()) if before.any() else begin
        forward_ns += max(0, begin - first)
        backward_ns += int(work.end_ns[in_backward].max()) - begin
    updated = (int(work.end_ns[updates].max()) - int(work.start_ns[updates].min())) if updates.any() else 0
    return PassTimes(forward_ns / 1e9, backward_ns / 1e9, updated / 1e9)


def _launched(view: RankView) -> Times:
    """When each piece of work was launched; its begin where that is not known."""
    work = view.trace.work
    return np.where(work.launch_ns == NO_LAUNCH, work.start_ns, work.launch_ns)


def _ready_s(view: RankView, step: _StepPasses, moments_ns: list[int]) -> list[float] | None:
    """When what was launched before each moment had run on the device, since the last pass's backward began there."""
    work, launched, last = view.trace.work, _launched(view), step.last
    chosen = view.of(WorkKind.COMPUTE) & (view.step == step.number)
    chosen &= (launched >= last.backward_ns) & (launched <= last.backward_end_ns)
    if not chosen.any():
        return None
    order = np.argsort(launched[chosen], kind="stable")
    launched, ends = launched[chosen][order], np.maximum.accumulate(work.end_ns[chosen][order])
    begin = int(work.start_ns[chosen].min())
    at = np.searchsorted(launched, np.array(moments_ns, dtype=np.int64), side="right") - 1
    ready = np.where(at >= 0, ends[np.maximum(at, 0)], begin)
    return [float(moment) for moment in np.maximum(ready - begin, 0) / 1e9]


def _of_autograd(view: RankView, steps: list[_StepPasses]) -> list[GradientRow]:
    """One row per gradient, times as medians over steps with the same gradients in the same order."""
    by_step = [_gradients(view, step.last) for step in steps]
    shapes = [tuple(gradient.shape for gradient in gradients) for gradients in by_step]
    if not shapes or not shapes[-1] or any(shape is None for shape in shapes[-1]):
        return []
    alike = [i for i, shape in enumerate(shapes) if shape == shapes[-1]]
    times = [_ready_s(view, steps[i], [gradient.at_ns for gradient in by_step[i]]) for i in alike]
    timed = [seconds for seconds in times if seconds is not None]
    rows, before_s = [], 0.0
    for order, gradient in enumerate(by_step[-1]):
        elements = int(np.prod(gradient.shape or (), dtype=np.float64))
        before_s = max(before_s, statistics.median(seconds[order] for seconds in timed)) if timed else before_s
        rows.append(
            GradientRow(
                rank=view.rank,
                order=order,
                name=unnamed(order, gradient.shape or ()),
                elements=elements,
                bytes=elements * (gradient.element_bytes or 4),
                ready_s=before_s if timed else None,
            )
        )
    return rows


def _gradients(view: RankView, each: TracedPass) -> list[Gradient]:
    return [gradient for gradient in view.trace.gradients if each.begin_ns <= gradient.at_ns < each.end_ns]


def _of_buckets(view: RankView, steps: list[_StepPasses]) -> list[GradientRow]:
    """The all-reduces that backward launched, as gradients: all that is known where no shapes were recorded."""
    rows = []
    step = steps[-1]
    reduced = _reduced(view, step.last)
    times = _ready_s(view, step, [at_ns for at_ns, _, _ in reduced])
    before_s = 0.0
    for order, (_, elements, size) in enumerate(reduced):
        before_s = max(before_s, times[order]) if times else before_s
        rows.append(
            GradientRow(
                rank=view.rank,
                order=order,
                name=unnamed(order),
                elements=elements,
                bytes=size,
                ready_s=before_s if times else None,
                bucket=order,
            )
        )
    return rows


def _reduced(view: RankView, each: TracedPass) -> list[tuple[int, int, int]]:
    """Moment, elements and bytes of each all-reduce called within a pass's backward."""
    return [
        (call.at_ns, call.elements, call.bytes)
        for call in _called(view, each)
        if call.name.replace("_", "").lower().endswith("allreduce") and call.bytes and call.elements is not None
    ]


def _called(view: RankView, each: TracedPass) -> list[CollectiveCall]:
    """Collectives of a pass's backward. Without a device their begin is that of their own thread, which may be late."""
    until_ns = _update_ns(view, each) if view.trace.on_processor else each.backward_end_ns
    return [call for call in view.trace.calls if each.backward_ns <= call.at_ns <= until_ns]


def _update_ns(view: RankView, each: TracedPass) -> int:
    """Where the optimizer begins behind a pass's backward, else where the pass ends."""
    begins = [mark.start_ns for mark in view.trace.optimizer]
    return min((at_ns for at_ns in begins if each.backward_end_ns <= at_ns < each.end_ns), default=each.end_ns)


def _flops(view: RankView, step: _StepPasses) -> float | None:
    """FLOPs of a step, where every product and convolution of its forward has its shapes: those, taken three times."""
    forward = [
        count for each in step.passes for at_ns, count in view.trace.flops if each.begin_ns <= at_ns < each.backward_ns
    ]
    counted = [count for count in forward if count is not None]
    return _PASSES_OF_FLOPS * sum(counted) if counted and len(counted) == len(forward) else None


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """Byte limits of DDP's first bucket and of all others."""

    first_bytes: int
    later_bytes: int


@dataclass(frozen=True, slots=True)
class _Span:
    """Limits above `low` and up to `high`; None: any."""

    low: int = 0
    high: int | None = None

    def __contains__(self, limit: int) -> bool:
        return limit > self.low and (self.high is None or limit <= self.high)

    def __and__(self, other: "_Span") -> "_Span":
        highs = [high for high in (self.high, other.high) if high is not None]
        return _Span(max(self.low, other.low), min(highs, default=None))

    @property
    def empty(self) -> bool:
        return self.high is not None and self.high <= self.low

    def some(self) -> int:
        """A limit in it: a whole number of MiB where there is one, as people write them, else the largest."""
        whole = (self.low // MIB + 1) * MIB
        return whole if whole in self or self.high is None else self.high


def buckets_among(gradient_bytes: Sequence[int], sent_bytes: Sequence[int]) -> tuple[int, ...] | None:
    """Of messages sent during backward those that are DDP's buckets; None where gradients do not fill them.

    A bucket ends where a gradient does. Others (those of SyncBatchNorm, say) do not, and are passed over.
    """
    ends = set(accumulate(gradient_bytes))
    buckets, filled = [], 0
    for size in sent_bytes:
        if filled + size in ends:
            buckets.append(size)
            filled += size
    return tuple(buckets) if buckets and filled == sum(gradient_bytes) else None


def limits_of(gradient_bytes: Sequence[int], bucket_bytes: Sequence[int]) -> BucketLimits | None:
    """Limits with which torch makes these buckets of gradients in ready order; None where no two limits do.

    torch's own are taken where they are possible, else one limit for all buckets (what `bucket_cap_mb` sets), else
    one for the first and one for the others.
    """
    spans = _spans(gradient_bytes, bucket_bytes)
    if spans is None:
        return None
    first, later = spans[0], _Span()
    for span in spans[1:]:
        later &= span
    if DDP_FIRST_BYTES in first and DDP_BUCKET_BYTES in later:
        return BucketLimits(DDP_FIRST_BYTES, DDP_BUCKET_BYTES)
    if not (both := first & later).empty:
        return BucketLimits(both.some(), both.some())
    return None if first.empty or later.empty else BucketLimits(first.some(), later.some())


def _spans(gradient_bytes: Sequence[int], bucket_bytes: Sequence[int]) -> list[_Span] | None:
    at = {end: size for end, size in zip(accumulate(gradient_bytes), gradient_bytes, strict=True) if size}
    ends = [0, *accumulate(bucket_bytes)]
    if not bucket_bytes or ends[-1] != sum(gradient_bytes) or not all(end in at for end in ends[1:]):
        return None
    spans = [_Span(end - begin - at[end], end - begin) for begin, end in pairwise(ends)]
    return [*spans[:-1], _Span(spans[-1].low)]
