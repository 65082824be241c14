"""Idle stretches of a GPU, attributed to what the host was doing: from a trace of torch's profiler (Kineto).

The device works where any kernel, copy or collective runs. A gap is its own affair where the next piece of work had
been launched before the gap began; otherwise the host was late, and the gap belongs to what it did until that launch:
waiting in a synchronisation, allocating, copying, waiting for the loader, launching. A long stretch in which it did
none of that is Python, and samples of the stack taken at the same time say which.

A synchronisation costs what the host could have been ahead. Without any, a step takes the longer of the device's work
and the host's own; so all together cost at most what the step exceeds that.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stallwise.analysis.observed import (
    ALLOCATE,
    COMPUTE,
    COPY,
    DATA_CAUSES,
    EXCHANGE,
    GC,
    LAUNCH,
    LOADER,
    PYTHON,
    SYNCHRONISE,
)
from stallwise.analysis.stacks import StackSample
from stallwise.run.traces.kineto_events import Event

Times = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]

_LONG_US = 200.0
"""A gap in which the host launched nothing for longer than this is not the overhead of eager launches."""
_AFTER_SYNC_US = 5.0  # a device runs dry this shortly before the call that waits for it returns

_DEVICE_CATEGORIES = frozenset({"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
_HOST_CALLS = frozenset({"cuda_runtime", "Runtime", "cuda_driver"})
_OPERATORS = frozenset({"cpu_op", "Operator", "user_annotation"})
_COLLECTIVES = ("nccl", "rccl")
_SYNCHRONISE_CALLS = ("Synchronize", "cudaMemcpy", "hipMemcpy", "cuMemcpy")
_ALLOCATE_CALLS = (
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "hipMalloc", "hipFree", "cuMemCreate", "cuMemMap",
    "cuMemUnmap", "cuMemRelease", "cuMemSetAccess",
)  # fmt: skip
_LAUNCH_CALLS = ("Launch", "MemcpyAsync", "MemsetAsync")
_LOADER_MARK = "enumerate(DataLoader)"


class Stretch(NamedTuple):
    """A stretch of time, in microseconds of the trace."""

    start: float
    end: float


@dataclass(slots=True)
class HostTimeline:
    """What a trace holds of one device and of the host's calls; times in microseconds of the trace."""

    kernels: list[Stretch] = field(default_factory=list)
    copies: list[Stretch] = field(default_factory=list)
    collectives: list[Stretch] = field(default_factory=list)
    launches: dict[int, Stretch] = field(default_factory=dict)
    work: list[tuple[float, float, int]] = field(default_factory=list)
    """All device work: begin, end, correlation (-1: unknown)."""
    calls: dict[str, list[Stretch]] = field(default_factory=dict)
    """Host calls by cause: synchronise, allocate, copy, loader, gc."""
    operators: list[Stretch] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    """Begin of each annotation whose name starts with the prefix that was asked for."""


def timeline_of(events: Iterable[Event], *, mark: str = "stallwise#") -> HostTimeline:
    """The timeline in the events of a Kineto trace."""
    timeline = HostTimeline()
    for event in events:
        if event.ph != "X" or event.ts is None:
            continue
        span = Stretch(float(event.ts), float(event.ts) + float(event.dur or 0.0))
        category = event.cat or ""
        if category in _DEVICE_CATEGORIES:
            _add_work(timeline, event, span)
        elif category in _HOST_CALLS:
            _add_call(timeline, event, span)
        elif event.name.startswith(mark) and category in _OPERATORS:  # not its shadow on the device
            timeline.marks[event.name] = span.start
        elif event.name.startswith(_LOADER_MARK):
            timeline.calls.setdefault(LOADER, []).append(span)
        elif category in _OPERATORS:
            timeline.operators.append(span)
    timeline.work.sort()
    return timeline


def _add_work(timeline: HostTimeline, event: Event, span: Stretch) -> None:
    if event.name.lower().startswith(_COLLECTIVES):
        timeline.collectives.append(span)
    elif event.name.startswith("Memcpy") and "DtoD" not in event.name:
        timeline.copies.append(span)
    else:
        timeline.kernels.append(span)
    timeline.work.append((span.start, span.end, _correlation(event)))


