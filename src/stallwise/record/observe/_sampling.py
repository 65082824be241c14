"""Samples of one thread's stack, taken by a thread of our own every few milliseconds of a bounded window."""

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise, repeat, starmap
from operator import attrgetter, itemgetter
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from stallwise.analysis.stacks import StackFrame
from stallwise.record.processes import without_collection

_MOST_FRAMES = 80
_MOST_SAMPLES = 20_000
_MOST_INPUTS = 200
_SWITCH_S = 1e-4
_CALL = Module._wrapped_call_impl.__code__
_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep

_CODE_AND_LINE = attrgetter("f_code", "f_lineno")

RawStack = list[tuple[CodeType, int]]


def library_folders() -> tuple[str, ...]:
    """Where installed code lies: Python's own, packages, and ours."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names} | {os.path.dirname(os.path.dirname(torch.__file__))}
    installed = {path for path in sys.path if path.endswith(("site-packages", "dist-packages"))}
    plain = {os.path.realpath(path) for path in folders | installed if path} | {p for p in folders | installed if p}
    return (*sorted(path.rstrip("/") + "/" for path in plain), _OUR_FOLDER)


class StackSampler:
    """Samples the thread that starts it until `stop`; what it costs that thread is a few microseconds a sample."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        self._switch_s = sys.getswitchinterval()
        self._stacks: list[tuple[float, RawStack]] = []
        self._thread = threading.Thread(target=self._sample, name="stallwise sampler", daemon=True)
        self.inputs: Counter[tuple[str, Any]] = Counter()
        """How often a module was seen called from a place with a first tensor of this shape (True: of integers)."""

    def start(self) -> None:
        """Begin to sample. The thread gives up the interpreter's lock when it is asked to, not only where it waits."""
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()

    def stop(self) -> list[tuple[float, list[StackFrame]]]:
        """End the sampling; each sample's moment on the monotonic clock, and its frames, innermost first."""
        self._stopped.set()
        sys.setswitchinterval(self._switch_s)
        if self._thread.is_alive():
            self._thread.join()
        return [
            (
                at_s,
                [
                    StackFrame(code.co_filename.replace(os.sep, "/"), line, code.co_qualname, code.co_flags)
                    for code, line in stack
                ],
            )
            for at_s, stack in self._stacks
        ]

    def _sample(self) -> None:
        while not self._stopped.wait(self._interval_s) and len(self._stacks) < _MOST_SAMPLES:
            with without_collection():
                stack: RawStack = []
                with contextlib.suppress(AttributeError, KeyError):  # the outermost frame has none around it
                    stack.extend(map(_CODE_AND_LINE, _frames(self._thread_id)))
                self._stacks.append((time.monotonic(), [(code, line or 0) for code, line in stack]))
                if self.inputs.total() < _MOST_INPUTS and any(code is _CALL for code, _ in stack):
                    self._note_input()

    def _note_input(self) -> None:
        """Keep the shape of the first tensor of the outermost module's call; where it has none yet, nothing."""
        frames: list[FrameType] = []
        with contextlib.suppress(AttributeError, KeyError):
            frames.extend(_frames(self._thread_id))
        calls = [(frame, caller) for frame, caller in pairwise(frames) if caller is not None and frame.f_code is _CALL]
        with contextlib.suppress(IndexError, StopIteration, KeyError, RuntimeError):
            call, caller = calls[-1]
            values = call.f_locals
            tensor = next(leaf for leaf in tree_leaves((values["args"], values["kwargs"])) if isinstance(leaf, Tensor))
            where = f"{caller.f_code.co_filename.replace(os.sep, '/')}:{caller.f_lineno}"
            self.inputs[where, (tuple(tensor.shape), not tensor.is_floating_point())] += 1


def _frames(thread_id: int) -> Iterator[Any]:
    """The frames of a thread, innermost first, ending in an AttributeError: the outermost has no frame around it.

    Consumed by one call of C (`list.extend`), so that the thread cannot run on in the middle of its own stack.
    """
    innermost = map(itemgetter(thread_id), starmap(sys._current_frames, ((),)))
    return accumulate(chain(innermost, repeat("f_back", _MOST_FRAMES - 1)), getattr)
