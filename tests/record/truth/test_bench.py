"""The judgement of injections, on profiles that are written here by hand."""

import pytest

from tests.figures import Figures
from tests.record.truth.bench import PARTS, compare


def profile(half_width_s: float, **parts_s: float) -> dict[str, object]:
    """A step of a second, with all parts at 0.1 s but those given."""
    split = {}
    for part in PARTS:
        found_s = parts_s.get(part, 0.1)
        split[part] = {"s": found_s, "low_s": found_s - half_width_s, "high_s": found_s + half_width_s}
    return {"split": split | {"copy": None}, "step_s": 1.0}


def test_errors_of_two_profiles_add_in_quadrature() -> None:
    found = compare(profile(0.003), profile(0.004, prep=0.1049, fetch=0.1051), truth_s=0.0)
    assert found.noise_s == pytest.approx(dict.fromkeys(set(PARTS) - {"copy"}, 0.005))
    assert found.covers_zero("prep")
    assert not found.covers_zero("fetch")


def test_the_judgement_can_fail() -> None:
    before, after = profile(0.001), profile(0.001, fetch=0.3, prep=0.14)
    held, missed = Figures("held"), Figures("missed")
    compare(before, after, truth_s=0.21).judge(held, "read", "fetch", ignored=("prep",))
    assert not held.misses
    assert len(held.rows) == 4, "the injected part, and three others"
    compare(before, after, truth_s=0.23).judge(missed, "read", "fetch")
    assert len(missed.misses) == 2, "too little was found, and something where nothing was injected"
