"""The device work of one rank as arrays: the form in which traces of other profilers are read.

Times are nanoseconds on the rank's own clock. *Work* is anything with a stream: kernels, copies, fills, and waits of
the device for itself. Each piece has the time of its launch on the host (`launch_ns`) and its step. `WorkColumns`
collects the rows of a Kineto trace; without a device, the operators of the CPU stand for device work.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from stallwise.sentences import Sentence

# numpy.typing says the same and costs a tenth of the time that reading a small trace takes.
Times = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Micros = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Codes = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
Flags = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

NO_LAUNCH = np.iinfo(np.int64).min
"""`launch_ns` of work whose launch is not in the trace."""
NO_STEP = -1
NO_GROUP = -1


class WorkKind(IntEnum):
    """Kind of a piece of device work, by HolisticTraceAnalysis' names of kernels."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    OTHER = 3


_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NOT_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")


@cache
def work_of(name: str) -> WorkKind:
    """The kind of a kernel by its name, as HolisticTraceAnalysis tells it (`hta/utils/utils.py`)."""
    if _COMMUNICATION.match(name):
        return WorkKind.COMMUNICATION
    if _MEMORY.match(name):
        return WorkKind.MEMORY
    return WorkKind.OTHER if _NOT_COMPUTE.match(name) else WorkKind.COMPUTE


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as a collective names it: its name and its ranks, as text."""

    name: str
    ranks: str


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Pieces of work in order of their begin. `name` and `stream` are indices into the names and stream numbers."""

    start_ns: Times
    end_ns: Times
    launch_ns: Times
    """When the call began that asked for it; `NO_LAUNCH` where none is in the trace."""
    kind: Codes
    name: Codes
    stream: Times
    bytes: Times
    """Moved or sent; -1 where unknown."""
    sync: Flags
    """A wait of the device for itself (cuda_sync), not work."""
    group: Codes
    """Of a collective: its process group, as an index into the trace's groups; `NO_GROUP` where it does not say."""
    ts_us: Micros
    dur_us: Micros
    """Begin and duration as the file has them."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """One step as torch's profiler marked it on the host."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class HostSpan:
    """A stretch of time on the host: waiting for a batch, an optimizer step, a blocking call."""

    start_ns: int
    end_ns: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter's gradient at the moment autograd stored it."""

    at_ns: int
    shape: tuple[int, ...] | None
    element_bytes: int | None


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective as the script's process called it: the size that its kernel may not tell."""

    at_ns: int
    name: str
    elements: int | None
    element_bytes: int | None
    group_size: int | None = None
    group: ProcessGroup | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes passed to the collective; None where the call does not tell."""
        complete = self.elements is not None and self.element_bytes is not None
        return (self.elements or 0) * (self.element_bytes or 0) if complete else None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceTrace:
    """One rank. `rank` is None where the file does not say."""

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    gpus: tuple[str, ...]
    """The GPUs of its machine; empty where the file does not say, or where there are none."""
    work: DeviceWork
    names: tuple[str, ...]
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups that collectives say they ran in."""
    members: tuple[tuple[int, ...], ...] = ()
    """Ranks of each process group this rank belongs to, as far as the file lists them."""
    steps: tuple[ProfilerStep, ...]
    loader: tuple[HostSpan, ...] = ()
    optimizer: tuple[HostSpan, ...] = ()
    blocking: tuple[HostSpan, ...] = ()
    """Calls in which the host waits for the device."""
    backward: tuple[HostSpan, ...] = ()
    """Autograd's own operators, merged where they touch."""
    gradients: tuple[Gradient, ...] = ()
    calls: tuple[CollectiveCall, ...] = ()
    flops: tuple[tuple[int, float | None], ...] = ()
    """Moment and FLOPs of each product, convolution and attention; None where its shapes are not in the trace."""
    last_mark_us: float | None = None
    """The begin of the last step's mark, on the processor or the device, as it stands in the file."""
    fractional: bool = False
    """Whether times have digits below a microsecond."""
    on_processor: bool = False
    """No device in the trace: `work` is the CPU's own operators."""
    notes: tuple[Sentence, ...] = field(default=())


