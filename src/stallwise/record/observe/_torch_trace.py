"""The *trace* phase: a few as-is steps under torch's own profiler, kept as spans for a timeline.

Taken from it: copies to the device, forward, backward, optimizer, collectives, and on a GPU its kernels. The profiler
slows these steps down: they are shown in the timeline, and nothing is computed from them.
"""

import itertools
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from stallwise.record.observe._contained import PhaseObserver
from stallwise.record.rank._steps import StepClock
from stallwise.run.schema import SpanRow
from stallwise.run.writer import RankWriter
from stallwise.sentences import Sentence

_BACKWARD = "autograd::engine::evaluate_function"
_FETCH = "enumerate(DataLoader)"
_COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ncclDevKernel", "ncclKernel")
_MAX_SPANS = 20_000


class _Event(NamedTuple):
    """An event of the profiler, in seconds of time.monotonic()."""

    name: str
    start_s: float
    end_s: float
    on_device: bool
    bytes: int


class TracePhase(PhaseObserver):
    """Starts torch's profiler after the phase's first steps and turns its events into spans."""

    def __init__(self, clock: StepClock, writer: RankWriter, *, settle: int) -> None:
        self._clock = clock
        self._writer = writer
        self._settle = settle
        self._profiler: Any = None
        self._ahead_s = 0.0  # wall clock, which the profiler uses, ahead of the monotonic one
        self._boundaries_s: list[float] = []

    def begin(self, steps: int) -> None:
        """Start the phase, which lasts `steps` steps."""
        if self._settle == 0:
            self._start()

    def step_ended(self, *, kept: bool) -> None:
        """Note the end of a step; the profiler starts after the settling steps."""
        self._settle -= 1
        if self._settle == 0:
            self._start()
        elif self._profiler is not None:
            self._boundaries_s.append(time.monotonic())

    def finish(self, *, first_step: int, step_s: float | None, zero_s: float) -> None:
        """Stop the profiler and write its spans."""
        events = self._stop()
        rank = self._writer.rank
        for n, (track, event) in enumerate(_tracks(events, self._boundaries_s)):
            if n >= _MAX_SPANS:
                self._writer.note(
                    Sentence("timeline.cut", f"The timeline of rank {rank} holds the first {_MAX_SPANS} spans only.")
                )
                break
            duration_s = max(0.0, event.end_s - event.start_s)
            row = SpanRow(rank, None, track, event.name, event.start_s - zero_s, duration_s, event.bytes or None)
            self._writer.append("spans", row)

    def abandon(self) -> None:
        """Stop the profiler, because the script ends inside the phase."""
        self._stop()

    def _start(self) -> None:
        self._profiler = started_profiler(on_gpu=self._clock.on_gpu)
        if self._profiler is None:
            self._writer.note(
                Sentence("timeline.none", "There is no timeline: the script runs torch's profiler itself.")
            )
            return
        self._ahead_s = time.time() - time.monotonic()
        self._boundaries_s = [time.monotonic()]

    def _stop(self) -> list[_Event]:
        if self._profiler is None:
            return []
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        events = [
            _Event(
                event.name(),
                event.start_ns() / 1e9 - self._ahead_s,
                (event.start_ns() + event.duration_ns()) / 1e9 - self._ahead_s,
                not str(event.device_type()).endswith("CPU"),
                event.nbytes(),
            )
            for event in profiler.profiler.kineto_results.events()
        ]
        return sorted(events, key=lambda event: event.start_s)


def started_profiler(*, on_gpu: bool) -> Any:
    """Start torch's profiler; None where the script runs one itself.

    Without `acc_events`, with which it would make Python objects of all events at its end: seconds for 100,000 events.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if on_gpu:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions tell those who profile several times that events are not kept
        profiler = torch.profiler.profile(activities=activities)
        try:
            profiler.start()
        except RuntimeError:
            return None
    return profiler


def _tracks(events: list[_Event], boundaries_s: list[float]) -> Iterator[tuple[str, _Event]]:
    """Every event that belongs on a track, and the passes of each step."""
    for begin_s, end_s in itertools.pairwise(boundaries_s):
        yield from _passes([e for e in events if begin_s <= e.start_s < end_s and not e.on_device])
    for event in events:
        track = _track(event)
        if track is not None:
            yield track, event


def _track(event: _Event) -> str | None:
    if event.name.startswith("Optimizer.step#"):
        return "optimizer"
    if event.name.startswith(_COLLECTIVES):
        return "collective"
    if event.on_device:
        return "copy" if event.name.startswith("Memcpy HtoD") else "gpu"
    return None


def _passes(step: list[_Event]) -> Iterator[tuple[str, _Event]]:
    """Forward and backward of one step as the host went through them."""
    backward = [event for event in step if event.name.startswith(_BACKWARD)]
    if not backward:
        return
    begin_s = backward[0].start_s
    fetched_s = max((e.end_s for e in step if e.name.startswith(_FETCH) and e.end_s <= begin_s), default=0.0)
    before = [e.start_s for e in step if fetched_s <= e.start_s < begin_s and e.name.startswith("aten::")]
    if before:
        yield "forward", _Event("forward", min(before), begin_s, on_device=False, bytes=0)
    end_s = max(event.end_s for event in backward)
    yield "backward", _Event("backward", begin_s, end_s, on_device=False, bytes=0)
