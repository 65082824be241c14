"""Traces of torch.profiler (Kineto) as `DeviceTrace`: one file a rank, plain or gzip, old and new names of categories.

The formats are those of pytorch/kineto from 2021 on: `Operator`/`Runtime`/`Kernel`/`Memcpy`/`Memset` became `cpu_op`/
`cuda_runtime`/`kernel`/`gpu_memcpy`/`gpu_memset`; times are microseconds, later with three decimals.
"""

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum, auto
from pathlib import Path

import msgspec
import numpy as np

from stallwise.errors import InputError
from stallwise.run.readers.device_trace import (
    NO_LAUNCH,
    Call,
    DeviceTrace,
    DeviceWork,
    Gradient,
    Mark,
    Step,
    Times,
    Work,
    work_of,
)
from stallwise.run.readers.kineto_events import Event, EventReader, Header
from stallwise.run.readers.kineto_flops import counts, flops_of

# Beyond this many microseconds a moment has no nanoseconds in 64 bits (and lies in the year 2255).
_LATEST_US = 9.0e15
_LONGEST_US = 1e12

_DEVICE = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "cuda_sync"}
_RUNTIME = {"cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "xpu_runtime"}
_HOST = {"cpu_op", "Operator", "user_annotation"}

_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)")
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "unsigned char": 1, "signed char": 1, "long int": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


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


def element_bytes(dtype: object) -> int | None:
    """Bytes of one number of a type as torch writes it: `Float`, `c10::BFloat16`, `float`."""
    return _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower())


