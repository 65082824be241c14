"""The *observe* phase: windows of a few steps in which what the step waits for is attributed to causes.

The main thread's stack is sampled; on a GPU torch's profiler runs as well, for the device's idle stretches. Nothing is
timed from these steps: a window says how a step divides, and the division is applied to steps that were not watched.
"""

import contextlib
import dataclasses
import gc
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from stallwise.analysis.idle_time import AttributedTime, Stretch, attribute, device_moment, sampled_time, timeline_of
from stallwise.analysis.observed import COMPUTE, GC
from stallwise.analysis.stacks import StackSample, sample_of, with_rollouts
from stallwise.record.observe._contained import PhaseObserver
from stallwise.record.observe._sampling import StackSampler, library_folders
from stallwise.record.observe._torch_trace import started_profiler
from stallwise.record.rank._schedule import LEAD_STEPS
from stallwise.record.rank._steps import StepClock
from stallwise.run.schema import ObservedRow
from stallwise.run.writer import RankWriter
from stallwise.sentences import Sentence

_INTERVAL_S = 0.002
_MARK = "stallwise#"
_PARTS = 4  # a window is recorded in so many, which show how much they differ


class ObservePhase(PhaseObserver):
    """One window: starts after the phase's first steps, and becomes rows of the `observed` table."""

    def __init__(self, clock: StepClock, writer: RankWriter, *, window: int, settle: int) -> None:
        self._clock = clock
        self._writer = writer
        self._window = window
        self._settle = settle
        self._sampler: StackSampler | None = None
        self._profiler: Any = None
        self._boundaries_s: list[float] = []
        self._regular: list[bool] = []  # of each step between two boundaries
        self._collections_s: list[tuple[float, float]] = []
        self._collection_since_s = 0.0
        self._inputs: Counter[tuple[str, Any]] = Counter()
        self._backward: Callable[..., None] = torch.autograd.backward
        self._backwards = 0

    def begin(self, steps: int) -> None:
        """Start the phase, which lasts `steps` steps."""
        if self._settle == 0:
            self._start()

    def step_ended(self, *, kept: bool) -> None:
        """Note the end of a step; the window starts after the settling steps."""
        self._settle -= 1
        if self._settle == 0:
            self._start()
        elif self._sampler is not None:
            self._note_boundary()
            self._regular.append(kept)

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Stop watching and write what the window went to."""
        stacks, trace = self._stop()
        steps = len(self._boundaries_s) - 1 - (2 * LEAD_STEPS if trace is not None else 0)
        if steps < 1:
            return
        libraries = library_folders()
        samples = with_rollouts([sample_of(at_s, frames, libraries) for at_s, frames in stacks])
        self._note_batch(samples)
        parts = self._parts(LEAD_STEPS if trace is not None else 0, steps)
        stretches = list(itertools.chain.from_iterable(parts))
        try:
            rows = (
                self._on_device(trace, stretches, samples) if trace is not None else self._on_host(stretches, samples)
            )
        finally:
            if trace is not None:
                with contextlib.suppress(OSError):
                    trace.unlink()
        for number, part in enumerate(parts):
            window, watched = _PARTS * self._window + number, sum(last - first for first, last in part)
            for row in itertools.chain.from_iterable(rows.get(stretch, ()) for stretch in part):
                observed = ObservedRow(self._writer.rank, window, watched, row.cause, row.s, row.calls, row.where)
                self._writer.append("observed", observed)

    def _parts(self, lead: int, steps: int) -> list[list[tuple[int, int]]]:
        """Up to `_PARTS` parts with as many steps each, as stretches between two boundaries.

        Steps with a validation, a checkpoint or the start of an epoch in them are left out, unless there are no others.
        """
        window = range(lead, lead + steps)
        used = [step for step in window if self._regular[step]] or list(window)
        parts = min(_PARTS, len(used))
        groups = (used[len(used) * part // parts : len(used) * (part + 1) // parts] for part in range(parts))
        return [_stretches(group) for group in groups]

    def abandon(self) -> None:
        """Stop watching, because the script ends inside the phase."""
        _, trace = self._stop()
        if trace is not None:
            with contextlib.suppress(OSError):
                trace.unlink()

    def _start(self) -> None:
        if self._clock.on_gpu:
            self._start_profiler()
        gc.callbacks.append(self._collected)
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._counted_backward
        self._sampler = StackSampler(_INTERVAL_S)
        self._sampler.start()
        self._note_boundary()

    def _start_profiler(self) -> None:
        self._profiler = started_profiler(on_gpu=True)
        if self._profiler is None:
            self._writer.note(
                Sentence(
                    "observe.sampled", "The host's part was sampled only: the script runs torch's profiler itself."
                )
            )

    def _note_boundary(self) -> None:
        if self._profiler is not None:
            with torch.profiler.record_function(f"{_MARK}{len(self._boundaries_s)}"):
                pass
        self._boundaries_s.append(time.monotonic())

    def _counted_backward(self, *arguments: Any, **options: Any) -> None:
        self._backwards += 1
        self._backward(*arguments, **options)

    def _note_batch(self, samples: Sequence[StackSample]) -> None:
        """Samples and tokens of a step: the first dimension of what the trained model is called with, per backward.

        Where that is a matrix of integers, as token ids are, its elements are the tokens.
        """
        trained = {sample.call_site for sample in samples if sample.call_site is not None and sample.cause == COMPUTE}
        shapes: Counter[tuple[tuple[int, ...], bool]] = Counter()
        for (place, shape), count in self._inputs.items():
            if place in trained and len(shape[0]) > 1:
                shapes[shape] += count
        steps = len(self._boundaries_s) - 1
        if not shapes or steps < 1 or not self._backwards:
            return
        shape, is_whole = max(shapes, key=lambda one: shapes[one])
        passes = self._backwards / steps
        is_text = len(shape) == 2 and is_whole
        self._writer.batch_seen(shape[0] * passes, math.prod(shape) * passes if is_text else None)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_since_s = time.monotonic()
        else:
            self._collections_s.append((self._collection_since_s, time.monotonic()))

    def _stop(self) -> tuple[Any, Path | None]:
        """End sampling and profiling; the samples, and the file of the trace where there is one."""
        if self._sampler is None:
            return [], None
        stacks, self._inputs, self._sampler = self._sampler.stop(), self._sampler.inputs, None
        if torch.autograd.backward == self._counted_backward:
            torch.autograd.backward = self._backward
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collected)
        if self._profiler is None:
            return stacks, None
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        trace = self._writer.folder / "window.json"
        profiler.export_chrome_trace(str(trace))
        return stacks, trace

    def _on_host(
        self, stretches: Sequence[tuple[int, int]], samples: Sequence[StackSample]
    ) -> dict[tuple[int, int], list[AttributedTime]]:
        """Each sample stands for the time since the one before it."""
        collections_s = self._collections_s
        collected = [
            dataclasses.replace(sample, cause=GC, where=None)
            if any(first <= sample.at_s <= last for first, last in collections_s)
            else sample
            for sample in samples
        ]
        bounds_s = self._boundaries_s
        return {(first, last): sampled_time(collected, bounds_s[first], bounds_s[last]) for first, last in stretches}

    def _on_device(
        self, trace: Path, stretches: Sequence[tuple[int, int]], samples: Sequence[StackSample]
    ) -> dict[tuple[int, int], list[AttributedTime]]:
        """The device's idle stretches by cause, between the device's own moments of the boundaries."""
        from stallwise.run.traces.kineto_events import EventReader

        timeline = timeline_of((event for piece in EventReader(trace).pieces() for event in piece), mark=_MARK)
        cuts = sorted({cut for stretch in stretches for cut in stretch})
        marks = {cut: timeline.marks.get(f"{_MARK}{cut}") for cut in cuts}
        bounds = {cut: device_moment(timeline, mark) for cut, mark in marks.items() if mark is not None}
        first_mark = marks[cuts[0]]
        if len(bounds) < len(cuts) or first_mark is None or not timeline.work:
            self._writer.note(
                Sentence(
                    "observe.no-device-work",
                    "What the device waited for is unknown: torch's profiler saw none of its work.",
                )
            )
            return {}
        ahead_s = first_mark / 1e6 - self._boundaries_s[cuts[0]]  # the trace's clock ahead of the monotonic one
        moved = [dataclasses.replace(sample, at_s=sample.at_s + ahead_s) for sample in samples]
        collections = [Stretch((a + ahead_s) * 1e6, (b + ahead_s) * 1e6) for a, b in self._collections_s]
        return {
            (first, last): attribute(timeline, Stretch(bounds[first], bounds[last]), moved, gc_us=collections)
            for first, last in stretches
        }


def _stretches(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Steps that follow each other, from the first one's beginning to the last one's end."""
    breaks = [n for n in range(1, len(steps)) if steps[n] != steps[n - 1] + 1]
    return [(steps[first], steps[last - 1] + 1) for first, last in itertools.pairwise([0, *breaks, len(steps)])]
