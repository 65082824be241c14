"""Two injections at once: each is found where it was put, in the presence of the other (`make soak`).

Truth of one is the bare script with both minus with the other alone. Bars as for single injections.
"""

import itertools
from pathlib import Path

import pytest

from tests.record.truth.bench import Setup, recover

BASE = ("--workers", "1")
INJECTIONS = {
    "blocked read": (("--blocked", "0.150"), "fetch"),
    "CPU burn": (("--cpu", "0.100"), "prep"),
    "slow all-reduce": (("--hook", "0.030"), "interconnect"),
    "slow rank": (("--slow-rank", "0.050"), "compute"),
}
PAIRS = [(a, b) for a, b in itertools.permutations(INJECTIONS, 2)]


@pytest.mark.soak
@pytest.mark.parametrize(("name", "beside"), PAIRS, ids=lambda value: str(value))
def test_an_injection_is_found_beside_another(name: str, beside: str, tmp_path: Path) -> None:
    injection, part = INJECTIONS[name]
    other = Setup(2, BASE + INJECTIONS[beside][0])
    both = Setup(2, BASE + INJECTIONS[beside][0] + injection)
    for attempt in itertools.count(1):
        found = recover(other, both, tmp_path / str(attempt))
        allowed_s = max(0.10 * found.truth_s, 0.02 * found.step_s)
        if abs(found.added_s[part] - found.truth_s) <= allowed_s:
            return
        assert attempt < 2, (
            f"{part}: {found.added_s[part]:.4f} s instead of {found.truth_s:.4f} s; all: {found.added_s}"
        )
