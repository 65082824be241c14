"""A step's time table: it keeps every edge, fills the period, and its critical path is as long as the step."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.graph import Graph, NodeKind
from stallwise.model.step.iteration import LoaderSetup, step_timetable
from stallwise.model.step.prediction import StepPrediction, predict_step
from stallwise.workload.layers import Layer, LayerTrace


def _step(exchange_s: float, read_s: float, layers: int = 4, workers: int = 2) -> StepPrediction:
    trace = LayerTrace(
        source="made",
        layers=tuple(
            Layer(name=f"l{i}", forward_s=0.01, backward_s=0.02, gradient_bytes=1000, exchange_s=exchange_s)
            for i in range(layers)
        ),
        read_s=read_s,
        copy_s=0.001,
        update_s=0.002,
    )
    return predict_step(trace, None, Overlap(scheme="wfbp"), LoaderSetup(workers=workers))


def test_compute_alone_follows_itself_without_a_gap() -> None:
    found = step_timetable(_step(0.0, 0.0).graph)
    slots = {slot.kind: slot for slot in found.slots}
    assert found.step_s == pytest.approx(0.123)
    assert slots["copy"].start_s == pytest.approx(0.0)
    assert slots["forward"].start_s == pytest.approx(0.001)
    assert slots["backward"].start_s == pytest.approx(0.041)
    assert slots["update"].end_s == pytest.approx(found.step_s)
    assert all(slot.critical for slot in found.slots)
    assert [slots[kind].nodes for kind in ("forward", "backward")] == [4, 4]


def test_a_hidden_exchange_is_not_critical_and_a_late_one_is() -> None:
    hidden = step_timetable(_step(0.001, 0.0).graph)
    assert hidden.critical_s("exchange") == pytest.approx(0.001), "only the last message has nothing to hide behind"
    late = step_timetable(_step(0.1, 0.0).graph)
    assert late.critical_s("exchange") == pytest.approx(0.4)
    assert late.critical_s("backward") == pytest.approx(0.02), "the first message waits for one layer"


def test_a_slow_loader_fills_the_period() -> None:
    found = step_timetable(_step(0.0, 1.0).graph)
    assert found.step_s == pytest.approx(0.5)
    assert found.critical_s("read") == pytest.approx(found.step_s)


@given(st.floats(0.0, 0.2), st.floats(0.0, 0.5), st.integers(1, 6), st.integers(1, 3))
def test_work_never_overlaps_itself_on_the_device(exchange_s: float, read_s: float, layers: int, workers: int) -> None:
    step = _step(exchange_s, read_s, layers, workers)
    found = step_timetable(step.graph)
    assert found.step_s == pytest.approx(step.step_s)
    device = sorted(
        (slot.start_s, slot.end_s) for slot in found.slots if slot.kind in ("forward", "backward", "update", "copy")
    )
    for (_, end_s), (start_s, _) in itertools.pairwise(device):
        assert start_s >= end_s - 1e-9
    assert all(0 <= slot.start_s <= slot.end_s <= found.step_s * (1 + 1e-9) for slot in found.slots)
    busy = sum(end_s - start_s for start_s, end_s in device)
    assert busy == pytest.approx(layers * 0.03 + 0.003), "all of the device's work is drawn, once"


def test_a_graph_without_takes_has_a_table_too() -> None:
    graph = Graph.of([1.0, 2.0], [(0, 1, 0), (1, 0, 1)], kind=[NodeKind.FORWARD, NodeKind.BACKWARD])
    found = step_timetable(graph)
    assert [(slot.kind, slot.start_s, slot.end_s) for slot in found.slots] == [
        ("forward", 0.0, 1.0),
        ("backward", 1.0, 3.0),
    ]
