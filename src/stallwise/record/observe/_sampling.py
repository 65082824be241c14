"""Samples of one thread's stack, taken by a thread of our own every few milliseconds of a bounded window."""

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from stallwise.analysis.stacks import StackFrame

_MOST_FRAMES = 80
_MOST_SAMPLES = 20_000
_MOST_INPUTS = 200
_SWITCH_S = 1e-4
_CALL = Module._wrapped_call_impl.__code__
_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep

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
            frame: Any = sys._current_frames().get(self._thread_id)
            at_s = time.monotonic()
            stack: RawStack = []
            call: Any = None
            while frame is not None and len(stack) < _MOST_FRAMES:
                stack.append((frame.f_code, frame.f_lineno or 0))
                if frame.f_code is _CALL:
                    call = frame
                frame = frame.f_back
            self._stacks.append((at_s, stack))
            if call is not None and call.f_back is not None and self.inputs.total() < _MOST_INPUTS:
                self._note_input(call)

    def _note_input(self, call: Any) -> None:
        """Keep the shape of the first tensor of the outermost module's call; where it has none yet, nothing."""
        with contextlib.suppress(StopIteration, KeyError, RuntimeError):
            values = call.f_locals
            tensor = next(leaf for leaf in tree_leaves((values["args"], values["kwargs"])) if isinstance(leaf, Tensor))
            where = f"{call.f_back.f_code.co_filename.replace(os.sep, '/')}:{call.f_back.f_lineno}"
            self.inputs[where, (tuple(tensor.shape), not tensor.is_floating_point())] += 1
