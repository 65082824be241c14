"""What an all-reduce attains of a listed rate: never more than all of it, never more with more GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.hardware.coefficients import load_fitted
from stallwise.model.exchange.attained import LINK_CLASSES, SHARED_CLASSES, attained_fraction
from stallwise.model.exchange.fabric import Fabric, link_of_rate

LINKS = st.sampled_from(LINK_CLASSES)
CONSTANTS = st.fixed_dictionaries(
    {f"attained:{link}": st.floats(0.01, 3.0) for link in LINK_CLASSES}
    | {f"crowding:{link}": st.floats(0.0, 2.0) for link in SHARED_CLASSES}
)


@given(LINKS, st.integers(1, 64), CONSTANTS)
def test_no_attained_rate_is_above_the_listed_one(link: str, streams: int, constants: dict[str, float]) -> None:
    assert 0 < attained_fraction(link, streams, constants) <= 1


@given(LINKS, st.integers(1, 32), CONSTANTS)
def test_more_that_share_never_leave_more(link: str, streams: int, constants: dict[str, float]) -> None:
    assert attained_fraction(link, streams + 1, constants) <= attained_fraction(link, streams, constants)


def test_the_formula_by_hand() -> None:
    constants = {"attained:host": 0.5, "crowding:host": 1.0, "attained:nvlink": 0.8}
    assert attained_fraction("host", 2, constants) == 0.5
    assert attained_fraction("host", 8, constants) == pytest.approx(0.125)
    assert attained_fraction("nvlink", 8, constants) == 0.8


def test_the_shipped_fit_is_physical() -> None:
    weights = load_fitted("scaling").weights
    parts = {link: weights[f"attained:{link}"] for link in LINK_CLASSES}
    assert all(0 < part < 1 for part in parts.values())
    assert parts["nvlink"] > parts["host"]
    assert all(weights.get(f"crowding:{link}", 0.0) >= 0 for link in SHARED_CLASSES)
    low, high, _ = load_fitted("scaling").spreads["link"]
    assert low < 0 < high


def test_a_fabric_takes_the_link_of_as_many_gpus_as_are_used() -> None:
    slow, fast = (link_of_rate(rate, 0.0, "listed") for rate in (1e9, 2e9))
    fabric = Fabric(gpus_per_node=8, inside=slow, fewer=((2, fast), (4, slow)))
    assert fabric.used(2) == (fast,)
    assert fabric.used(3) == (slow,)
    assert fabric.used(8) == (slow,)
    low, high = fabric.bounds(2)
    assert low.all_reduce(1e9) == high.all_reduce(1e9) == fabric.prices(2).all_reduce(1e9)
