"""Step boundaries in time: the processor's clock, and on CUDA an event on the stream, never a synchronisation."""

import time
from typing import Any, NamedTuple

import torch


class Mark(NamedTuple):
    """One moment: wall clock, and where there is a GPU an event that the GPU will reach."""

    wall_s: float
    event: Any = None
    cpu_s: float = 0.0
    """Processor time of this process so far."""


class Clock:
    """Makes marks. Until the job's device is known it is the wall clock."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self._spare: list[Any] = []
        self._streams: dict[int, Any] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether marks carry events."""
        return self.device is not None and self.device.type == "cuda"

    def mark(self) -> Mark:
        """Now, for the processor and for the GPU's current stream."""
        if not self.on_gpu:
            return Mark(time.monotonic(), None, time.process_time())
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream())
        return Mark(time.monotonic(), event, time.process_time())

    def _stream(self) -> Any:
        """The current stream. torch makes a new object for it at every call; asking for its address is far quicker."""
        index = self.device.index if self.device is not None else None
        address = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device() if index is None else index)
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = torch.cuda.current_stream(self.device)
        return stream

    def prepare(self, marks: int) -> None:
        """Have the events for so many marks ready: making one costs more than recording it."""
        if self.on_gpu:
            missing = range(marks - len(self._spare))
            self._spare += [torch.cuda.Event(enable_timing=True) for _ in missing]  # type: ignore[no-untyped-call]
            for event in self._spare:
                event.record(self._stream())  # torch makes the real event only now

    def done_with(self, mark: Mark) -> None:
        """Nobody will ask for this mark again: its event serves another (making one costs more than recording it)."""
        if mark.event is not None:
            self._spare.append(mark.event)

    def wait(self) -> None:
        """Let the GPU finish. Only between blocks."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def is_past(mark: Mark) -> bool:
    """Whether the GPU has reached the mark, so that times up to it can be read."""
    return mark.event is None or bool(mark.event.query())


def elapsed_s(first: Mark, second: Mark) -> float:
    """Seconds between two marks that are past; GPU time where both carry events."""
    if first.event is None or second.event is None:
        return second.wall_s - first.wall_s
    return float(first.event.elapsed_time(second.event)) / 1e3
