"""The observe phase: which stretches of a window say how a step divides."""

import time
from typing import Any

import pytest

from stallwise.record.observe._attribution import ObservePhase
from stallwise.record.rank._steps import StepClock


class Rows:
    """What a window writes."""

    rank = 0

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def append(self, table: str, row: Any) -> None:
        assert table == "observed"
        self.rows.append(row)

    def batch_seen(self, *_: Any) -> None:
        raise AssertionError("no model was called")


def train() -> None:
    time.sleep(0.01)


def validate() -> None:
    time.sleep(0.03)


@pytest.mark.parametrize("irregular", [{2, 3, 6}, set(), set(range(8))])
def test_steps_with_a_validation_say_nothing_unless_there_are_no_others(irregular: set[int]) -> None:
    rows: Any = Rows()
    phase = ObservePhase(StepClock(), rows, window=1, settle=1)
    phase.begin(9)
    phase.step_ended(kept=False)
    for step in range(8):
        train()
        if step in irregular:
            validate()
        phase.step_ended(kept=step not in irregular)
    phase.finish(first_step=1, step_s=None, zero_s=0.0)
    windows = {row.window: row.steps for row in rows.rows}
    assert sum(windows.values()) == 8 - len(irregular) or len(irregular) == 8
    assert set(windows) == {4, 5, 6, 7}
    seen = any("validate" in (row.where or "") for row in rows.rows)
    assert seen == (len(irregular) == 8)
