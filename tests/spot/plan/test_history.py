"""How often 80 % intervals hold, on series that chose nothing; all of it stands in evidence/validation.md."""

from pathlib import Path

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.history import forecast_from_history
from validation.cases.spot_coverage import EARLY, GROUPS, LATE, Judged, all_judged, bars, part_held, series

LOW, HIGH = 75.0, 85.0
JOB = JobWork(work_s=12 * 3600, interval_s=1800, save_s=30, provision_s=90, restart_s=90)


def ticks(counts: list[int], hours: float = 1.0) -> AvailabilityTrace:
    return AvailabilityTrace(
        np.arange(len(counts)) * hours * 3600, np.array(counts, dtype=np.int64), len(counts) * hours * 3600
    )


def test_intervals_hold_what_they_say_on_series_that_were_never_used(shared_data: Path) -> None:
    found = all_judged(shared_data, LATE)
    assert len(found) >= 200
    assert LOW <= part_held(found) <= HIGH, f"{part_held(found):.1f} % of {len(found)}"


def test_no_series_both_chooses_and_judges(shared_data: Path) -> None:
    chosen = {path for group in GROUPS for path in series(shared_data, group, choosing=True)}
    judging = {path for group in GROUPS for path in series(shared_data, group, choosing=False)}
    assert not chosen & judging
    assert (len(chosen), len(judging)) == (8, 22)
    assert {path.parent.name for path in chosen} == {GROUPS[group][0].rpartition("/")[2] for group in EARLY}


def test_cases_that_go_together_count_as_one() -> None:
    together = [Judged("a", 3 * 86400.0 * block, 6, block % 5 > 0) for block in range(50) for _ in range(20)]
    error, independent = bars(together)
    assert part_held(together) == 80
    assert error == pytest.approx(100 * np.sqrt(0.8 * 0.2 / 50), rel=0.1)
    assert independent == pytest.approx(50, rel=0.2)


def test_a_log_that_is_too_short_is_said() -> None:
    with pytest.raises(InputError, match=r"The log covers 1 days; 3 are needed .* Give a longer log"):
        forecast_from_history(JOB, ticks([1] * 24), 1)


def test_a_longer_log_leaves_less_to_the_unknown() -> None:
    """The same days over and over: what they show stays, room for what they do not show shrinks."""
    day = [1] * 20 + [0] * 4
    spreads = [forecast_from_history(JOB, ticks(day * days), 1).outcomes.time() for days in (4, 12, 40)]
    widths = [found.high - found.low for found in spreads]
    assert widths == sorted(widths, reverse=True)
    regimes = [forecast_from_history(JOB, ticks(day * days), 1).regimes for days in (4, 12, 40)]
    assert regimes == sorted(regimes)


def test_recent_days_count_more() -> None:
    good, bad = [1] * 24 * 10, ([1] * 6 + [0] * 18) * 10
    improving = forecast_from_history(JOB, ticks(bad + good), 1, ready_now=True).outcomes.time()
    worsening = forecast_from_history(JOB, ticks(good + bad), 1, ready_now=True).outcomes.time()
    assert improving.mean < worsening.mean
    assert improving.high < worsening.high


def test_a_deadline_is_kept_in_days_unlike_those_seen() -> None:
    trace = ticks(([1] * 18 + [0] * 6) * 6)
    free = forecast_from_history(JOB, trace, 1, spot_usd_per_h=1, usd_per_h=3).outcomes
    bound = forecast_from_history(
        JOB, trace, 1, spot_usd_per_h=1, usd_per_h=3, policy="greedy", deadline_s=20 * 3600
    ).outcomes
    assert free.within(20 * 3600) < 0.95
    assert bound.within(20 * 3600) == 1
    assert bound.cost().mean > free.cost().mean


def test_a_job_no_replay_of_which_ended_is_not_promised_an_end() -> None:
    """Six hours a day for a job of twelve that must not be interrupted for long: longer than the log."""
    trace = ticks(([1] * 1 + [0] * 23) * 5)
    found = forecast_from_history(JOB, trace, 1).outcomes.time()
    assert found.high > trace.end_s
