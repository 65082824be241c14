"""Traces of torch.profiler (Kineto) as `DeviceTrace`: one file a rank, plain or gzip, old and new names of categories.

The formats are those of pytorch/kineto from 2021 on: `Operator`/`Runtime`/`Kernel`/`Memcpy`/`Memset` became `cpu_op`/
`cuda_runtime`/`kernel`/`gpu_memcpy`/`gpu_memset`; times are microseconds, later with three decimals.

FLOPs are those of the operators that do nearly all of them, from the shapes in a trace (`record_shapes=True`). A
multiply and an add count as two. Matrix products: 2·m·k·n; convolutions: 2·outputs·(channels of a group × kernel);
attention: 4·batch·heads·queries·keys·width. Of nested operators only one name is counted: attention that torch makes of
products (`…_math`) is counted by them.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from pathlib import Path

import msgspec

from stallwise.errors import InputError
from stallwise.run.traces.device_trace import (
    CollectiveCall,
    DeviceTrace,
    DeviceWork,
    Gradient,
    HostSpan,
    ProcessGroup,
    ProfilerStep,
    WorkColumns,
)
from stallwise.run.traces.inputs import count, shown
from stallwise.run.traces.kineto_events import Args, Event, EventReader, Header

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "unsigned char": 1, "signed char": 1, "long int": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_LONGEST = 4096
# A tensor of more elements than this is none; sums over all tensors of a trace stay within 63 bits.
_MOST_ELEMENTS = 2**40


def element_bytes(dtype: object) -> int | None:
    """Bytes of one number of a type as torch writes it: `Float`, `c10::BFloat16`, `float`."""
    return _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower())


def gradient_of(event: Event, ts: float) -> Gradient:
    """The gradient that autograd stored at this moment."""
    dims = None if event.args is None else decoded(event.args.dims)
    types = None if event.args is None else decoded(event.args.types)
    shape = dims[0] if isinstance(dims, list) and dims else None
    width = element_bytes(types[0]) if isinstance(types, list) and types else None
    return Gradient(ns(ts), tuple(shape) if isinstance(shape, list) and _elements(shape) is not None else None, width)


def count_of(dims: object) -> int | None:
    """Elements of all tensors in `Input Dims`: `[[19618307]]`, or one level deeper for lists of tensors."""
    if not isinstance(dims, list) or not dims:
        return None
    first = dims[0]
    return _elements(first) if isinstance(first, list) and first else None


def elements_of(value: object) -> int | None:
    """A number of elements as an event says it; None where no tensor has so many."""
    count = whole(value)
    return count if count is not None and 0 <= count < _MOST_ELEMENTS else None


def _elements(shape: list[object]) -> int | None:
    """Elements of a tensor of this shape; None where it is none."""
    total = 1
    for n in shape:
        if type(n) is not int or not 0 <= n < _MOST_ELEMENTS or (total := total * n) >= _MOST_ELEMENTS:
            return None
    return total


def group_of(args: Args) -> ProcessGroup | None:
    """The process group a collective says it ran in; lists of many ranks are written short, alike on all of them."""
    name, ranks = str(args.group or ""), str(args.group_ranks or "")
    ranks = "" if ranks == "[]" else ranks
    return ProcessGroup(name[:_LONGEST], ranks[:_LONGEST]) if name or ranks else None


def ranks_of(groups: object) -> tuple[tuple[int, ...], ...]:
    """Ranks of each process group that the file's header lists (`pg_config`)."""
    members = []
    for group in groups if isinstance(groups, list) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            members.append(tuple(ranks))
    return tuple(members)


def decoded(raw: msgspec.Raw) -> object:
    """A field that is decoded only where it is used; None where there is none."""
    text = bytes(raw)
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def ns(micros: float) -> int:
    return round(micros * 1000)


def bounded(value: int) -> int:
    """Within 63 bits: numbers here are names, so one beyond is as good as any other."""
    return max(-(2**62), min(2**62, value))


def whole(value: object) -> int | None:
    """As HolisticTraceAnalysis takes stream numbers: what `int()` takes, else none."""
    if value is None or type(value) is int:
        return value
    try:
        return int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None


PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operators and the place of their first factor."""
CONVOLUTION = "aten::convolution"
ATTENTION, OF_PRODUCTS = "aten::_scaled_dot_product", "_math"
_MOST = 2**62


def counts(name: str) -> bool:
    """Whether an operator of this name is counted."""
    fused = name.startswith(ATTENTION) and not name.endswith(OF_PRODUCTS)
    return name in PRODUCTS or name == CONVOLUTION or fused


def flops_of(name: str, shapes: object, values: object) -> float | None:
    """FLOPs of one call; None where its shapes do not say."""
    if not isinstance(shapes, list):
        return None
    sizes = [_shape(shape) for shape in shapes]
    try:
        if name in PRODUCTS:
            flops = _product_flops(sizes, PRODUCTS[name])
        elif name == CONVOLUTION:
            flops = _convolution_flops(sizes, values)
        else:
            (batch, heads, queries, width), keys = sizes[0], sizes[1][2]
            flops = 4 * batch * heads * queries * keys * width
    except (ValueError, IndexError, TypeError, ZeroDivisionError, RecursionError):
        return None
    return float(flops) if 0 < flops < _MOST else None


def _product_flops(sizes: list[tuple[int, ...]], first: int) -> int:
    left, right = sizes[first], sizes[first + 1]
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
        raise ValueError("no product")
    return 2 * math.prod(left) * right[-1]


def _convolution_flops(sizes: list[tuple[int, ...]], values: object) -> int:
    """Inputs: image, weight, bias, stride, padding, dilation, whether transposed, output padding, groups."""
    if not isinstance(values, list) or str(values[6]) != "False":
        raise ValueError("its stride is not in the trace, or it is a transposed one")
    image, weight = sizes[0], sizes[1]
    stride, padding, dilation = (_numbers(values[i]) for i in (3, 4, 5))
    outputs = [
        (size + 2 * padding[i % len(padding)] - dilation[i % len(dilation)] * (weight[2 + i] - 1) - 1)
        // stride[i % len(stride)]
        + 1
        for i, size in enumerate(image[2:])
    ]
    return 2 * image[0] * math.prod(outputs) * math.prod(weight)


def _numbers(text: object) -> Sequence[int]:
    numbers = json.loads(str(text))
    if not isinstance(numbers, list) or not numbers or not all(type(n) is int for n in numbers):
        raise ValueError("no list of numbers")
    return numbers


def _shape(shape: object) -> tuple[int, ...]:
    if isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape):
        return tuple(shape)
    return ()


# Beyond this many microseconds a moment has no nanoseconds in 64 bits (and lies in the year 2255).
_LATEST_US = 9.0e15
_LONGEST_US = 1e12
_LAST_STEP = 2**31 - 1

_DEVICE = {"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset", "cuda_sync"}
_RUNTIME = {"cuda_runtime", "Runtime", "cuda_driver", "hip_runtime", "xpu_runtime"}
_HOST = {"cpu_op", "Operator", "user_annotation"}

_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,18})")


class _Host(IntEnum):
    """What an event on the host is, by its name."""

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
    columns = _EventColumns(path)
    for piece in reader.pieces():
        columns.take(piece)
    return columns.trace(reader.header)


@dataclass(slots=True)
class _EventColumns:
    """What has been read so far, in columns."""

    path: Path
    events: int = 0
    fractional: bool = False
    columns: WorkColumns = field(default_factory=WorkColumns)
    marks: dict[_Host, list[HostSpan]] = field(default_factory=lambda: {kind: [] for kind in _Host})
    blocking: list[HostSpan] = field(default_factory=list)
    steps: list[ProfilerStep] = field(default_factory=list)
    gradients: list[Gradient] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
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
            self.steps.append(ProfilerStep(min(number, _LAST_STEP), ns(ts), ns(ts) + ns(dur)))
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
            self.calls.append(CollectiveCall(ns(ts), event.name, elements, width, group=group))
        elif args is not None and args.elements is not None:
            width, name = element_bytes(args.dtype), str(args.collective or "")
            self.calls.append(
                CollectiveCall(ns(ts), name, elements_of(args.elements), width, whole(args.group_size), group)
            )

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
            flops=tuple(sorted(self.flops, key=lambda count: count[0])),
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


def _calls(calls: list[CollectiveCall]) -> tuple[CollectiveCall, ...]:
    """Collectives with their sizes. Newer traces tell of a call twice: `record_param_comms` knows more, so it goes."""
    noted = [call for call in calls if call.elements is not None and ":" not in call.name]
    chosen = noted or [call for call in calls if ":" in call.name]
    return tuple(sorted(chosen, key=lambda call: call.at_ns))


def _distinct(steps: list[ProfilerStep]) -> tuple[ProfilerStep, ...]:
    """Steps by their begin, each number once (a trace of several threads may mark it in each)."""
    first: dict[int, ProfilerStep] = {}
    for step in sorted(steps, key=lambda step: (step.start_ns, -step.end_ns)):
        first.setdefault(step.number, step)
    return tuple(first.values())


def _merged(marks: list[HostSpan]) -> tuple[HostSpan, ...]:
    """Marks that overlap become one."""
    merged: list[HostSpan] = []
    for mark in _sorted(marks):
        if merged and mark.start_ns <= merged[-1].end_ns:
            merged[-1] = HostSpan(merged[-1].start_ns, max(merged[-1].end_ns, mark.end_ns), merged[-1].name)
        else:
            merged.append(mark)
    return tuple(merged)


def _sorted(marks: Iterable[HostSpan]) -> tuple[HostSpan, ...]:
    return tuple(sorted(marks, key=lambda mark: (mark.start_ns, mark.end_ns)))


def _mark(name: str, ts: float, dur: float) -> HostSpan:
    return HostSpan(ns(ts), ns(ts) + ns(dur), name)
