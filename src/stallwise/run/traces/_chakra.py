"""Chakra execution traces (MLCommons) as `DeviceTrace`: protobuf files (`.et`) and their JSON form.

A Chakra node has a duration and what it depends on, but no begin, so the trace is *replayed*: a node starts when its
dependencies have ended and its lane is free. Operators of the CPU, kernels and collectives have a lane each, as
in ASTRA-sim. As in Chakra's own feeder, only `data_deps` count: they are the order of execution, while `ctrl_deps` name
the operator that called another and would close circles with them. PyTorch's own execution traces
(`{"schema": "1.…-chakra…", "nodes": [...]}`) hold no durations at all and cannot be taken in alone.

Field numbers are those of `et_def.proto` (mlcommons/chakra): a file is a row of messages, each behind its length as a
varint, first the metadata, then nodes: id 1, name 2, type 3, ctrl_deps 4, data_deps 5, start_time_micros 6,
duration_micros 7, attr 10; an attribute: name 1, its value in 3 to 29 by type.
"""

import heapq
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from stallwise.errors import InputError
from stallwise.inputs import read_whole
from stallwise.run.traces.device_trace import (
    NO_GROUP,
    NO_LAUNCH,
    DeviceTrace,
    DeviceWork,
    HostSpan,
    WorkKind,
    work_of,
)
from stallwise.run.traces.inputs import count, shown
from stallwise.sentences import Sentence

_COLLECTIVE, _SEND, _RECEIVE, _COMPUTE = 7, 5, 6, 4
_FILE_RANK = re.compile(r"\.(\d+)\.(?:et|json)(?:\.gz)?$")
_MOST_NODES = 20_000_000
_LONGEST_US = 1e12
# Beyond this many microseconds a moment has no nanoseconds in 64 bits.
_LATEST_US = 9e15
_VERSION, _ATTRIBUTE = 1, 2


class JsonNode(msgspec.Struct, frozen=True):
    """A node in Chakra's JSON."""

    number: int = msgspec.field(name="Id")
    name: str = msgspec.field(default="", name="Name")
    kind: int = msgspec.field(default=_COMPUTE, name="NodeType")
    data_deps: list[int] = []
    runtime: int | float = 0
    is_cpu_op: bool = False
    comm_size: int | None = None


class JsonDocument(msgspec.Struct, frozen=True):
    """A whole trace in Chakra's JSON form."""

    workload_graph: list[JsonNode]
    ngpus: int | None = None


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node of either form."""

    number: int
    name: str
    kind: int
    after: tuple[int, ...]
    duration_us: float
    on_processor: bool
    bytes: int = -1

    @property
    def lane(self) -> int:
        """Where it runs: the CPU, the device's compute or its network."""
        return 0 if self.on_processor else 2 if self.kind in (_COLLECTIVE, _SEND, _RECEIVE) else 1


def read_chakra_json(path: Path) -> DeviceTrace:
    """Read a Chakra trace in its JSON form."""
    try:
        document = msgspec.json.decode(read_whole(path), type=JsonDocument)
    except RecursionError:
        raise InputError(f"{path} is nested too deeply to be a Chakra trace.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no usable Chakra trace: {error}. Is it cut off or damaged?") from None
    nodes = [
        ChakraNode(
            node.number,
            node.name,
            node.kind,
            tuple(set(node.data_deps)),
            node.runtime,
            node.is_cpu_op,
            -1 if node.comm_size is None else node.comm_size,
        )
        for node in document.workload_graph
    ]
    return _replayed(path, nodes, count(document.ngpus, "ngpus", str(path)) if document.ngpus else None)


def read_chakra(path: Path) -> DeviceTrace:
    """Read a Chakra trace in its protobuf form (`.et`)."""
    data = memoryview(read_whole(path))
    messages = list(_messages(path, data))
    try:
        nodes = [_node(message) for message in messages[1:]]
    except (ValueError, IndexError, UnicodeDecodeError):
        raise InputError(f"{path} is no Chakra trace, or damaged: a node in it cannot be decoded.") from None
    return _replayed(path, nodes, None)


