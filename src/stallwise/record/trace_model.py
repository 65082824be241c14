"""What a trace says of the model: its gradients as they become ready, its passes, its buckets.

Autograd marks the moment it stores a gradient (`AccumulateGrad`), with its shape where the trace was recorded with
`record_shapes=True`. Else the collectives of DDP's buckets stand for the gradients in them. A gradient is ready on the
device when the last kernel asked for before that mark has ended.

Of a step that accumulates gradients over several passes (`trace_passes`) gradients are those of the last pass, the one
that exchanges them. What the step model does not know is refused: several updates or exchanges in a step, and
collectives of several process groups.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from stallwise.record.trace_buckets import buckets_among, limits_of
from stallwise.record.trace_passes import Pass, passes_of, updates_of
from stallwise.record.trace_ranks import RankView, TracedJob
from stallwise.run.manifest import ModelRecord
from stallwise.run.readers.device_trace import NO_LAUNCH, Call, Gradient, Step, Times, Work
from stallwise.run.schema import GradientRow
from stallwise.workload.layers import unnamed

NOTHING = "Nothing can be predicted from this run: "
"""What the note begins with that says why."""
_PRECISIONS = {4: "fp32", 2: "bf16", 8: "fp64"}
# Backward does twice the arithmetic of forward.
_PASSES_OF_FLOPS = 3.0
# Of the bytes that the last pass exchanges: beyond this much in the others they exchange gradients too.
_SOME = 0.5


@dataclass(frozen=True, slots=True)
class Passes:
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
    """From the lowest rank that left a trace, over the steps kept."""
    view = job.ranks[0]
    steps = [found for step in view.steps if step.number in job.kept and (found := _traced_step(view, step))]
    # A short accumulation at an epoch's end is another step than the others.
    usual = statistics.mode(len(step.passes) for step in steps) if steps else 0
    steps = [step for step in steps if len(step.passes) == usual]
    timed = [times for step in steps if (times := _passes(view, step)) is not None]
    if not timed:
        return TracedModel(
            None,
            why_not="no backward pass is in the trace, so the step cannot be taken apart by layers; record a whole "
            "step, backward pass included",
        )
    strange = _not_modelled(view, steps)
    if strange is not None:
        return TracedModel(None, why_not=strange)
    gradients = _of_autograd(view, steps) or _of_buckets(view, steps)
    if not gradients:
        return TracedModel(
            None,
            why_not="sizes of gradients are not in the trace; record it with record_shapes=True",
        )
    width = gradients[0].bytes // max(1, gradients[0].elements)
    passes = Passes(*(statistics.median(getattr(found, name) for found in timed) for name in Passes.__slots__))
    elements = sum(row.elements for row in gradients)
    sizes, sent = [row.bytes for row in gradients], [size for _, _, size in _reduced(view, steps[-1].last)]
    buckets = buckets_among(sizes, sent)
    limits = None if buckets is None else limits_of(sizes, buckets)
    return TracedModel(
        ModelRecord(
            parameters=elements,
            trained_parameters=elements,
            gradient_tensors=len(gradients),
            gradient_bytes=sum(row.bytes for row in gradients),
            layers=len(gradients),
            precision=_PRECISIONS.get(width),
            flops_per_step=flops if flops is not None else _flops(view, steps[-1]),
            micro_batches=len(steps[-1].passes),
            step_s=statistics.median((view.ends(step.number) - step.start_ns) / 1e9 for step in steps),
            forward_s=passes.forward_s,
            backward_s=passes.backward_s,
            update_s=passes.update_s,
            bucket_bytes=tuple(buckets or sent),
            bucket_cap_bytes=limits.later_bytes if limits else None,
            first_bucket_bytes=limits.first_bytes if limits else None,
        ),
        tuple(gradients),
        strange_buckets=bool(sent) and limits is None,
    )


@dataclass(frozen=True, slots=True)
class _TracedStep:
    """A step with its passes on the processor."""

    number: int
    start_ns: int
    end_ns: int
    passes: tuple[Pass, ...]

    @property
    def last(self) -> Pass:
        return self.passes[-1]


def _traced_step(view: RankView, step: Step) -> _TracedStep | None:
    end_ns = view.ends(step.number)
    passes = passes_of(view.trace, step.start_ns, end_ns)
    if not passes:
        return None
    if updates_of(view.trace, passes) < 2 and len({len(_gradients(view, each)) for each in passes}) > 1:
        # Products of a communication hook or of several losses: passes of one model have equally many gradients.
        first, last = passes[0], passes[-1]
        passes = (Pass(first.begin_ns, first.backward_ns, last.backward_end_ns, last.end_ns),)
    return _TracedStep(step.number, step.start_ns, end_ns, passes)


def _not_modelled(view: RankView, steps: list[_TracedStep]) -> str | None:
    """What the step does that predictions know nothing of; None where there is nothing."""
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


def _passes(view: RankView, step: _TracedStep) -> Passes | None:
    """Of each pass forward from its first kernel to backward's first, backward to its last; the update likewise."""
    work = view.trace.work
    asked = _asked(view)
    compute = view.of(Work.COMPUTE) & (view.step == step.number)
    updates = np.zeros(len(work), dtype=np.bool_)
    for mark in view.trace.optimizer:
        if step.start_ns <= mark.start_ns < step.end_ns:
            updates |= compute & (asked >= mark.start_ns) & (asked <= mark.end_ns)
    compute &= ~updates
    forward_ns = backward_ns = 0
    for each in step.passes:
        in_backward = compute & (asked >= each.backward_ns) & (asked <= each.backward_end_ns)
        before = compute & (asked >= each.begin_ns) & (asked < each.backward_ns)
        if not in_backward.any():
            return None
        begin = int(work.start_ns[in_backward].min())
        first = int(work.start_ns[before].min()) if before.any() else begin
        forward_ns += max(0, begin - first)
        backward_ns += int(work.end_ns[in_backward].max()) - begin
    updated = (int(work.end_ns[updates].max()) - int(work.start_ns[updates].min())) if updates.any() else 0
    return Passes(forward_ns / 1e9, backward_ns / 1e9, updated / 1e9)


