"""Two injections at once: each is found where it was put, in the presence of the other (`make soak`).

Stalls are the steps of a ladder: reads are taken away first, then preparation, then the exchange; a slow rank is
compute and stays. Where one injection hides behind another (a 30 ms all-reduce while the loader takes 150 ms) no single
figure is its cost: the bare script does not grow by it. What a profile shows is what each ablation removes after those
before it, so the truth of a pair is the bare script's own ladder: with both, with the lower one alone, with neither.
(First the truth of each was "both minus the other alone", which asks two hidden stalls to add up to more than the step;
that was changed after one of the two pairs tried had failed.) Bars as for single injections.
"""

import itertools
import statistics
from pathlib import Path

import pytest

from tests.figures import Figures
from tests.record.truth.bench import Setup, compare

BASE = ("--workers", "1")
# In the order in which a profile takes them away.
INJECTIONS = {
    "blocked read": (("--blocked", "0.150"), "fetch"),
    "CPU burn": (("--cpu", "0.100"), "prep"),
    "slow all-reduce": (("--hook", "0.030"), "interconnect"),
    "slow rank": (("--slow-rank", "0.050"), "compute"),
}
PAIRS = list(itertools.combinations(INJECTIONS, 2))
TURNS = 2
pytestmark = [pytest.mark.truth, pytest.mark.soak]


@pytest.mark.parametrize(("upper", "lower"), PAIRS, ids=str)
def test_two_injections_are_found_as_the_ladder_takes_them_away(
    upper: str, lower: str, tmp_path: Path, figures: Figures
) -> None:
    (more, first), (less, second) = INJECTIONS[upper], INJECTIONS[lower]
    setups = [Setup(2, BASE), Setup(2, BASE + less), Setup(2, BASE + less + more)]
    neither_s, lower_s, both_s = bare_times(setups)
    found = compare(setups[0].profiled(tmp_path / "none"), setups[2].profiled(tmp_path / "both"), 0.0)
    for part, truth_s in ((first, both_s - lower_s), (second, lower_s - neither_s)):
        name = f"{upper} with {lower}: {part}"
        figures.judge(name, found.added_s[part], truth_s, rel=0.10, abs=0.02 * found.step_s)


def bare_times(setups: list[Setup]) -> list[float]:
    """Of each set-up, measured in turns."""
    times = [[setup.bare_s() for setup in setups] for _ in range(TURNS)]
    return [statistics.mean(of_one) for of_one in zip(*times, strict=True)]
