"""Device work of a Kineto trace, from the columns in which it was read; without a device, the processor's operators."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stallwise.run.readers.device_trace import (
    NO_GROUP,
    NO_LAUNCH,
    DeviceWork,
    Group,
    Mark,
    Times,
    Work,
    work_of,
)


@dataclass(slots=True)
class WorkColumns:
    """Rows one behind the other, which costs one call a row."""

    names: dict[str, int] = field(default_factory=dict)
    groups: dict[Group, int] = field(default_factory=dict)
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

    def group(self, group: Group) -> int:
        """The number of a process group."""
        return self.groups.setdefault(group, len(self.groups))

    def on_device(self) -> DeviceWork:
        """The device's work, in order of its begin."""
        begin, length = np.array(self.times).reshape(-1, 2).T
        stream, correlation, name, size, sync = np.array(self.facts, dtype=np.int64).reshape(-1, 5).T
        start = np.rint(begin * 1e3).astype(np.int64)
        kinds = np.array([work_of(known) for known in self.names], dtype=np.int32)
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

    def on_processor(
        self, sent: Sequence[Mark], sizes: Mapping[int, int | None], groups: Mapping[int, Group | None]
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
            kind=np.repeat(np.array([Work.COMPUTE, Work.COMMUNICATION], dtype=np.int32), [count, more]),
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
