"""Gradient accumulation in a trace: how many forward and backward passes an optimizer's update rests on.

A step is the shortest repeating cycle of batch fetches and updates. The profiler's marks follow `profiler.step()`,
which scripts call once an update or once a batch: in the second case several marks are joined up to the update. Within
a step a new pass begins where a matrix product or convolution lies between two stretches of backward: that is a forward
pass (a recomputed one lies inside backward).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from stallwise.run.readers.device_trace import DeviceTrace, Mark, Step


@dataclass(frozen=True, slots=True)
class Cycles:
    """Steps up to an update each, and how many of the profiler's marks make one; as marked where that is 1."""

    steps: tuple[Step, ...]
    passes: int


def cycles_of(trace: DeviceTrace) -> Cycles:
    """Marks joined where every update is followed by equally many marks without one.

    Where numbers differ (a skipped update, validation in between) nothing is joined. Marks before the first update may
    be fewer, the rest of a cycle that began before the trace; those after the last make no step.
    """
    marks = trace.steps
    begins = sorted(mark.start_ns for mark in trace.optimizer)
    runs: list[list[Step]] = [[]]
    for number, mark in enumerate(marks):
        runs[-1].append(mark)
        until = bisect_left(begins, marks[number + 1].start_ns) if number + 1 < len(marks) else len(begins)
        if until > bisect_left(begins, mark.start_ns):
            runs.append([])
    whole = runs[:-1]
    sizes = {len(run) for run in (whole[1:] or whole)}
    if len(sizes) != 1 or sizes == {1} or len(whole[0]) > max(sizes) or len(runs[-1]) > max(sizes):
        return Cycles(marks, 1)
    return Cycles(tuple(Step(run[-1].number, run[0].start_ns, run[-1].end_ns) for run in whole), sizes.pop())


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass on the processor's clock, in nanoseconds."""

    begin_ns: int
    backward_ns: int
    backward_end_ns: int
    end_ns: int
    """Where the next pass begins, or the step ends."""


def passes_of(trace: DeviceTrace, begin_ns: int, end_ns: int) -> tuple[Pass, ...]:
    """Passes of the step between two moments; none where the trace shows no backward."""
    windows: list[tuple[int, int]] = []
    products = [at_ns for at_ns, _ in trace.flops]
    first, beyond = (bisect_left(trace.backward, at_ns, key=_start_ns) for at_ns in (begin_ns, end_ns))
    for mark in trace.backward[first:beyond]:
        last_ns = windows[-1][1] if windows else None
        if last_ns is not None and bisect_left(products, last_ns) == bisect_left(products, mark.start_ns):
            windows[-1] = (windows[-1][0], max(last_ns, mark.end_ns))
        else:
            windows.append((mark.start_ns, mark.end_ns))
    begins = [begin_ns, *(_forward_ns(products, window[1]) for window in windows[:-1])]
    ends = [*begins[1:], end_ns]
    return tuple(
        Pass(begin, start, until, end) for begin, (start, until), end in zip(begins, windows, ends, strict=False)
    )


def _start_ns(mark: Mark) -> int:
    return mark.start_ns


def _forward_ns(products: Sequence[int], after_ns: int) -> int:
    return products[bisect_left(products, after_ns)]


def updates_of(trace: DeviceTrace, passes: Sequence[Pass]) -> int:
    """In how many places between the passes of a step the optimizer updates; 1 where it accumulates."""
    begin_ns, end_ns = passes[0].begin_ns, passes[-1].end_ns
    starts = [each.backward_ns for each in passes]
    places = {bisect_left(starts, mark.start_ns) for mark in trace.optimizer if begin_ns <= mark.start_ns < end_ns}
    # Before the first backward and after the last is one place: steps follow each other.
    return len({0 if place == len(starts) else place for place in places})