def _asked(view: RankView) -> Times:
    """When each piece of work was asked for; its begin where that is not known."""
    work = view.trace.work
    return np.where(work.launch_ns == NO_LAUNCH, work.start_ns, work.launch_ns)


def _ready_s(view: RankView, step: _TracedStep, moments_ns: list[int]) -> list[float] | None:
    """When what was asked for before each moment had run on the device, since the last pass's backward began there."""
    work, asked, last = view.trace.work, _asked(view), step.last
    chosen = view.of(Work.COMPUTE) & (view.step == step.number)
    chosen &= (asked >= last.backward_ns) & (asked <= last.backward_end_ns)
    if not chosen.any():
        return None
    order = np.argsort(asked[chosen], kind="stable")
    asked, ends = asked[chosen][order], np.maximum.accumulate(work.end_ns[chosen][order])
    begin = int(work.start_ns[chosen].min())
    at = np.searchsorted(asked, np.array(moments_ns, dtype=np.int64), side="right") - 1
    ready = np.where(at >= 0, ends[np.maximum(at, 0)], begin)
    return [float(moment) for moment in np.maximum(ready - begin, 0) / 1e9]


def _of_autograd(view: RankView, steps: list[_TracedStep]) -> list[GradientRow]:
    """One row per gradient, times as medians over steps with the same gradients in the same order."""
    by_step = [_gradients(view, step.last) for step in steps]
    shapes = [tuple(gradient.shape for gradient in found) for found in by_step]
    if not shapes or not shapes[-1] or any(shape is None for shape in shapes[-1]):
        return []
    alike = [i for i, found in enumerate(shapes) if found == shapes[-1]]
    times = [_ready_s(view, steps[i], [gradient.at_ns for gradient in by_step[i]]) for i in alike]
    known = [found for found in times if found is not None]
    rows, before_s = [], 0.0
    for order, gradient in enumerate(by_step[-1]):
        elements = int(np.prod(gradient.shape or (), dtype=np.float64))
        before_s = max(before_s, statistics.median(found[order] for found in known)) if known else before_s
        rows.append(
            GradientRow(
                rank=view.rank,
                order=order,
                name=unnamed(order, gradient.shape or ()),
                elements=elements,
                bytes=elements * (gradient.element_bytes or 4),
                ready_s=before_s if known else None,
            )
        )
    return rows


def _gradients(view: RankView, each: Pass) -> list[Gradient]:
    return [gradient for gradient in view.trace.gradients if each.begin_ns <= gradient.at_ns < each.end_ns]


def _of_buckets(view: RankView, steps: list[_TracedStep]) -> list[GradientRow]:
    """The all-reduces that backward asked for, as gradients: all that is known where no shapes were recorded."""
    rows = []
    step = steps[-1]
    found = _reduced(view, step.last)
    times = _ready_s(view, step, [asked for asked, _, _ in found])
    before_s = 0.0
    for order, (_, elements, size) in enumerate(found):
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


def _reduced(view: RankView, each: Pass) -> list[tuple[int, int, int]]:
    """Moment, elements and bytes of each all-reduce called within a pass's backward."""
    return [
        (call.at_ns, call.elements, call.bytes)
        for call in _called(view, each)
        if call.name.replace("_", "").lower().endswith("allreduce") and call.bytes and call.elements is not None
    ]


def _called(view: RankView, each: Pass) -> list[Call]:
    """Collectives of a pass's backward. Without a device their begin is that of their own thread, which may be late."""
    until_ns = _update_ns(view, each) if view.trace.on_processor else each.backward_end_ns
    return [call for call in view.trace.calls if each.backward_ns <= call.at_ns <= until_ns]


def _update_ns(view: RankView, each: Pass) -> int:
    """Where the optimizer begins behind a pass's backward, else where the pass ends."""
    begins = [mark.start_ns for mark in view.trace.optimizer]
    return min((at_ns for at_ns in begins if each.backward_end_ns <= at_ns < each.end_ns), default=each.end_ns)


def _flops(view: RankView, step: _TracedStep) -> float | None:
    """FLOPs of a step, where every product and convolution of its forward has its shapes: those, taken three times."""
    forward = [
        count for each in step.passes for at_ns, count in view.trace.flops if each.begin_ns <= at_ns < each.backward_ns
    ]
    known = [count for count in forward if count is not None]
    return _PASSES_OF_FLOPS * sum(known) if known and len(known) == len(forward) else None
