"""How often 80 % intervals hold, on days that the forecast has not seen; all of it stands in docs/VALIDATION.md."""

from pathlib import Path

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.spot.lifetimes.log import Trace
from stallwise.spot.plan.closed import Work
from stallwise.spot.plan.history import from_history
from validation.cases.spot_coverage import YEARS, held

LOW, HIGH = 0.75, 0.85


def test_intervals_hold_what_they_say_on_days_they_have_not_seen(shared_data: Path) -> None:
    inside = [one for year in YEARS for one in held(shared_data, 12, year)]
    assert len(inside) >= 200
    assert LOW <= np.mean(inside) <= HIGH, f"{np.mean(inside):.3f} of {len(inside)}"


def test_a_log_that_is_too_short_is_said() -> None:
    trace = Trace(np.arange(288) * 300.0, np.ones(288, dtype=np.int64), 86400.0)
    work = Work(work_s=12 * 3600, interval_s=1800, save_s=30)
    with pytest.raises(InputError, match=r"The log covers 1 days, with 0 moments .* Give a longer log"):
        from_history(work, trace, 1)