def _add_call(timeline: HostTimeline, event: Event, span: Stretch) -> None:
    name = event.name
    if any(word in name for word in _LAUNCH_CALLS):
        correlation = _correlation(event)
        if correlation >= 0:
            timeline.launches.setdefault(correlation, span)
        if "Memcpy" in name:
            timeline.calls.setdefault(COPY, []).append(span)
        else:
            timeline.operators.append(span)
    elif name.startswith(_ALLOCATE_CALLS):
        timeline.calls.setdefault(ALLOCATE, []).append(span)
    elif name.endswith("Synchronize") or name.startswith(_SYNCHRONISE_CALLS[1:]):
        timeline.calls.setdefault(SYNCHRONISE, []).append(span)


def _correlation(event: Event) -> int:
    value = event.args.correlation if event.args is not None else None
    return int(value) if isinstance(value, (int, float)) else -1


@dataclass(frozen=True, slots=True)
class AttributedTime:
    """Seconds and calls of one cause at one place, of a whole window."""

    cause: str
    where: str | None
    s: float
    calls: int


def device_moment(timeline: HostTimeline, host_us: float) -> float:
    """When the device begins the first work that is launched after a moment of the host."""
    launched = [
        (launch.start, start)
        for start, _, correlation in timeline.work
        if (launch := timeline.launches.get(correlation)) is not None and launch.start >= host_us
    ]
    if launched:
        return min(launched)[1]
    return min((start for start, _, _ in timeline.work if start >= host_us), default=host_us)


def attribute(
    timeline: HostTimeline, window: Stretch, samples: Sequence[StackSample] = (), *, gc_us: Sequence[Stretch] = ()
) -> list[AttributedTime]:
    """What the time of `window` went to: the device's work, and each gap's cause. They add up to the window.

    `samples` have their moments in seconds of the trace's clock.
    """
    kernels, exchange, copies = (
        _union(part, window) for part in (timeline.kernels, timeline.collectives, timeline.copies)
    )
    busy_kernels = _length(kernels)
    with_exchange = _merge(kernels, exchange)
    busy = _merge(with_exchange, copies)
    totals = _Totals()
    totals.add(COMPUTE, None, busy_kernels, len(timeline.kernels))
    totals.add(EXCHANGE, None, _length(with_exchange) - busy_kernels, len(timeline.collectives))
    totals.add(COPY, None, _length(busy) - _length(with_exchange), len(timeline.copies))
    calls = {cause: _union(spans, window) for cause, spans in (timeline.calls | {GC: list(gc_us)}).items()}
    gaps = _Gaps(timeline, calls, samples, totals)
    for start, end in _between(busy, window):
        gaps.attribute(start, end)
    totals.bound_synchronisation(window.end - window.start, _length(busy), _length(calls.get(SYNCHRONISE, _NONE)))
    counts = {
        cause: sum(window.start <= s.start < window.end for s in spans) for cause, spans in timeline.calls.items()
    }
    counts[LAUNCH] = sum(window.start <= launch.start < window.end for launch in timeline.launches.values())
    counts.pop(COPY, None)
    return totals.rows(counts, _places(timeline.calls.get(SYNCHRONISE, []), samples))


def sampled_time(samples: Sequence[StackSample], begin_s: float, end_s: float) -> list[AttributedTime]:
    """What the time between two moments went to by samples alone; each stands for the time since the one before it.

    A sampler that waits for the interpreter's lock sees the thread where it let the lock go.
    """
    seconds: dict[tuple[str, str | None], float] = {}
    calls: Counter[tuple[str, str | None]] = Counter()
    since_s, last = begin_s, None
    for sample in samples:
        if sample.at_s <= begin_s:
            continue
        key = (sample.cause, None if sample.cause == COMPUTE else sample.where)
        seconds[key] = seconds.get(key, 0.0) + min(sample.at_s, end_s) - since_s
        calls[key] += key != last
        since_s, last = min(sample.at_s, end_s), key
        if sample.at_s >= end_s:
            break
    if last is not None:
        seconds[last] += end_s - since_s
    return [AttributedTime(cause, where, s, calls[cause, where]) for (cause, where), s in seconds.items()]