@dataclass(slots=True)
class WorkColumns:
    """Rows one behind the other, which costs one call a row."""

    names: dict[str, int] = field(default_factory=dict)
    groups: dict[ProcessGroup, int] = field(default_factory=dict)
    # Of work: begin and duration in µs;
    times: "array[float]" = field(default_factory=lambda: array("d"))
    # stream, correlation, name, bytes, whether it is a wait.
    facts: "array[int]" = field(default_factory=lambda: array("q"))
    # Few pieces have a process group: their row and its number.
    grouped: list[tuple[int, int]] = field(default_factory=list)
    # Of launches: begin; correlation.
    launched: "array[float]" = field(default_factory=lambda: array("d"))
    launched_as: "array[int]" = field(default_factory=lambda: array("q"))
    # Of operators: begin, duration, name, thread.
    operators: "array[float]" = field(default_factory=lambda: array("d"))
    threads: dict[object, int] = field(default_factory=dict)

    def name(self, name: str) -> int:
        """The number of a name."""
        return self.names.setdefault(name, len(self.names))

    def group(self, group: ProcessGroup) -> int:
        """The number of a process group."""
        return self.groups.setdefault(group, len(self.groups))

    def on_device(self) -> DeviceWork:
        """The device's work, in order of its begin."""
        begin, length = np.array(self.times).reshape(-1, 2).T
        stream, correlation, name, size, sync = np.array(self.facts, dtype=np.int64).reshape(-1, 5).T
        start = np.rint(begin * 1e3).astype(np.int64)
        kinds = np.array([work_of(kernel) for kernel in self.names], dtype=np.int32)
        groups = np.full(len(start), NO_GROUP, dtype=np.int32)
        for row, number in self.grouped:
            groups[row] = number
        work = DeviceWork(
            start_ns=start,
            end_ns=start + np.rint(length * 1e3).astype(np.int64),
            launch_ns=self._launches(start, correlation),
            kind=kinds[name],
            name=name.astype(np.int32),
            stream=stream,
            bytes=size,
            sync=sync.astype(np.bool_),
            group=groups,
            ts_us=begin,
            dur_us=length,
        )
        return in_order(work)

    def _launches(self, start: Times, correlation: Times) -> Times:
        """The call each piece of work came from, by correlation; of several calls the first. Without one: its begin."""
        keys, moments = np.array(self.launched_as, dtype=np.int64), np.array(self.launched)
        order = np.lexsort((moments, keys))
        keys, moments = keys[order], np.rint(moments[order] * 1e3).astype(np.int64)
        at = np.searchsorted(keys, correlation)
        matched = (at < len(keys)) & (correlation >= 0)
        matched[matched] = keys[at[matched]] == correlation[matched]
        launches = np.full(len(correlation), NO_LAUNCH, dtype=np.int64)
        launches[matched] = moments[at[matched]]
        return np.where(correlation < 0, start, launches)

    def on_processor(
        self, sent: Sequence[HostSpan], sizes: Mapping[int, int | None], groups: Mapping[int, ProcessGroup | None]
    ) -> DeviceWork:
        """Without a device: the outermost operators of each thread, and the collectives beside them.

        Bytes and process groups of collectives are found by their begin.
        """
        begin, length, named, of_thread = np.array(self.operators).reshape(-1, 4).T
        start = np.rint(begin * 1e3).astype(np.int64)
        end = start + np.rint(length * 1e3).astype(np.int64)
        threads, name = of_thread.astype(np.int64), named.astype(np.int32)
        keep = _outermost(threads, start, end)
        start, end, threads, name = start[keep], end[keep], threads[keep], name[keep]
        count, more = len(start), len(sent)
        start = np.concatenate([start, np.array([m.start_ns for m in sent], dtype=np.int64)])
        in_groups = [groups.get(m.start_ns) for m in sent]
        work = DeviceWork(
            start_ns=start,
            end_ns=np.concatenate([end, np.array([m.end_ns for m in sent], dtype=np.int64)]),
            launch_ns=start.copy(),
            kind=np.repeat(np.array([WorkKind.COMPUTE, WorkKind.COMMUNICATION], dtype=np.int32), [count, more]),
            name=np.concatenate([name, np.array([self.name(m.name) for m in sent], dtype=np.int32)]),
            stream=np.concatenate([threads, np.full(more, -2, dtype=np.int64)]),
            bytes=np.array([-1] * count + [sizes.get(m.start_ns) or -1 for m in sent], dtype=np.int64),
            sync=np.zeros(count + more, dtype=np.bool_),
            group=np.array(
                [NO_GROUP] * count + [NO_GROUP if group is None else self.group(group) for group in in_groups],
                dtype=np.int32,
            ),
            ts_us=start / 1e3,
            dur_us=np.zeros(count + more),
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
