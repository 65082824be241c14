"""What jobs must have in common is told apart by what it does, not by its type alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stallwise.data.likeness import fact


@dataclass
class Crop:
    """A transform with a setting."""

    side: int


class Compose:
    """Transforms one after the other."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)


def made(side: int, scale: Callable[[float], float]) -> Compose:
    return Compose(scale, Crop(side))


def test_a_lambda_inside_does_not_hide_the_rest() -> None:
    def digest(side: int, scale: Callable[[float], float]) -> str:
        return fact("transform", made(side, scale))[1]

    first = digest(224, lambda value: value * 2)
    assert first == digest(224, lambda value: value * 2)
    assert first != digest(160, lambda value: value * 2)
    assert first != digest(224, lambda value: value * 3)


def test_what_holds_itself_comes_to_an_end() -> None:
    one = Compose(lambda value: value)
    one.steps.append(one)
    assert fact("transform", one)[1] == fact("transform", one)[1]