@dataclass(slots=True)
class _Found:
    """What has been read so far, in columns."""

    path: Path
    events: int = 0
    fractional: bool = False
    names: dict[str, int] = field(default_factory=dict)
    # Rows one behind the other, which costs one call a row. Of work: begin and duration in µs;
    times: "array[float]" = field(default_factory=lambda: array("d"))
    # stream, correlation, name, bytes, whether it is a wait.
    facts: "array[int]" = field(default_factory=lambda: array("q"))
    # Of launches: begin; correlation.
    launched: "array[float]" = field(default_factory=lambda: array("d"))
    launched_as: "array[int]" = field(default_factory=lambda: array("q"))
    # Of operators: begin, duration, name, thread.
    operators: "array[float]" = field(default_factory=lambda: array("d"))
    threads: dict[object, int] = field(default_factory=dict)
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
                self._last_mark(ts)

    def _device(self, event: Event, ts: float, dur: float) -> None:
        args = event.args
        stream = None if args is None else _whole(args.stream)
        if args is None or stream is None or stream == -1:
            return
        self._check(event, ts, dur)
        correlation, elements = _whole(args.correlation), _whole(args.elements)
        width = None if elements is None else element_bytes(args.dtype)
        sent = elements * width if elements is not None and width is not None else _whole(args.bytes)
        self.times.extend((ts, dur))
        self.facts.extend(
            (
                _bounded(stream),
                -1 if correlation is None else _bounded(correlation),
                self._name(event.name),
                -1 if sent is None else max(-1, _bounded(sent)),
                event.cat == "cuda_sync",
            )
        )

    def _runtime(self, event: Event, ts: float, dur: float) -> None:
        self._check(event, ts, dur)
        correlation = None if event.args is None else _whole(event.args.correlation)
        if correlation is not None and correlation >= 0:
            self.launched.append(ts)
            self.launched_as.append(_bounded(correlation))
        if "Synchronize" in event.name or "Memcpy" in event.name:
            self.blocking.append(_mark(event.name, ts, dur))

    def _host(self, event: Event, ts: float, dur: float) -> None:
        name = event.name
        kind = self.kinds.get(name)
        if kind is None:
            kind = self.kinds[name] = _kind_of(name)
        if kind is _Host.COUNTED:
            args = event.args
            shapes, values = (None, None) if args is None else (_decoded(args.dims), _decoded(args.values))
            self._operator(event, ts, dur)
            self.flops.append((_ns(ts), flops_of(name, shapes, values)))
            return
        if kind is _Host.OPERATOR:
            if event.cat != "user_annotation":
                self._operator(event, ts, dur)
            return
        self._check(event, ts, dur)
        if kind is _Host.STEP:
            number = int(_STEP.match(name)[1])  # type: ignore[index]
            self.steps.append(Step(_bounded(number), _ns(ts), _ns(ts) + _ns(dur)))
            self._last_mark(ts)
        elif kind is _Host.GRADIENT:
            self.gradients.append(_gradient(event, ts))
            self._operator(event, ts, dur)
        elif kind is _Host.COLLECTIVE_NOTE or kind is _Host.COLLECTIVE:
            self._call(event, ts, dur, kind)
        else:
            self.marks[kind].append(_mark(name, ts, dur))
            if kind is _Host.BACKWARD:
                self._operator(event, ts, dur)

    def _operator(self, event: Event, ts: float, dur: float) -> None:
        self._check(event, ts, dur)
        thread = self.threads.setdefault(event.tid, len(self.threads))
        self.operators.extend((ts, dur, self._name(event.name), thread))

    def _call(self, event: Event, ts: float, dur: float, kind: _Host) -> None:
        args = event.args
        if kind is _Host.COLLECTIVE:
            self.marks[kind].append(_mark(event.name, ts, dur))
            shapes = None if args is None else _decoded(args.dims)
            types = None if args is None else _decoded(args.types)
            elements = _count(shapes)
            width = element_bytes(types[0]) if isinstance(types, list) and types else None
            self.calls.append(Call(_ns(ts), event.name, elements, width))
        elif args is not None and args.elements is not None:
            elements, group = _whole(args.elements), _whole(args.group_size)
            self.calls.append(Call(_ns(ts), str(args.collective or ""), elements, element_bytes(args.dtype), group))

    def _check(self, event: Event, ts: float, dur: float) -> None:
        if -_LATEST_US < ts < _LATEST_US and 0 <= dur < _LONGEST_US:
            return
        if dur < 0:
            raise InputError(
                f"{self.path}: {event.name[:80]!r} lasts {dur:g} µs, less than nothing. Record the trace again; such "
                "times come from a profiler that lost events."
            )
        raise InputError(
            f"{self.path}: {event.name[:80]!r} begins at {ts:g} µs and lasts {dur:g} µs, which cannot be. Is the file "
            "damaged?"
        )

    def _last_mark(self, ts: float) -> None:
        self.last_mark = ts if self.last_mark is None else max(ts, self.last_mark)

    def _name(self, name: str) -> int:
        return self.names.setdefault(name, len(self.names))

    def trace(self, header: Header) -> DeviceTrace:
        """Everything, in order of time."""
        if not self.times and not self.operators:
            raise InputError(
                f"{self.path} holds {self.events:,} events, but neither kernels nor operators: it is no PyTorch "
                "profiler trace, or nothing ran while it was recorded."
            )
        job = header.job
        steps = _distinct(self.steps)
        on_processor = not self.times
        return DeviceTrace(
            source=str(self.path),
            rank=None if job is None else job.rank,
            world_size=None if job is None else job.world_size,
            backend=None if job is None else job.backend,
            gpus=tuple(device.name or "GPU" for device in header.devices or ()),
            work=self._on_processor() if on_processor else self._work(),
            names=tuple(self.names),
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

    def _work(self) -> DeviceWork:
        begin, length = np.array(self.times).reshape(-1, 2).T
        stream, correlation, name, size, sync = np.array(self.facts, dtype=np.int64).reshape(-1, 5).T
        start = np.rint(begin * 1e3).astype(np.int64)
        kinds = np.array([work_of(known) for known in self.names], dtype=np.int32)
        work = DeviceWork(
            start_ns=start,
            end_ns=start + np.rint(length * 1e3).astype(np.int64),
            launch_ns=self._launches(start, correlation),
            kind=kinds[name],
            name=name.astype(np.int32),
            stream=stream,
            bytes=size,
            sync=sync.astype(np.bool_),
            ts_us=begin,
            dur_us=length,
        )
        return in_order(work)

    def _launches(self, start: Times, wanted: Times) -> Times:
        """The call each piece of work came from, by correlation; of several calls the first. Without one: its begin."""
        keys, moments = np.array(self.launched_as, dtype=np.int64), np.array(self.launched)
        order = np.lexsort((moments, keys))
        keys, moments = keys[order], np.rint(moments[order] * 1e3).astype(np.int64)
        at = np.searchsorted(keys, wanted)
        known = (at < len(keys)) & (wanted >= 0)
        known[known] = keys[at[known]] == wanted[known]
        found = np.full(len(wanted), NO_LAUNCH, dtype=np.int64)
        found[known] = moments[at[known]]
        return np.where(wanted < 0, start, found)

    def _on_processor(self) -> DeviceWork:
        """Without a device: the outermost operators of each thread, and the collectives beside them."""
        begin, length, named, of_thread = np.array(self.operators).reshape(-1, 4).T
        start = np.rint(begin * 1e3).astype(np.int64)
        end = start + np.rint(length * 1e3).astype(np.int64)
        threads, name = of_thread.astype(np.int64), named.astype(np.int32)
        keep = _outermost(threads, start, end)
        start, end, threads, name = start[keep], end[keep], threads[keep], name[keep]
        sent = self.marks[_Host.COLLECTIVE]
        sizes = {call.at_ns: call.bytes for call in self.calls}
        count = len(start)
        start = np.concatenate([start, np.array([m.start_ns for m in sent], dtype=np.int64)])
        work = DeviceWork(
            start_ns=start,
            end_ns=np.concatenate([end, np.array([m.end_ns for m in sent], dtype=np.int64)]),
            launch_ns=start.copy(),
            kind=np.repeat(np.array([Work.COMPUTE, Work.COMMUNICATION], dtype=np.int32), [count, len(sent)]),
            name=np.concatenate([name, np.array([self._name(m.name) for m in sent], dtype=np.int32)]),
            stream=np.concatenate([threads, np.full(len(sent), -2, dtype=np.int64)]),
            bytes=np.concatenate(
                [np.full(count, -1), np.array([sizes.get(m.start_ns) or -1 for m in sent], dtype=np.int64)]
            ).astype(np.int64),
            sync=np.zeros(len(start), dtype=np.bool_),
            ts_us=start / 1e3,
            dur_us=np.zeros(len(start)),
        )
        return in_order(work)


def in_order(work: DeviceWork) -> DeviceWork:
    """The same pieces by their begin."""
    order = np.argsort(work.start_ns, kind="stable")
    return DeviceWork(*(getattr(work, name)[order] for name in DeviceWork.__slots__))


def _outermost(threads: Times, start: Times, end: Times) -> Times:
    """Operators that lie in no other of their thread: those that begin after all before them have ended."""
    order = np.lexsort((-end, start, threads))
    keep, thread, until = [], -1, 0
    for i in order.tolist():
        if threads[i] != thread or start[i] >= until:
            keep.append(i)
            thread, until = int(threads[i]), int(end[i])
    return np.array(keep, dtype=np.int64)


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


def _gradient(event: Event, ts: float) -> Gradient:
    dims = None if event.args is None else _decoded(event.args.dims)
    types = None if event.args is None else _decoded(event.args.types)
    shape = dims[0] if isinstance(dims, list) and dims else None
    whole = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    width = element_bytes(types[0]) if isinstance(types, list) and types else None
    return Gradient(_ns(ts), tuple(shape) if whole and isinstance(shape, list) else None, width)


def _count(dims: object) -> int | None:
    """Elements of all tensors in `Input Dims`: `[[19618307]]`, or one level deeper for lists of tensors."""
    if not isinstance(dims, list) or not dims:
        return None
    first = dims[0]
    if isinstance(first, list) and first and all(type(n) is int for n in first):
        total = 1
        for n in first:
            total *= n
        return total if 0 <= total < 2**60 else None
    return None


def _decoded(raw: msgspec.Raw) -> object:
    text = bytes(raw)
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


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
    return Mark(_ns(ts), _ns(ts) + _ns(dur), name)


def _ns(micros: float) -> int:
    return round(micros * 1000)


def _bounded(value: int) -> int:
    """Within 63 bits: numbers here are names, so one beyond is as good as any other."""
    return max(-(2**62), min(2**62, value))


def _whole(value: object) -> int | None:
    """As HolisticTraceAnalysis takes stream numbers: what `int()` takes, else none."""
    if value is None or type(value) is int:
        return value
    try:
        return int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
