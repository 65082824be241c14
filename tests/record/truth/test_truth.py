"""A profile recovers what was injected: truth is the bare script with the injection minus without it.

Bars (written before the measurement): the injected part within 10 % of the truth or 2 % of the step, whichever is
larger; every other part within 3 % of the step, and its interval covers zero in at least 95 % of all such cells.
A shared machine can lose a second at any moment, so a case that misses is measured once more from the start; two
misses in a row are a failure.
"""

import itertools
from pathlib import Path

import pytest

from tests.record.truth.bench import Recovered, Setup, recover

ALONE = ("--workers", "2")
INLINE = ("--workers", "0")
PAIR = ("--workers", "1")

# Injections are large beside what they hide: handing a ready batch over (about 1 ms here) no longer shows once the
# loader is the bottleneck, and the bare script's growth is shorter by it.
# name: ranks, base options, what is injected, the part that must grow, parts it hides
SINGLES = {
    "blocked read": (0, ALONE, ("--blocked", "0.180"), "fetch", ()),
    "blocked read, no workers": (0, INLINE, ("--blocked", "0.030"), "fetch", ()),
    "CPU burn": (0, ("--workers", "1"), ("--cpu", "0.080"), "prep", ()),
    "CPU burn, no workers": (0, INLINE, ("--cpu", "0.032"), "prep", ()),
    "slow all-reduce": (2, PAIR, ("--hook", "0.020"), "interconnect", ()),
    # A rank that is late anyway hides the latency of the exchange.
    "slow rank": (2, PAIR, ("--slow-rank", "0.060"), "compute", ("interconnect",)),
}

_cells: list[bool] = []


def measured(name: str, folder: Path) -> tuple[Recovered, str, tuple[str, ...]]:
    ranks, base, injection, part, hidden = SINGLES[name]
    found = recover(Setup(ranks, base), Setup(ranks, base + injection), folder)
    return found, part, hidden


@pytest.mark.parametrize("name", SINGLES)
def test_an_injected_stall_is_found_where_it_was_put(name: str, tmp_path: Path) -> None:
    for attempt in itertools.count(1):
        found, part, hidden = measured(name, tmp_path / str(attempt))
        misses = found.misses(part, hidden)
        if not misses:
            break
        assert attempt < 2, f"truth {found.truth_s:.4f} s, step {found.step_s:.4f} s: {misses}"
    _cells.extend(found.covers_zero(other) for other in found.added_s if other not in (part, *hidden))


def test_parts_with_nothing_injected_cover_zero() -> None:
    if len(_cells) < 10:
        pytest.skip("needs the cells of the tests above, in the same run")
    assert sum(_cells) >= 0.95 * len(_cells) - 1e-9, f"{sum(_cells)} of {len(_cells)}"
