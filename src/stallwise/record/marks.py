"""What a training script may say itself, for loops that no hook can see (DALI, FFCV, own loaders).

    for batch in stallwise.batches(my_loader):
        stallwise.step()
        ...

Both do nothing when nobody profiles, and load neither torch nor the recorder.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stallwise.record.recorder import Recorder

Item = TypeVar("Item")

_recorder: "Recorder | None" = None


def listen(recorder: "Recorder | None") -> None:
    """From now on the script's marks go to `recorder`, or to nobody."""
    global _recorder
    _recorder = recorder


def is_recorded() -> bool:
    """Whether somebody profiles this process."""
    return _recorder is not None


def step() -> None:
    """Say that a training step begins; from the first call on, only these calls count as steps."""
    if _recorder is not None:
        _recorder.step_marked()


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """Hand through the batches of any iterable, measured when somebody profiles."""
    return iter(iterable) if _recorder is None else _recorder.loaders.wrap(iterable)
