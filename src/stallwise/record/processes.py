"""Processes that end with their parent, and ending a whole tree of them."""

import contextlib
import ctypes
import signal
import sys

import psutil

_PR_SET_PDEATHSIG = 1


def die_with_parent(sent: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to send `sent` to this process when its parent dies (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sent))


def end_tree(pid: int, *, gentle: signal.Signals, patience_s: float) -> None:
    """Send `gentle` to the process `pid`, then kill whatever of its tree is left after `patience_s`."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        root.send_signal(gentle)
    _, left = psutil.wait_procs(tree, timeout=patience_s)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
