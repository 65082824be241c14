"""What a trace says of the model: its gradients as they become ready, its passes, its buckets.

Autograd marks the moment it stores a gradient (`AccumulateGrad`), with its shape where the trace was recorded with
`record_shapes=True`. Else the collectives of DDP's buckets stand for the gradients in them. A gradient is ready on the
device when the last kernel asked for before that mark has ended.
"""

import statistics
from dataclasses import dataclass

import numpy as np

from stallwise.record.trace_ranks import RankView, TracedJob
from stallwise.run.manifest import ModelRecord
from stallwise.run.readers.device_trace import NO_LAUNCH, Gradient, Step, Work
from stallwise.run.schema import GradientRow

_PRECISIONS = {4: "fp32", 2: "bf16", 8: "fp64"}
# Backward does twice the arithmetic of forward.
_PASSES_OF_FLOPS = 3.0


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


def traced_model(job: TracedJob, flops: float | None = None) -> TracedModel:
    """From the lowest rank that left a trace, over the steps kept."""
    view = job.ranks[0]
    steps = [step for step in view.steps if step.number in job.kept]
    timed = [found for step in steps if (found := _passes(view, step)) is not None]
    if not timed:
        return TracedModel(
            None, why_not="no backward pass is in the trace, so the step cannot be taken apart by layers"
        )
    gradients = _of_autograd(view, steps) or _of_buckets(view, steps)
    if not gradients:
        return TracedModel(
            None,
            why_not="sizes of gradients are not in the trace; record it with record_shapes=True",
        )
    width = gradients[0].bytes // max(1, gradients[0].elements)
    passes = Passes(*(statistics.median(getattr(found, name) for found in timed) for name in Passes.__slots__))
    elements, buckets = sum(row.elements for row in gradients), _buckets(view, steps)
    return TracedModel(
        ModelRecord(
            parameters=elements,
            trained_parameters=elements,
            gradient_tensors=len(gradients),
            gradient_bytes=sum(row.bytes for row in gradients),
            layers=len(gradients),
            precision=_PRECISIONS.get(width),
            flops_per_step=flops if flops is not None else _flops(view, steps),
            step_s=statistics.median((view.ends(step.number) - step.start_ns) / 1e9 for step in steps),
            forward_s=passes.forward_s,
            backward_s=passes.backward_s,
            update_s=passes.update_s,
            bucket_bytes=tuple(buckets),
        ),
        tuple(gradients),
    )


def _passes(view: RankView, step: Step) -> Passes | None:
    """Forward from its first kernel to backward's first; backward to its last; the update likewise."""
    window = _backward_window(view, step)
    if window is None:
        return None
    work = view.trace.work
    asked = np.where(work.launch_ns == NO_LAUNCH, work.start_ns, work.launch_ns)
    compute = view.of(Work.COMPUTE) & (view.step == step.number)
    in_backward = compute & (asked >= window[0]) & (asked <= window[1])
    before = compute & (asked < window[0])
    updates = np.zeros(len(work), dtype=np.bool_)
    for mark in view.trace.optimizer:
        if step.start_ns <= mark.start_ns < view.ends(step.number):
            updates |= compute & (asked >= mark.start_ns) & (asked <= mark.end_ns)
    in_backward &= ~updates
    if not in_backward.any():
        return None
    begin = int(work.start_ns[in_backward].min())
    end = int(work.end_ns[in_backward].max())
    first = int(work.start_ns[before].min()) if before.any() else begin
    updated = (int(work.end_ns[updates].max()) - int(work.start_ns[updates].min())) if updates.any() else 0
    return Passes(max(0, begin - first) / 1e9, (end - begin) / 1e9, updated / 1e9)


def _backward_window(view: RankView, step: Step) -> tuple[int, int] | None:
    end_ns = view.ends(step.number)
    marks = [mark for mark in view.trace.backward if step.start_ns <= mark.start_ns < end_ns]
    return (marks[0].start_ns, max(mark.end_ns for mark in marks)) if marks else None


def _ready_s(view: RankView, step: Step, moments_ns: list[int]) -> list[float] | None:
    """When what was asked for before each moment had run on the device, since backward began there."""
    window = _backward_window(view, step)
    if window is None:
        return None
    work = view.trace.work
    asked = np.where(work.launch_ns == NO_LAUNCH, work.start_ns, work.launch_ns)
    chosen = view.of(Work.COMPUTE) & (view.step == step.number) & (asked >= window[0]) & (asked <= window[1])
    if not chosen.any():
        return None
    order = np.argsort(asked[chosen], kind="stable")
    asked, ends = asked[chosen][order], np.maximum.accumulate(work.end_ns[chosen][order])
    begin = int(work.start_ns[chosen].min())
    at = np.searchsorted(asked, np.array(moments_ns, dtype=np.int64), side="right") - 1
    ready = np.where(at >= 0, ends[np.maximum(at, 0)], begin)
    return [float(moment) for moment in np.maximum(ready - begin, 0) / 1e9]


def _of_autograd(view: RankView, steps: list[Step]) -> list[GradientRow]:
    """One row per gradient, times as medians over steps with the same gradients in the same order."""
    by_step = [_in_step(view, step) for step in steps]
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
                name=f"gradient {order} {list(gradient.shape or ())}",
                elements=elements,
                bytes=elements * (gradient.element_bytes or 4),
                ready_s=before_s if known else None,
            )
        )
    return rows


def _in_step(view: RankView, step: Step) -> list[Gradient]:
    end_ns = view.ends(step.number)
    return [gradient for gradient in view.trace.gradients if step.start_ns <= gradient.at_ns < end_ns]


def _of_buckets(view: RankView, steps: list[Step]) -> list[GradientRow]:
    """The all-reduces that backward asked for, as gradients: all that is known where no shapes were recorded."""
    rows = []
    step = steps[-1]
    found = _reduced(view, step)
    times = _ready_s(view, step, [asked for asked, _, _ in found])
    before_s = 0.0
    for order, (_, elements, size) in enumerate(found):
        before_s = max(before_s, times[order]) if times else before_s
        rows.append(
            GradientRow(
                rank=view.rank,
                order=order,
                name=f"bucket {order}",
                elements=elements,
                bytes=size,
                ready_s=before_s if times else None,
                bucket=order,
            )
        )
    return rows


def _buckets(view: RankView, steps: list[Step]) -> list[int]:
    return [size for _, _, size in _reduced(view, steps[-1])]


def _reduced(view: RankView, step: Step) -> list[tuple[int, int, int]]:
    """Moment, elements and bytes of each all-reduce called within a step's backward."""
    window = _backward_window(view, step)
    if window is None:
        return []
    return [
        (call.at_ns, call.elements, call.bytes)
        for call in view.trace.calls
        if window[0] <= call.at_ns <= window[1]
        and call.name.replace("_", "").lower().endswith("allreduce")
        and call.bytes
        and call.elements is not None
    ]


def _flops(view: RankView, steps: list[Step]) -> float | None:
    """FLOPs of a step, where every product and convolution of its forward has its shapes: those, taken three times."""
    step, window = steps[-1], _backward_window(view, steps[-1])
    if window is None:
        return None
    forward = [count for at_ns, count in view.trace.flops if step.start_ns <= at_ns < window[0]]
    known = [count for count in forward if count is not None]
    return _PASSES_OF_FLOPS * sum(known) if known and len(known) == len(forward) else None
