"""Rounds, segments and block lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.record.rank import _schedule as schedule
from stallwise.record.rank.environment import RecordSettings
from stallwise.run import phases


@given(
    st.floats(min_value=1e-4, max_value=30),
    st.floats(min_value=0.1, max_value=5),
    st.integers(min_value=1, max_value=64),
)
def test_a_block_is_long_enough_and_holds_whole_bursts(step_s: float, block_s: float, quantum: int) -> None:
    steps = schedule.block_steps(step_s, block_s, quantum)
    assert steps % quantum == 0
    assert steps >= 4
    assert steps * step_s >= block_s * (1 - 1e-9)


def test_what_the_queue_holds_is_used_up_only_where_the_real_loader_is_asked() -> None:
    round_ = schedule.Round(phases=phases.LADDER, block_steps=8, settle_steps=2, queue_steps=6)
    settle = {segment.phase: segment.settle for segment in round_.segments()}
    assert settle == {phases.AS_IS: 8, phases.HOST: 2, phases.DEVICE: 2, phases.NODE: 2, phases.ALONE: 2}


@pytest.mark.parametrize(
    ("job", "phases"),
    [
        ({"world_size": 1, "nodes": 1}, (phases.AS_IS, phases.HOST)),
        ({"world_size": 1, "nodes": 1, "on_device": True}, (phases.AS_IS, phases.HOST, phases.DEVICE)),
        ({"world_size": 2, "nodes": 1}, (phases.AS_IS, phases.HOST, phases.ALONE)),
        ({"world_size": 2, "nodes": 2}, (phases.AS_IS, phases.HOST, phases.ALONE)),
        ({"world_size": 4, "nodes": 2}, (phases.AS_IS, phases.HOST, phases.NODE, phases.ALONE)),
        ({"world_size": 4, "nodes": 2, "on_device": True}, phases.LADDER),
        ({"world_size": 2, "nodes": 1, "has_exchange": False}, (phases.AS_IS, phases.HOST)),
        ({"world_size": 1, "nodes": 1, "has_loader": False}, (phases.AS_IS,)),
    ],
)
def test_only_phases_that_mean_something(job: dict[str, int | bool], phases: tuple[str, ...]) -> None:
    defaults = {"has_loader": True, "on_device": False, "has_exchange": True}
    assert schedule.phases_for(**(defaults | job)) == phases  # type: ignore[arg-type]


def test_blocks_of_the_real_loader_are_whole_epochs_where_those_are_short() -> None:
    settings = RecordSettings(folder="run", block_s=0.001)
    for epoch_steps, length in ((24, 24), (10, 10), (469, 4)):
        scheduler = schedule.PhaseScheduler(settings)
        scheduler.describe(
            has_loader=True, on_device=False, has_exchange=False, can_split=True, workers_steps=4, queue_steps=8,
            epoch_steps=epoch_steps,
        )  # fmt: skip
        steps = {segment.phase: segment.steps for segment in scheduler.next_round().segments()}
        assert steps == {phases.AS_IS: length, phases.HOST: 4}


@pytest.mark.parametrize(
    ("as_is_s", "host_s", "is_certain"),
    [
        ([0.30, 0.31, 0.29, 0.30, 0.31, 0.30, 0.29, 0.30], [0.20, 0.21, 0.20, 0.19, 0.20, 0.20, 0.21, 0.20], True),
        ([0.30, 0.31, 0.29, 0.30, 0.31, 0.30, 0.29, 0.30], [0.30, 0.30, 0.29, 0.31, 0.30, 0.29, 0.30, 0.30], True),
        ([0.30, 0.60, 0.20, 0.30, 0.50, 0.25, 0.30, 0.45], [0.30, 0.25, 0.40, 0.20, 0.55, 0.20, 0.30, 0.30], False),
        ([0.30], [0.20], False),
    ],
)
def test_a_profile_may_end_when_its_bottleneck_is_certain(
    as_is_s: list[float], host_s: list[float], is_certain: bool
) -> None:
    scheduler = schedule.PhaseScheduler(RecordSettings(folder="run", until_certain=True, tightness=0.0))
    scheduler.describe(
        has_loader=True, on_device=False, has_exchange=False, can_split=True, workers_steps=0, queue_steps=0
    )
    scheduler.means = {phases.AS_IS: dict(enumerate(as_is_s)), phases.HOST: dict(enumerate(host_s))}
    assert scheduler._end_reason(len(as_is_s)) == ("the bottleneck is certain" if is_certain else None)


@pytest.mark.parametrize(("step_s", "layer_steps", "has_trace"), [(0.01, 24, True), (3.0, 4, False)])
def test_what_follows_the_budget_is_short(step_s: float, layer_steps: int, has_trace: bool) -> None:
    scheduler = schedule.PhaseScheduler(RecordSettings(folder="run", max_s=20.0))
    options = {"has_loader": True, "on_device": False, "has_exchange": False, "can_split": True}
    scheduler.describe(**options, workers_steps=1.0, queue_steps=2.0)
    for phase in scheduler.phases:
        scheduler.add(phase, step_s, kept=True)
        scheduler.close_block(phase)
    scheduler._began_s -= 21.0
    rounds: dict[str, schedule.Round] = {}
    while (following := scheduler.next_round()).phases:
        rounds[following.phases[0]] = following
    assert rounds[phases.LAYERS].block_steps == layer_steps
    assert (phases.TRACE in rounds) == has_trace
    assert scheduler.ended_because == "the time budget was spent"


@pytest.mark.parametrize(("step_s", "has_extras"), [(0.001, True), (0.5, False)])
def test_a_brief_profile_spends_its_time_on_telling_stalls_apart(step_s: float, *, has_extras: bool) -> None:
    scheduler = schedule.PhaseScheduler(RecordSettings(folder="run", max_s=20.0, brief=True))
    options = {"has_loader": True, "on_device": False, "has_exchange": False, "can_split": True}
    scheduler.describe(**options, workers_steps=0.0, queue_steps=0.0)
    for phase in scheduler.phases:
        scheduler.add(phase, step_s, kept=True)
        scheduler.close_block(phase)
    seen = set(scheduler.next_round().phases)
    scheduler._began_s -= 21.0
    while (following := scheduler.next_round()).phases:
        seen |= set(following.phases)
    assert seen >= {phases.LAYERS, phases.TRACE} if has_extras else seen == {phases.AS_IS, phases.HOST}
