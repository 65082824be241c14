"""Traces of torch.profiler (Kineto) as `DeviceTrace`: one file a rank, plain or gzip, old and new names of categories.

The formats are those of pytorch/kineto from 2021 on: `Operator`/`Runtime`/`Kernel`/`Memcpy`/`Memset` became `cpu_op`/
`cuda_runtime`/`kernel`/`gpu_memcpy`/`gpu_memset`; times are microseconds, later with three decimals.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.device_trace import Call, DeviceTrace, DeviceWork, Gradient, Mark, Step
from stallwise.run.readers.kineto_events import Args, Event, EventReader, Header
from stallwise.run.readers.kineto_fields import (
    bounded,
    count_of,
    decoded,
    element_bytes,
    elements_of,
    gradient_of,
    group_of,
    ns,
    ranks_of,
    whole,
)
from stallwise.run.readers.kineto_flops import counts, flops_of
from stallwise.run.readers.kineto_work import WorkColumns
from stallwise.run.readers.numbers import count, shown

# Beyond this many microseconds a moment has no nanoseconds in 64 bits (and lies in the year 2255).
_LATEST_US = 9.0e15
_LONGEST_US = 1e12
_LAST_STEP = 2**31 - 1

_DEVICE = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "cuda_sync"}
_RUNTIME = {"cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "xpu_runtime"}
_HOST = {"cpu_op", "Operator", "user_annotation"}

_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,18})")


class _Host(IntEnum):
    """What an event on the processor is, by its name."""

    STEP = auto()
    LOADER = auto()
    OPTIMIZER = auto()
    GRADIENT = auto()
    BACKWARD = auto()
    COLLECTIVE = auto()
    COLLECTIVE_NOTE = auto()
    COUNTED = auto()
    OPERATOR = auto()


def read_kineto(path: Path) -> DeviceTrace:
    """The trace of one rank; an `InputError` says in one sentence what is wrong with the file."""
    reader = EventReader(path)
    found = _Found(path)
    for piece in reader.pieces():
        found.take(piece)
    return found.trace(reader.header)


@dataclass(slots=True)
class _Found:
    """What has been read so far, in columns."""

    path: Path
    events: int = 0
    fractional: bool = False
    columns: WorkColumns = field(default_factory=WorkColumns)
    marks: dict[_Host, list[Mark]] = field(default_factory=lambda: {kind: [] for kind in _Host})
    blocking: list[Mark] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    flops: list[tuple[int, float | None]] = field(default_factory=list)
    kinds: dict[str, _Host] = field(default_factory=dict)
    last_mark: float | None = None

    def take(self, events: Iterable[Event]) -> None:
        """Sort events into columns. HolisticTraceAnalysis, too, leaves out what has no duration or no category."""
        for event in events:
            self.events += 1
            ts, category = event.ts, event.cat
            if type(ts) is not int:
                self.fractional = True
            if ts is None or event.dur is None or category is None or event.ph not in ("X", ""):
                continue
            if category in _HOST:
                self._host(event, ts, event.dur)
            elif category in _RUNTIME:
                self._runtime(event, ts, event.dur)
            elif category in _DEVICE:
                self._device(event, ts, event.dur)
            elif category == "gpu_user_annotation" and _STEP.match(event.name):
                self._check(event, ts, event.dur)
                self._last_mark(ts)

    def _device(self, event: Event, ts: float, dur: float) -> None:
        args = event.args
        stream = None if args is None else whole(args.stream)
        if args is None or stream is None or stream == -1:
            return
        self._check(event, ts, dur)
        correlation, elements = whole(args.correlation), whole(args.elements)
        width = None if elements is None else element_bytes(args.dtype)
        sent = elements * width if elements is not None and width is not None else whole(args.bytes)
        columns = self.columns
        if args.group is not None or args.group_ranks is not None:
            self._grouped(args)
        columns.times.extend((ts, dur))
        columns.facts.extend(
            (
                bounded(stream),
                -1 if correlation is None else bounded(correlation),
                columns.name(event.name),
                -1 if sent is None else max(-1, bounded(sent)),
                event.cat == "cuda_sync",
            )
        )

    def _grouped(self, args: Args) -> None:
        group = group_of(args)
        if group is not None:
            self.columns.grouped.append((len(self.columns.times) // 2, self.columns.group(group)))

    def _runtime(self, event: Event, ts: float, dur: float) -> None:
        self._check(event, ts, dur)
        correlation = None if event.args is None else whole(event.args.correlation)
        if correlation is not None and correlation >= 0:
            self.columns.launched.append(ts)
            self.columns.launched_as.append(bounded(correlation))
        if "Synchronize" in event.name or "Memcpy" in event.name:
            self.blocking.append(_mark(event.name, ts, dur))

    def _host(self, event: Event, ts: float, dur: float) -> None:
        name = event.name
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = _kind_of(name)
        if kind is _Host.COUNTED:
            args = event.args
            shapes, values = (None, None) if args is None else (decoded(args.dims), decoded(args.values))
            self._operator(event, ts, dur)
            self.flops.append((ns(ts), flops_of(name, shapes, values)))
            return
        if kind is _Host.OPERATOR:
            if event.cat != "user_annotation":
                self._operator(event, ts, dur)
            return
        self._check(event, ts, dur)
        if kind is _Host.STEP:
            number = int(_STEP.match(name)[1])  # type: ignore[index]
            self.steps.append(Step(min(number, _LAST_STEP), ns(ts), ns(ts) + ns(dur)))
            self._last_mark(ts)
        elif kind is _Host.GRADIENT:
            self.gradients.append(gradient_of(event, ts))
            self._operator(event, ts, dur)
        elif kind is _Host.COLLECTIVE_NOTE or kind is _Host.COLLECTIVE:
            self._call(event, ts, dur, kind)
        else:
            self.marks[kind].append(_mark(name, ts, dur))
            if kind is _Host.BACKWARD:
                self._operator(event, ts, dur)

    def _operator(self, event: Event, ts: float, dur: float) -> None:
        self._check(event, ts, dur)
        columns = self.columns
        thread = columns.threads.setdefault(event.tid, len(columns.threads))
        columns.operators.extend((ts, dur, columns.name(event.name), thread))

    def _call(self, event: Event, ts: float, dur: float, kind: _Host) -> None:
        args = event.args
        group = None if args is None else group_of(args)
        if kind is _Host.COLLECTIVE:
            self.marks[kind].append(_mark(event.name, ts, dur))
            shapes = None if args is None else decoded(args.dims)
            types = None if args is None else decoded(args.types)
            elements = count_of(shapes)
            width = element_bytes(types[0]) if isinstance(types, list) and types else None
            self.calls.append(Call(ns(ts), event.name, elements, width, group=group))
        elif args is not None and args.elements is not None:
            width, name = element_bytes(args.dtype), str(args.collective or "")
            self.calls.append(Call(ns(ts), name, elements_of(args.elements), width, whole(args.group_size), group))

    def _check(self, event: Event, ts: float, dur: float) -> None:
        if -_LATEST_US < ts < _LATEST_US and 0 <= dur < _LONGEST_US:
            return
        if dur < 0:
            raise InputError(
                f"{self.path}: {event.name[:80]!r} lasts {shown(dur)} µs, less than nothing. Record the trace again; "
                "such times come from a profiler that lost events."
            )
        raise InputError(
            f"{self.path}: {event.name[:80]!r} begins at {shown(ts)} µs and lasts {shown(dur)} µs, which cannot be. "
            "Is the file damaged?"
        )

    def _last_mark(self, ts: float) -> None:
        self.last_mark = ts if self.last_mark is None else max(ts, self.last_mark)

    def trace(self, header: Header) -> DeviceTrace:
        """Everything, in order of time."""
        columns = self.columns
        if not columns.times and not columns.operators:
            raise InputError(
                f"{self.path} holds {self.events:,} events, but neither kernels nor operators: it is no PyTorch "
                "profiler trace, or nothing ran while it was recorded."
            )
        job = header.job
        steps = _distinct(self.steps)
        on_processor = not columns.times
        # Naming collectives without a device adds to the names, so work comes first.
        work = self._on_processor() if on_processor else columns.on_device()
        return DeviceTrace(
            source=str(self.path),
            rank=None if job is None else job.rank,
            world_size=self._world_size(header),
            backend=None if job is None else job.backend,
            gpus=tuple(device.name or "GPU" for device in header.devices or ()),
            work=work,
            names=tuple(columns.names),
            groups=tuple(columns.groups),
            members=ranks_of(None if job is None else job.groups),
            steps=steps,
            loader=_sorted(self.marks[_Host.LOADER]),
            optimizer=_sorted(self.marks[_Host.OPTIMIZER]),
            blocking=_sorted(self.blocking),
            backward=_merged(self.marks[_Host.BACKWARD]),
            gradients=tuple(sorted(self.gradients, key=lambda gradient: gradient.at_ns)),
            calls=_calls(self.calls),
            flops=tuple(sorted(self.flops, key=lambda found: found[0])),
            last_mark_us=self.last_mark,
            fractional=self.fractional,
            on_processor=on_processor,
        )

    def _world_size(self, header: Header) -> int | None:
        size = None if header.job is None else header.job.world_size
        return count(size, "world_size", str(self.path)) if size else None

    def _on_processor(self) -> DeviceWork:
        sizes = {call.at_ns: call.bytes for call in self.calls}
        groups = {call.at_ns: call.group for call in self.calls}
        return self.columns.on_processor(self.marks[_Host.COLLECTIVE], sizes, groups)


def _kind_of(name: str) -> _Host:
    if _STEP.match(name):
        return _Host.STEP
    if "DataLoader" in name and "__next__" in name:
        return _Host.LOADER
    if name.startswith("Optimizer.step#"):
        return _Host.OPTIMIZER
    if name == "torch::autograd::AccumulateGrad":
        return _Host.GRADIENT
    if name.startswith("autograd::engine::evaluate_function") or re.search(r"Backward\d*$", name):
        return _Host.BACKWARD
    if name.startswith(("nccl:", "gloo:", "mpi:", "ucc:")):
        return _Host.COLLECTIVE
    if name == "record_param_comms":
        return _Host.COLLECTIVE_NOTE
    return _Host.COUNTED if counts(name) else _Host.OPERATOR


def _calls(found: list[Call]) -> tuple[Call, ...]:
    """Collectives with their sizes. Newer traces tell of a call twice: `record_param_comms` knows more, so it goes."""
    noted = [call for call in found if call.elements is not None and ":" not in call.name]
    chosen = noted or [call for call in found if ":" in call.name]
    return tuple(sorted(chosen, key=lambda call: call.at_ns))


def _distinct(steps: list[Step]) -> tuple[Step, ...]:
    """Steps by their begin, each number once (a trace of several threads may mark it in each)."""
    first: dict[int, Step] = {}
    for step in sorted(steps, key=lambda step: (step.start_ns, -step.end_ns)):
        first.setdefault(step.number, step)
    return tuple(first.values())


def _merged(marks: list[Mark]) -> tuple[Mark, ...]:
    """Marks that overlap become one."""
    found: list[Mark] = []
    for mark in _sorted(marks):
        if found and mark.start_ns <= found[-1].end_ns:
            found[-1] = Mark(found[-1].start_ns, max(found[-1].end_ns, mark.end_ns), found[-1].name)
        else:
            found.append(mark)
    return tuple(found)


def _sorted(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    return tuple(sorted(marks, key=lambda mark: (mark.start_ns, mark.end_ns)))


def _mark(name: str, ts: float, dur: float) -> Mark:
    return Mark(ns(ts), ns(ts) + ns(dur), name)
