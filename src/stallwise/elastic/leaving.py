"""How a rank ends that does not end by itself: at once, with a code its agent understands."""

import logging
import os
import sys

import torch.distributed as dist

_WORDS = ("gloo", "Connection closed by peer", "Connection reset", "Broken pipe", "NCCL", "Socket")


def peer_lost(error: BaseException | None) -> bool:
    """Whether it is torch saying that another rank does not answer any more.

    An error of the job's own may read the same; agents see whether somebody was lost indeed.
    """
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def leave_now(code: int) -> None:
    """Without the interpreter's end: gloo groups abort or hang, now and then, when they are taken down."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)
