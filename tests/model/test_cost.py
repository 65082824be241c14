"""The laws of cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.cost import cost_usd, increase

positive = st.floats(min_value=1e-3, max_value=1e6)


def test_an_hour_of_two_machines() -> None:
    assert cost_usd(3600, 12.24, machines=2) == pytest.approx(24.48)


@given(positive, positive, st.integers(min_value=1, max_value=1000))
def test_cost_scales_with_machines(duration_s: float, usd_per_h: float, machines: int) -> None:
    assert cost_usd(duration_s, usd_per_h, machines) == pytest.approx(machines * cost_usd(duration_s, usd_per_h))


@given(positive, positive, positive)
def test_at_one_price_per_gpu_a_stall_costs_what_it_takes(single_s: float, spread_s: float, usd_per_h: float) -> None:
    """Stash #22: two half-size machines at half the price each cost more exactly as they take longer."""
    spread = cost_usd(spread_s, usd_per_h / 2, machines=2)
    single = cost_usd(single_s, usd_per_h)
    assert increase(spread, single) == pytest.approx(increase(spread_s, single_s), rel=1e-9, abs=1e-9)
