"""What all ranks of a round do together: it succeeds on all of them, or raises the same error on all."""

from collections.abc import Callable
from typing import Any

import msgspec
import torch.distributed as dist

from stallwise.elastic._ownership import SupersededError
from stallwise.elastic._storage import is_full
from stallwise.errors import InputError
from stallwise.record.messages import gather


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why one rank could not do what all do together."""

    kind: str
    text: str
    full: bool = False
    """Whether a disk is full."""


class RankFailureError(OSError):
    """A rank could not do what all do together; raised on all of them."""

    def __init__(self, rank: int, failure: RankFailure) -> None:
        super().__init__(f"rank {rank}: {failure.text}")
        self.full = failure.full


def first_line(error: BaseException) -> str:
    """Return the type and first line of an error."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def together(act: Callable[[], Any], group: dist.ProcessGroup | None) -> list[Any]:
    """Act on every rank and return all results; where one fails, raise its error on all."""
    results = gather(_attempt(act), group)
    for rank, (_, failure) in enumerate(results):
        if failure is not None:
            _raise(rank, msgspec.convert(failure, RankFailure))
    return [value for value, _ in results]


def on_rank_0(act: Callable[[], Any], group: dist.ProcessGroup | None) -> Any:
    """Act on rank 0 and return its result on all ranks, or raise its error on all."""
    return together(act if dist.get_rank(group) == 0 else lambda: None, group)[0]


def _attempt(act: Callable[[], Any]) -> tuple[Any, RankFailure | None]:
    try:
        return act(), None
    except SupersededError as error:
        return None, RankFailure(kind="superseded", text=str(error))
    except InputError as error:
        return None, RankFailure(kind="input", text=str(error))
    except OSError as error:
        return None, RankFailure(kind="system", text=first_line(error), full=is_full(error))


def _raise(rank: int, failure: RankFailure) -> None:
    if failure.kind == "superseded":
        raise SupersededError(failure.text)
    if failure.kind == "input":
        raise InputError(failure.text)
    raise RankFailureError(rank, failure)
