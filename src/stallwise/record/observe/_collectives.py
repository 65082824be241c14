"""Collectives and messages between ranks that the script calls itself, timed as what its compute waits for.

They cannot be switched off: the script may branch on their result. A blocking call is timed from call to return;
one with `async_op=True` where the script waits for it. On a GPU the marks are events on the compute stream, which
such a call makes wait for the transfer, so the time between them is the wait and nothing else. Each wait carries its
group of ranks: tensor, pipeline and data groups are told apart by who is in them.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import distributed as dist

from stallwise.record.rank._steps import StepClock, TimeMark, elapsed_s
from stallwise.run.schema import MESSAGES, CollectiveRow
from stallwise.sentences import Sentence

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
_ALWAYS_ASYNCHRONOUS = ("isend", "irecv", "batch_isend_irecv")
# `P2POp` and `batch_isend_irecv` compare operations with these names of their own module.
_COMPARED = ("isend", "irecv")
# Their collectives are switched off in a phase of their own.
_ABLATED = ("torch.distributed.fsdp", "torch.nn.parallel.distributed")


class CollectiveWait(NamedTuple):
    """One wait of this rank's compute for a collective."""

    name: str
    group: str
    bytes: int
    begin: TimeMark
    end: TimeMark


class ScriptCollectives:
    """Wraps torch.distributed's functions; collects the waits of the step that is running."""

    def __init__(self, clock: StepClock, skips: Callable[[Any], bool]) -> None:
        self._clock = clock
        self._skips = skips
        self._waits: list[CollectiveWait] = []
        self._names: set[str] = set()
        self._inside = threading.local()
        self._groups: dict[int, str] = {}  # a process group, by identity, to its ranks
        self._started: dict[int, tuple[str, str, int]] = {}  # work the script has not waited for yet

    def watch(self) -> None:
        """Wrap every collective of torch.distributed."""
        if not dist.is_available():
            return
        for name in (*_NAMES, *MESSAGES):
            timed = self._timed(name, getattr(dist, name))
            setattr(dist, name, timed)
            if name in _COMPARED:
                setattr(dist.distributed_c10d, name, timed)
        self._wrap_wait()

    def take(self) -> tuple[CollectiveWait, ...]:
        """The waits since the last call."""
        if not self._waits:
            return ()
        waits, self._waits = tuple(self._waits), []
        self._names.update(wait.name for wait in waits)
        return waits

    def remarks(self) -> list[Sentence]:
        """A sentence on the collectives that the script has called so far."""
        if not self._names:
            return []
        names = ", ".join(sorted(self._names))
        return [
            Sentence(
                "observe.own-collectives",
                f"The script calls collectives itself ({names}); they are timed as what compute waits for.",
            )
        ]

    def _timed(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(collective).parameters)
        position = parameters.index("group") if "group" in parameters else len(parameters)

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
            group = kwargs.get("group", args[position] if position < len(args) else None)
            if name == "batch_isend_irecv":
                operations = kwargs.get("p2p_op_list", args[0] if args else ())
                size = sum(operation.tensor.nbytes for operation in operations)
                group = operations[0].group if operations else None
            what = (name, self._ranks(group), size)
            if work is not None and (kwargs.get("async_op") or name in _ALWAYS_ASYNCHRONOUS):
                for one in work if isinstance(work, list) else [work]:
                    self._started[id(one)] = what
                    what = (*what[:2], 0)
                self._clock.recycle(begin)
            else:
                self._waits.append(CollectiveWait(*what, begin, self._clock.mark()))
            return work

        return timed

    def _ranks(self, group: Any) -> str:
        """The ranks of a process group: `0-3`, `0,2`."""
        ranks = self._groups.get(id(group))
        if ranks is None:
            try:
                ranks = ranks_text(dist.get_process_group_ranks(group))
            except (RuntimeError, ValueError, KeyError):  # not a member, or torn down meanwhile
                ranks = ""
            self._groups[id(group)] = ranks
        return ranks

    def _wrap_wait(self) -> None:
        wait = dist.Work.wait

        def timed(work: Any, *args: Any, **kwargs: Any) -> Any:
            started = self._started.pop(id(work), None) if self._started else None
            if started is None:
                return wait(work, *args, **kwargs)
            begin = self._clock.mark()
            result = wait(work, *args, **kwargs)
            self._waits.append(CollectiveWait(*started, begin, self._clock.mark()))
            return result

        dist.Work.wait = timed  # type: ignore[method-assign, assignment]


def collective_rows(rank: int, step: int, waits: Iterable[CollectiveWait], clock: StepClock) -> list[CollectiveRow]:
    """Sum up the waits of one step per collective and group; the device has passed their marks, which are recycled."""
    totals: dict[tuple[str, str], tuple[int, int, float]] = {}
    for wait in waits:
        calls, size, waited_s = totals.get((wait.name, wait.group), (0, 0, 0.0))
        totals[wait.name, wait.group] = (calls + 1, size + wait.bytes, waited_s + elapsed_s(wait.begin, wait.end))
        clock.recycle(wait.begin)
        clock.recycle(wait.end)
    return [CollectiveRow(rank, step, name, *total, group or None) for (name, group), total in totals.items()]


def ranks_text(ranks: Iterable[int]) -> str:
    """Ranks in order, neighbours together: `0-3,8`."""
    parts: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], rank)
        else:
            parts.append((rank, rank))
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in parts)


def _tensors(arguments: Iterable[Any]) -> Iterable[torch.Tensor]:
    """The first tensor argument, or the tensors of the first list: what goes over the wire."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return (argument,)
        if isinstance(argument, list | tuple) and argument and isinstance(argument[0], torch.Tensor):
            return argument
    return ()