_NONE = np.empty((0, 2))


class _Totals:
    """Microseconds by cause and place."""

    def __init__(self) -> None:
        self._us: dict[tuple[str, str | None], float] = {}
        self._calls: Counter[tuple[str, str | None]] = Counter()
        self.after_sync: dict[tuple[str, str | None], float] = {}
        """What a gap that a synchronisation began would be without it."""

    def add(self, cause: str, where: str | None, us: float, calls: int = 1) -> None:
        if us > 0:
            self._us[cause, where] = self._us.get((cause, where), 0.0) + us
            self._calls[cause, where] += calls

    def add_after_sync(self, cause: str, where: str | None, us: float) -> None:
        if us > 0:
            self.add(SYNCHRONISE, None, us, 0)
            self.after_sync[cause, where] = self.after_sync.get((cause, where), 0.0) + us

    def bound_synchronisation(self, window_us: float, busy_us: float, waiting_us: float) -> None:
        """Give back what all synchronisations together cannot have cost."""
        total_us = self._us.get((SYNCHRONISE, None), 0.0)
        most_us = max(0.0, window_us - max(busy_us, window_us - waiting_us))
        back_us = min(max(0.0, total_us - most_us), sum(self.after_sync.values()))
        if back_us > 0:
            share = back_us / sum(self.after_sync.values())
            self._us[SYNCHRONISE, None] = total_us - back_us
            for (cause, where), us in self.after_sync.items():
                self.add(cause, where, us * share, 0)

    def rows(self, counts: dict[str, int], sync_places: Counter[str]) -> list[AttributedTime]:
        rows = []
        for (cause, where), us in self._us.items():
            number = counts.get(cause, self._calls[cause, where])
            if cause == SYNCHRONISE and sync_places:
                samples = sum(sync_places.values())
                for place, hits in sync_places.most_common(5):
                    rows.append(AttributedTime(cause, place, us * hits / samples / 1e6, round(number * hits / samples)))
                left = 1 - sum(hits for _, hits in sync_places.most_common(5)) / samples
                rows.append(AttributedTime(cause, None, us * left / 1e6, 0))
            else:
                rows.append(AttributedTime(cause, where, us / 1e6, number))
        return rows


