"""Steps: where one begins (the shortest repeating cycle of fetches and optimizer steps), and the clock that times it.

The recorder reports every fetch and every optimizer step, in order. A *cycle* opens at the first fetch of a
training loader after an optimizer step; with gradient accumulation it holds k fetches and one optimizer step.
Where cycles of different shape repeat (five critic updates, then one of the generator) a *step* is that whole
repetition. A loader counts as a training loader when most cycles fetch from it; what other loaders fetch is
evaluation. Without any loader, an optimizer step itself opens the next cycle.

Loops that look ahead (Accelerate's loaders, and so Hugging Face's Trainer) fetch a batch before they train on the one
before: their epoch begins with two fetches and ends with none. Such cycles say nothing about the repetition.

Step boundaries are marked on the host's clock and, on CUDA, by an event on the stream, never by a synchronisation.
"""

import time
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from stallwise.torch_private import cuda_stream_address

_TRAINING_FRACTION = 0.8
_LONGEST_PERIOD = 32
_MIN_MISTAKES = 3
_BOUNDARY_CYCLES = 2  # the last of an epoch and the first of the next

Shape = tuple[tuple[str, int], ...]
"""The calls of a cycle, in order: ("fetch", loader) or ("optimizer", optimizer)."""

ANY: Shape = ()
"""A cycle at the boundary of two epochs: equals any other."""


class CycleTracker:
    """Follows fetches and optimizer steps; detects when a cycle opens and what it consists of."""

    def __init__(self) -> None:
        self.cycles = 0
        self.shapes: list[Shape] = []  # of the cycles before `settle`
        self._calls: list[tuple[str, int]] = []  # fetches and optimizer steps since the cycle opened
        self._fetched_in: Counter[int] = Counter()
        self._stepped = False
        self._training: frozenset[int] | None = None
        self._explicit = False
        self.evaluating: int | None = None  # the loader of the last fetch, where it is not a training loader
        self._mistaken: Counter[int] = Counter()
        self._over: int | None = None  # the loader whose epoch ended, until the next fetch
        self._boundary_cycles = 0  # cycles at the boundary of two epochs that are still to be closed
        self._period: int | None = None

    def fetch(self, loader: int, *, grad_enabled: bool = True) -> bool:
        """Note a fetch from a loader; True when that opens a cycle."""
        if self.is_evaluation(loader, grad_enabled=grad_enabled) or self._explicit:
            self.evaluating = loader
            return False
        self.evaluating = None
        empty = self._over is not None and not self._calls  # opened by a fetch that met the end of the epoch
        opens = (self._stepped or not self._calls) and not empty
        if opens:
            self._open()
        self._over = None
        self._calls.append(("fetch", loader))
        return opens

    def nothing_fetched(self, loader: int) -> None:
        """Note that the last fetch met the end of the epoch: the cycle it opened begins with the next fetch."""
        if self._calls and self._calls[-1] == ("fetch", loader):
            self._calls.pop()
            self._over = loader

    def optimizer(self, optimizer: int) -> bool:
        """Note an optimizer step; True when that opens a cycle (only in jobs without a loader)."""
        opens = False
        self._trained_on(self.evaluating)
        if self._over is not None:
            # Its last batch was fetched before the epoch ended: the loop looks ahead.
            self._calls.append(("end", self._over))
            self._over, self._boundary_cycles = None, _BOUNDARY_CYCLES
        if not self._explicit and not self._has_loader() and self._first_again(optimizer):
            self._open()
            opens = True
        self._calls.append(("optimizer", optimizer))
        self._stepped = True
        return opens

    def mark(self) -> bool:
        """Open a cycle because the script called `stallwise.step()`; from then on only such calls do."""
        self._explicit = True
        self._open()
        self._calls.append(("mark", 0))
        return True

    @property
    def is_explicit(self) -> bool:
        """Whether the script says where steps begin."""
        return self._explicit

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of a step, as seen before `settle`: of a whole repetition."""
        shapes = [shape for shape in self.shapes[1:] if shape != ANY]
        steps = sum(kind == "optimizer" for shape in shapes for kind, _ in shape)
        return max(1, round(steps / max(1, len(shapes)) * self.period))

    def wake(self) -> None:
        """Go on after calls that were not noted: a cycle opens with the next call."""
        self._calls, self._stepped, self._over, self._boundary_cycles = [], False, None, 0

    def is_evaluation(self, loader: int, *, grad_enabled: bool) -> bool:
        """Whether this loader's batches are not trained on."""
        if self._training is not None:
            return loader not in self._training
        return not grad_enabled

    def settle(self) -> None:
        """Fix the period and decide which loaders are training loaders, from the cycles so far."""
        full = max(1, self.cycles - 1)
        self._period = self.period
        self._training = frozenset(loader for loader, n in self._fetched_in.items() if n >= _TRAINING_FRACTION * full)

    @property
    def period(self) -> int:
        """Cycles per step, from the shapes seen so far; later irregularities do not change it."""
        return self._period or period_of(self.shapes)

    @property
    def repeats(self) -> bool:
        """Whether the shapes seen so far show a repetition; after twice the longest one there is none to wait for.

        An optimizer that stepped in the first cycle only will step again: loops often begin with the rare one
        (`if step % n == 0`), and cycles that are all alike after it are then no repetition yet.
        """
        tail = self.shapes[1:]
        kinds = set(tail) - {ANY}
        alike = not kinds or (len(kinds) == 1 and not self._optimizers(self.shapes[:1]) - self._optimizers(tail))
        return self.period > 1 or alike or len(tail) > 2 * _LONGEST_PERIOD

    @staticmethod
    def _optimizers(shapes: Sequence[Shape]) -> set[int]:
        return {number for shape in shapes for kind, number in shape if kind == "optimizer"}

    @property
    def fetches_per_cycle(self) -> float:
        """Mean number of fetches in the cycles seen so far."""
        shapes = [shape for shape in self.shapes if shape != ANY]
        fetches = sum(kind == "fetch" for shape in shapes for kind, _ in shape)
        return fetches / max(1, len(shapes))

    def _trained_on(self, loader: int | None) -> None:
        """Count optimizer steps on batches taken for evaluation; after a few the loader is a training loader."""
        if self._training is None or loader is None:
            return
        self._mistaken[loader] += 1
        if self._mistaken[loader] >= _MIN_MISTAKES:
            self._training |= {loader}

    def _has_loader(self) -> bool:
        return bool(self._fetched_in) or any(kind == "fetch" for kind, _ in self._calls)

    def _first_again(self, optimizer: int) -> bool:
        return not self._calls or self._calls[0] == ("optimizer", optimizer)

    def _open(self) -> None:
        if self._calls and self._training is None:
            self.shapes.append(ANY if self._boundary_cycles else tuple(self._calls))
            self._fetched_in.update({key for kind, key in self._calls if kind in ("fetch", "end")})
        self._boundary_cycles = max(0, self._boundary_cycles - 1)
        self._calls = []
        self._stepped = False
        self.cycles += 1


