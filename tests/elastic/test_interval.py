"""When to save, so that no more than an interval is ever lost."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.elastic._interval import SaveInterval, SaveSchedule, save_interval
from stallwise.errors import InputError


@given(
    interval=st.integers(3, 60),
    write_s=st.floats(0.0, 5.0),
    step_s=st.floats(0.01, 1.0),
)
def test_no_more_than_an_interval_is_ever_unsaved(interval: int, write_s: float, step_s: float) -> None:
    """The session's own rule, with saves that take their time: where it would be passed, training waits."""
    now_s, step, flagged = 0.0, 0, False
    schedule = SaveSchedule(SaveInterval(steps=interval), 0, 0.0)
    visible, under_way = 0, None
    for _ in range(300):
        now_s, step = now_s + step_s, step + 1
        assert step - visible <= interval
        schedule.stepped(step, now_s)
        if under_way is not None and now_s >= under_way[1]:
            visible, under_way = under_way[0], None
            schedule.saved(visible, write_s)
        if flagged and under_way is None:
            schedule.began(step, now_s, 0.01)
            under_way = step, now_s + write_s
        if under_way is not None and schedule.overdue(step, now_s):
            now_s = max(now_s, under_way[1])
            visible, under_way = under_way[0], None
            schedule.saved(visible, write_s)
        flagged = under_way is None and schedule.due(step, now_s)


def test_interval_from_mean_life_and_plan(tmp_path: Path) -> None:
    schedule = SaveSchedule(save_interval(None, None, 4 * 3600.0, None, 4), 0, 0.0)
    schedule.began(1, 1.0, 0.5)
    assert schedule.seconds == pytest.approx(math.sqrt(2 * 0.5 * 3600))
    plan = tmp_path / "plan.json"
    plan.write_text('{"interval": {"used_s": 312.5}}')
    assert save_interval(None, None, None, plan, 1).seconds == 312.5
    plan.write_text("{}")
    with pytest.raises(InputError, match="stallwise spot plan"):
        save_interval(None, None, None, plan, 1)
    with pytest.raises(InputError, match="Give one of interval_steps"):
        save_interval(5, 5.0, None, None, 1)