def looks_like_chakra(first: bytes) -> bool:
    """Whether a file begins like Chakra's protobuf: with a message of a version, of attributes, or of both.

    Chakra's converters write an attribute called schema, its generators a version alone. A file that is cut off within
    that message is known by the first.
    """
    return b"\n\x06schema" in first[:32] or _is_metadata(memoryview(first))


def _is_metadata(data: memoryview) -> bool:
    """Whether there is a whole first message, of nothing but a version and attributes."""
    try:
        size, at = _varint(data, 0)
        return 0 < size <= len(data) - at and all(_of_metadata(*field) for field in _fields(data[at : at + size]))
    except (ValueError, IndexError):
        return False


def _of_metadata(number: int, value: int | memoryview) -> bool:
    if isinstance(value, int):
        return False
    return number == _ATTRIBUTE or (number == _VERSION and bytes(value).decode().isprintable())


def _messages(path: Path, data: memoryview) -> Iterator[memoryview]:
    at, count = 0, 0
    while at < len(data):
        try:
            size, at = _varint(data, at)
        except (IndexError, ValueError):
            raise InputError(f"{path} is cut off or no Chakra trace: it ends inside a length.") from None
        if at + size > len(data):
            raise InputError(f"{path} is cut off or no Chakra trace: its message {count} reaches beyond the end.")
        yield data[at : at + size]
        at += size
        count += 1
        if count > _MOST_NODES:
            raise InputError(f"{path} holds more than {_MOST_NODES:,} messages, which no trace of a step has.")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire in (1, 5):
            width = 8 if wire == 1 else 4
            yield number, data[at : at + width]
            at += width
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field reaches beyond its message")
            yield number, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {wire}")


def _node(message: memoryview) -> ChakraNode:
    number, name, kind, duration, on_processor, size = 0, "", _COMPUTE, 0, True, -1
    after: list[int] = []
    for field, value in _fields(message):
        if field == 2 and not isinstance(value, int):
            name = bytes(value).decode()
        elif field == 5:
            after += [value] if isinstance(value, int) else list(_packed(value))
        elif field == 10 and not isinstance(value, int):
            key, attribute = _attribute(value)
            if key == "is_cpu_op" and attribute is not None:
                on_processor = bool(attribute)
            elif key == "comm_size" and attribute is not None:
                size = attribute
        elif isinstance(value, int):
            number = value if field == 1 else number
            kind = value if field == 3 else kind
            duration = value if field == 7 else duration
    return ChakraNode(number, name, kind, tuple(set(after)), duration, on_processor, size)