class _Gaps:
    """Attributes one gap after the other."""

    def __init__(
        self, timeline: HostTimeline, calls: dict[str, Times], samples: Sequence[StackSample], totals: _Totals
    ) -> None:
        self._timeline = timeline
        self._totals = totals
        self._samples = sorted(samples, key=lambda sample: sample.at_s)
        self._sampled_us = np.array([sample.at_s * 1e6 for sample in self._samples])
        self._starts = np.array([start for start, _, _ in timeline.work])
        self._operators = _merge(np.array(timeline.operators).reshape(-1, 2), _NONE)
        # Each cause without what a more specific one covers.
        self._calls: list[tuple[str, Times]] = []
        covered = _NONE
        for cause in (SYNCHRONISE, ALLOCATE, GC, LOADER, COPY):
            spans = calls.get(cause, _NONE)
            if len(spans):
                merged = _merge(spans, covered)
                self._calls.append((cause, _without(merged, covered)))
                covered = merged

    def attribute(self, start: float, end: float) -> None:
        launch = self._launch_after(end)
        if launch is not None and launch.end <= start:
            self._totals.add(COMPUTE, None, end - start, 0)  # the device was not waiting for the host
            return
        late = end if launch is None else min(end, max(start, launch.end))
        self._totals.add(LAUNCH, None, end - late)
        rest_us, after_sync = late - start, False
        for cause, spans in self._calls:
            inside = _overlap(spans, start, late)
            rest_us -= inside
            self._totals.add(cause, None, inside)
            if cause == SYNCHRONISE:
                after_sync = _overlap(spans, start - _AFTER_SYNC_US, start + _AFTER_SYNC_US) > 0
        if rest_us <= 0:
            return
        if rest_us < _LONG_US:
            (self._totals.add_after_sync if after_sync else self._totals.add)(LAUNCH, None, rest_us)
            return
        for (cause, where), us in self._sampled(start, late, rest_us).items():
            self._totals.add(cause, where, us)

    def _launch_after(self, end: float) -> Stretch | None:
        place = int(np.searchsorted(self._starts, end - 1e-3))
        if place >= len(self._starts):
            return None
        return self._timeline.launches.get(self._timeline.work[place][2])

    def _sampled(self, start: float, end: float, us: float) -> dict[tuple[str, str | None], float]:
        """A long stretch by what the samples inside it saw; without any, by whether operators ran."""
        first, last = np.searchsorted(self._sampled_us, [start, end])
        if first == last and last < len(self._samples) and self._sampled_us[last] - end < _LONG_US:
            last += 1  # a thread that holds the interpreter's lock is seen when it lets go
        seen = Counter(self._label(sample, start, end) for sample in self._samples[first:last])
        if not seen:
            operators = _overlap(self._operators, start, end)
            return {(LAUNCH if 2 * operators > end - start else PYTHON, None): us}
        return {label: us * count / sum(seen.values()) for label, count in seen.items()}

    def _label(self, sample: StackSample, start: float, end: float) -> tuple[str, str | None]:
        if sample.cause != COMPUTE:
            return sample.cause, sample.where
        operators = _overlap(self._operators, start, end)
        return (LAUNCH, None) if 2 * operators > end - start else (PYTHON, sample.where)


def _places(calls: Sequence[Stretch], samples: Sequence[StackSample]) -> Counter[str]:
    """Where in the script the host was while it waited for the device; data code that waits counts too."""
    spans = _merge(np.array(calls).reshape(-1, 2), _NONE)
    hits: Counter[str] = Counter()
    for sample in samples:
        at_us = sample.at_s * 1e6
        if sample.where and sample.cause not in DATA_CAUSES - {PYTHON} and _overlap(spans, at_us - 1, at_us + 1) > 0:
            hits[sample.where] += 1
    return hits


# ---- sets of stretches: arrays of (begin, end), ordered and apart -----------------------------------------------


def _union(spans: Sequence[Stretch], window: Stretch) -> Times:
    clipped = [(max(s.start, window.start), min(s.end, window.end)) for s in spans]
    return _merge(np.array([c for c in clipped if c[1] > c[0]]).reshape(-1, 2), _NONE)


def _merge(first: Times, second: Times) -> Times:
    both = np.concatenate([first, second]) if len(second) else first
    if not len(both):
        return _NONE
    both = both[np.argsort(both[:, 0], kind="stable")]
    ends = np.maximum.accumulate(both[:, 1])
    begins = np.concatenate([[True], both[1:, 0] > ends[:-1]])
    last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(both) - 1]])
    return np.stack([both[begins, 0], ends[last]], axis=1)


def _between(spans: Times, window: Stretch) -> list[tuple[float, float]]:
    edges = [window.start, *spans.reshape(-1).tolist(), window.end]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def _without(spans: Times, covered: Times) -> Times:
    """The stretches of `spans` outside `covered`."""
    if not len(spans):
        return _NONE
    left = [
        piece for begin, end in spans.tolist() for piece in _between(_clip(covered, begin, end), Stretch(begin, end))
    ]
    return np.array(left).reshape(-1, 2)


def _clip(spans: Times, start: float, end: float) -> Times:
    first, last = np.searchsorted(spans[:, 1], start), np.searchsorted(spans[:, 0], end)
    inside = np.clip(spans[first:last], start, end)
    return inside[inside[:, 1] > inside[:, 0]]


def _overlap(spans: Times, start: float, end: float) -> float:
    return _length(_clip(spans, start, end))


def _length(spans: Times) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum()) if len(spans) else 0.0