def period_of(shapes: Sequence[Hashable]) -> int:
    """The smallest p with shapes[i] = shapes[i + p] wherever both were seen at least twice over; else 1.

    The first shape is ignored: a job's first cycle often holds a fetch more (a look at the data). `ANY` equals all.
    """
    tail = shapes[1:]
    for period in range(1, min(_LONGEST_PERIOD, len(tail) // 2) + 1):
        pairs = ((tail[i], tail[i + period]) for i in range(len(tail) - period))
        if all(a == b or ANY in (a, b) for a, b in pairs):
            return period
    return 1


class TimeMark(NamedTuple):
    """One moment: host clock, and where there is a GPU an event that the GPU will reach."""

    wall_s: float
    event: Any = None
    cpu_s: float = 0.0
    """CPU time of this process so far."""


class StepClock:
    """Takes time marks: of the host's clock until the job's device is known, then of its GPU as well."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        self._spare: list[Any] = []
        self._streams: dict[int, Any] = {}

    @property
    def on_gpu(self) -> bool:
        """Whether marks carry events."""
        return self.device is not None and self.device.type == "cuda"

    def mark(self) -> TimeMark:
        """Mark this moment on the host and on the GPU's current stream."""
        if not self.on_gpu:
            return TimeMark(time.monotonic(), None, time.process_time())
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream())
        return TimeMark(time.monotonic(), event, time.process_time())

    def _stream(self) -> Any:
        """The current stream. torch makes a new object for it at every call; asking for its address is far faster."""
        index = self.device.index if self.device is not None else None
        address = cuda_stream_address(torch.cuda.current_device() if index is None else index)
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = torch.cuda.current_stream(self.device)
        return stream

    def prepare(self, marks: int) -> None:
        """Create the events for `marks` marks in advance: creating one costs more than recording it."""
        if self.on_gpu:
            missing = range(marks - len(self._spare))
            self._spare += [torch.cuda.Event(enable_timing=True) for _ in missing]  # type: ignore[no-untyped-call]
            for event in self._spare:
                event.record(self._stream())  # torch creates the real event only now

    def recycle(self, mark: TimeMark) -> None:
        """Reuse the event of a mark that is not needed any more."""
        if mark.event is not None:
            self._spare.append(mark.event)

    def wait(self) -> None:
        """Wait for the GPU to finish; called between blocks only."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def is_past(mark: TimeMark) -> bool:
    """Whether the GPU has reached the mark, so that times up to it can be read."""
    return mark.event is None or bool(mark.event.query())


def elapsed_s(first: TimeMark, second: TimeMark) -> float:
    """Seconds between two marks that are past; GPU time where both carry events."""
    if first.event is None or second.event is None:
        return second.wall_s - first.wall_s
    return float(first.event.elapsed_time(second.event)) / 1e3