def _packed(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _attribute(message: memoryview) -> tuple[str, int | None]:
    name, number = "", None
    for field, value in _fields(message):
        if field == 1 and not isinstance(value, int):
            name = bytes(value).decode()
        elif field > 2 and isinstance(value, int):
            number = value
    return name, number


def _replayed(path: Path, nodes: list[ChakraNode], world_size: int | None) -> DeviceTrace:
    """The device trace of nodes that are replayed by their dependencies."""
    _check_durations(path, nodes)
    start = _replay(path, nodes)
    work = [node for node in nodes if not node.on_processor] or nodes
    device = work is not nodes
    names = {name: i for i, name in enumerate(dict.fromkeys(node.name for node in work))}
    launch = [_launch(node, start) for node in work] if device else [NO_LAUNCH] * len(work)
    rank = _FILE_RANK.search(path.name)
    return DeviceTrace(
        source=str(path),
        rank=int(rank[1]) if rank and len(rank[1]) < 7 else None,
        world_size=world_size,
        backend=None,
        gpus=(),
        work=_device_work(work, start, launch, names),
        names=tuple(names),
        steps=(),
        loader=tuple(
            HostSpan(round(start[n.number] * 1e3), round((start[n.number] + n.duration_us) * 1e3), n.name)
            for n in sorted(nodes, key=lambda n: start[n.number])
            if "DataLoader" in n.name and "__next__" in n.name
        ),
        on_processor=not device,
        notes=(
            Sentence(
                "trace.without-begins",
                f"{path.name} is a Chakra trace without begins: times are those of a replay of its dependencies.",
            ),
        ),
    )


def _check_durations(path: Path, nodes: list[ChakraNode]) -> None:
    if not nodes:
        raise InputError(f"{path} holds no nodes.")
    for node in nodes:
        if not 0 <= node.duration_us < _LONGEST_US:
            number = str(node.number)[:40]
            raise InputError(f"{path}: node {number} lasts {shown(node.duration_us)} µs, which cannot be.")
    if not any(node.duration_us for node in nodes):
        raise InputError(
            f"{path} holds no durations, so it says nothing about time. Give a Chakra trace that was linked with the "
            "profiler's (chakra_trace_link), or the profiler's own trace."
        )
    total_us = sum(node.duration_us for node in nodes)
    if total_us >= _LATEST_US:
        raise InputError(f"{path}: its nodes last {total_us:g} µs together, which cannot be. Is it damaged?")


def _device_work(
    work: list[ChakraNode], start: dict[int, float], launch: list[int], names: dict[str, int]
) -> DeviceWork:
    begin = np.array([start[node.number] for node in work], dtype=np.float64)
    length = np.array([node.duration_us for node in work], dtype=np.float64)
    start_ns = np.rint(begin * 1e3).astype(np.int64)
    columns = DeviceWork(
        start_ns=start_ns,
        end_ns=start_ns + np.rint(length * 1e3).astype(np.int64),
        launch_ns=np.array(launch, dtype=np.int64),
        kind=np.array([_work(node) for node in work], dtype=np.int32),
        name=np.array([names[node.name] for node in work], dtype=np.int32),
        stream=np.array([node.lane for node in work], dtype=np.int64),
        bytes=np.array([max(-1, min(node.bytes, 2**62)) for node in work], dtype=np.int64),
        sync=np.zeros(len(work), dtype=np.bool_),
        group=np.full(len(work), NO_GROUP, dtype=np.int32),
        ts_us=begin,
        dur_us=length,
    )
    order = np.argsort(begin, kind="stable")
    return DeviceWork(*(getattr(columns, name)[order] for name in DeviceWork.__slots__))


def _work(node: ChakraNode) -> WorkKind:
    return WorkKind.COMMUNICATION if node.kind in (_COLLECTIVE, _SEND, _RECEIVE) else work_of(node.name)


def _launch(node: ChakraNode, start: dict[int, float]) -> int:
    begins = [start[number] for number in node.after if number in start]
    return round(max(begins) * 1e3) if begins else NO_LAUNCH


def _replay(path: Path, nodes: list[ChakraNode]) -> dict[int, float]:
    """The begin of each node in µs: of those that may run, the one that can start first does (by number at a tie)."""
    by_number = {node.number: node for node in nodes}
    if len(by_number) < len(nodes):
        raise InputError(f"{path} names {len(nodes) - len(by_number)} nodes twice. Is it damaged?")
    waiting = {node.number: sum(number in by_number for number in node.after) for node in nodes}
    following: dict[int, list[int]] = defaultdict(list)
    for node in nodes:
        for number in node.after:
            if number in by_number:
                following[number].append(node.number)
    free = [0.0, 0.0, 0.0]
    ready = [(0.0, number) for number, count in waiting.items() if not count]
    heapq.heapify(ready)
    when: dict[int, float] = {}
    possible: dict[int, float] = defaultdict(float)
    while ready:
        at, number = heapq.heappop(ready)
        node = by_number[number]
        begin = max(at, free[node.lane])
        when[number] = begin
        end = free[node.lane] = begin + node.duration_us
        for other in following[number]:
            possible[other] = max(possible[other], end)
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (possible[other], other))
    if len(when) < len(nodes):
        raise InputError(f"{path} has nodes that wait for each other in a circle, so they never run.")
    return when
