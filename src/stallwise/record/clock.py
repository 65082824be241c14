"""Step boundaries in time: the processor's clock, and on CUDA an event on the stream, never a synchronisation."""

import time
from typing import Any, NamedTuple

import torch


class Mark(NamedTuple):
    """One moment: wall clock, and where there is a GPU an event that the GPU will reach."""

    wall_s: float
    event: Any = None


class Clock:
    """Makes marks. Until the job's device is known it is the wall clock."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self._spare: list[Any] = []

    @property
    def on_gpu(self) -> bool:
        """Whether marks carry events."""
        return self.device is not None and self.device.type == "cuda"

    def mark(self) -> Mark:
        """Now, for the processor and for the GPU's current stream."""
        if not self.on_gpu:
            return Mark(time.monotonic())
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return Mark(time.monotonic(), event)

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
