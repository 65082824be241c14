"""One bounded wait for what another process or thread does."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 200.0
"""Less than a test may take in all, so that a failure says what it waited for."""

Value = TypeVar("Value")


def until(ready: Callable[[], Value], patience_s: float = PATIENCE_S, explain: Callable[[], str] = str) -> Value:
    """Return the first true value of `ready`; fail after `patience_s` with what `explain` returns."""
    give_up_s = time.monotonic() + patience_s
    while not (value := ready()):
        assert time.monotonic() < give_up_s, f"waited {patience_s:g} s for {ready}\n{explain()}"
        time.sleep(0.02)
    return value
