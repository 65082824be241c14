"""How long a job is looked at, and what of it is seen: real processes that work in bursts."""

import time

import pytest

from stallwise.deflate.door import Rank
from stallwise.deflate.look import LONG_S, SHORT_S, STEPS, UNKNOWN_S, busy_cores, long_enough_s
from stallwise.deflate.processes import tree_of
from tests.deflate.groups import IDLE, process


def rank(step_s: float | None, batch: int | None = 8, world: int = 2) -> Rank:
    return Rank(pid=1, started=1, rank=0, world=world, batch=batch, step_s=step_s)


def test_a_look_is_a_whole_number_of_steps() -> None:
    assert long_enough_s([rank(0.16)]) == pytest.approx(STEPS * 0.16)
    assert long_enough_s([rank(0.01)]) == pytest.approx(SHORT_S), "fifty are over soon: it looks at more"
    assert long_enough_s([rank(0.16), rank(0.1)]) == pytest.approx(STEPS * 0.16), "of the slowest"
    assert long_enough_s([rank(4.0)]) == 8.0, "as many as there are in ten seconds"
    assert long_enough_s([rank(60.0)]) == LONG_S
    assert long_enough_s([rank(0.16), rank(None)]) == UNKNOWN_S
    for nobody in ([], [rank(0.16, batch=None)], [rank(0.16, world=1)]):
        assert long_enough_s(nobody) == SHORT_S, "nothing hangs on it"


SPIN = "import time\nend = time.monotonic() + 0.4\nwhile time.monotonic() < end: pass\ntime.sleep(600)"


def test_who_is_started_meanwhile_counts_and_who_comes_from_elsewhere_does_from_then_on() -> None:
    program = f"import subprocess, sys, time\ntime.sleep(0.5)\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"
    with process(program) as pid:
        assert len(tree_of(pid)) == 1
        assert busy_cores(lambda: tree_of(pid), 1.6) > 0.15, "0.4 s of a worker that began during the look"
    with process(SPIN) as old, process(IDLE) as idle:
        time.sleep(0.6)
        begun = time.monotonic()
        seen = busy_cores(lambda: [idle, old] if time.monotonic() - begun > 0.2 else [idle], 0.4)
        assert seen < 0.1, "it was moved here, what it had used before is not of this look"
