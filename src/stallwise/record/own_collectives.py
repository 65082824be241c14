"""Collectives that the script calls itself, timed as what its compute waits for.

They cannot be taken away: the script may branch on their result. A call made to wait is timed from call to return;
one made with `async_op=True` where the script waits for it. On a GPU the marks are events on the compute stream, which
such a call makes wait for the transfer, so the time between them is the wait and nothing else.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from stallwise.record.clock import Clock, Mark, elapsed_s
from stallwise.run.schema import CollectiveRow

_NAMES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
# Whose collectives are taken away in a phase of their own.
_ABLATED = ("torch.distributed.fsdp", "torch.nn.parallel.distributed")


class Waited(NamedTuple):
    """One wait of this rank's compute."""

    name: str
    bytes: int
    begin: Mark
    end: Mark


class OwnCollectives:
    """Wraps torch.distributed's functions; collects the waits of the step that is running."""

    def __init__(self, clock: Clock, skips: Callable[[Any], bool]) -> None:
        self._clock = clock
        self._skips = skips
        self._waited: list[Waited] = []
        self._seen: set[str] = set()
        self._inside = threading.local()
        self._started: dict[int, tuple[str, int]] = {}  # work the script has not waited for yet

    def watch(self) -> None:
        """Wrap every collective."""
        if not dist.is_available():
            return
        for name in _NAMES:
            setattr(dist, name, self._timed(name, getattr(dist, name)))
        self._wrap_wait()

    def take(self) -> tuple[Waited, ...]:
        """The waits since the last call."""
        if not self._waited:
            return ()
        taken, self._waited = tuple(self._waited), []
        self._seen.update(wait.name for wait in taken)
        return taken

    def remarks(self) -> list[str]:
        """What the script has called so far, in a sentence."""
        if not self._seen:
            return []
        names = ", ".join(sorted(self._seen))
        return [f"The script calls collectives itself ({names}); they are timed as what compute waits for."]

    def _timed(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def timed(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.startswith(_ABLATED):
                if name == "all_reduce" and self._skips(kwargs.get("group")):
                    return None
                return collective(*args, **kwargs)
            if getattr(self._inside, "depth", 0):
                return collective(*args, **kwargs)
            self._inside.depth = 1
            begin = self._clock.mark()
            try:
                work = collective(*args, **kwargs)
            finally:
                self._inside.depth = 0
            size = sum(tensor.nbytes for tensor in _tensors(args[:2]))
            if kwargs.get("async_op") and work is not None:
                self._started[id(work)] = (name, size)
                self._clock.done_with(begin)
            else:
                self._waited.append(Waited(name, size, begin, self._clock.mark()))
            return work

        return timed

    def _wrap_wait(self) -> None:
        wait = dist.Work.wait

        def timed(work: Any, *args: Any, **kwargs: Any) -> Any:
            found = self._started.pop(id(work), None) if self._started else None
            if found is None:
                return wait(work, *args, **kwargs)
            begin = self._clock.mark()
            result = wait(work, *args, **kwargs)
            self._waited.append(Waited(*found, begin, self._clock.mark()))
            return result

        dist.Work.wait = timed  # type: ignore[method-assign, assignment]


def rows(rank: int, step: int, waited: Iterable[Waited], clock: Clock) -> list[CollectiveRow]:
    """The waits of one step, per collective; the device has passed their marks, which are given back."""
    totals: dict[str, tuple[int, int, float]] = {}
    for wait in waited:
        calls, size, waited_s = totals.get(wait.name, (0, 0, 0.0))
        totals[wait.name] = (calls + 1, size + wait.bytes, waited_s + elapsed_s(wait.begin, wait.end))
        clock.done_with(wait.begin)
        clock.done_with(wait.end)
    return [CollectiveRow(rank, step, name, *total) for name, total in totals.items()]


def _tensors(arguments: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The first tensor argument, or the tensors of the first list: what goes over the wire."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return (argument,)
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], torch.Tensor):
            return argument
    return ()
