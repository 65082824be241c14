"""Shrinking a live training job instead of killing it.

response     what would happen: a recorded job with less CPU, memory, bandwidth or GPU
act          deflate a process or control group, and undo it
_limits      which control group limits the target, and to what; cgroups: reading and writing them
requests     requests to the job's ranks to take a smaller part of the batch
journal      the state before, on disk, and the keeper that restores it
processes    process identity, trees and CPU use
"""

__all__ = ["Amount", "DeflationRequest", "DeflationResult", "deflate", "outlook_of", "response_of", "undo"]

from typing import TYPE_CHECKING

from stallwise.lazy import loader

if TYPE_CHECKING:
    from stallwise.deflate.act import Amount, DeflationRequest, DeflationResult, deflate, undo
    from stallwise.deflate.response import outlook_of, response_of

__getattr__ = loader(
    __name__,
    {
        "Amount": "_limits",
        "DeflationRequest": "act",
        "DeflationResult": "act",
        "deflate": "act",
        "outlook_of": "response",
        "response_of": "response",
        "undo": "act",
    },
)
