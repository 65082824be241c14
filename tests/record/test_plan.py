"""Rounds, segments and block lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.record import plan


@given(
    st.floats(min_value=1e-4, max_value=30),
    st.floats(min_value=0.1, max_value=5),
    st.integers(min_value=1, max_value=64),
)
def test_a_block_is_long_enough_and_holds_whole_bursts(step_s: float, block_s: float, quantum: int) -> None:
    steps = plan.block_steps(step_s, block_s, quantum)
    assert steps % quantum == 0
    assert steps >= 4
    assert steps * step_s >= block_s * (1 - 1e-9)


def test_what_the_queue_holds_is_used_up_only_where_the_real_loader_is_asked() -> None:
    round_ = plan.Round(phases=plan.LADDER, block_steps=8, settle_steps=2, queue_steps=6)
    settle = {segment.phase: segment.settle for segment in round_.segments()}
    assert settle == {plan.AS_IS: 8, plan.HOST: 2, plan.DEVICE: 2, plan.NODE: 2, plan.ALONE: 2}


@pytest.mark.parametrize(
    ("job", "phases"),
    [
        ({"world_size": 1, "nodes": 1}, (plan.AS_IS, plan.HOST)),
        ({"world_size": 1, "nodes": 1, "on_device": True}, (plan.AS_IS, plan.HOST, plan.DEVICE)),
        ({"world_size": 2, "nodes": 1}, (plan.AS_IS, plan.HOST, plan.ALONE)),
        ({"world_size": 2, "nodes": 2}, (plan.AS_IS, plan.HOST, plan.ALONE)),
        ({"world_size": 4, "nodes": 2}, (plan.AS_IS, plan.HOST, plan.NODE, plan.ALONE)),
        ({"world_size": 4, "nodes": 2, "on_device": True}, plan.LADDER),
        ({"world_size": 2, "nodes": 1, "has_exchange": False}, (plan.AS_IS, plan.HOST)),
        ({"world_size": 1, "nodes": 1, "has_loader": False}, (plan.AS_IS,)),
    ],
)
def test_only_phases_that_mean_something(job: dict[str, int | bool], phases: tuple[str, ...]) -> None:
    defaults = {"has_loader": True, "on_device": False, "has_exchange": True}
    assert plan.phases_for(**(defaults | job)) == phases  # type: ignore[arg-type]
