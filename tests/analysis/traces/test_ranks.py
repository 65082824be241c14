"""Where steps and passes of a trace begin and end: marks joined up to updates, passes told apart by their forward."""

from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.traces._model import traced_model
from stallwise.analysis.traces._ranks import cycles_of, passes_of, traced_job, updates_of
from stallwise.run.traces._kineto import read_kineto
from stallwise.run.traces.device_trace import DeviceTrace
from tests.run.traces.made_traces import STEP_US, document, event, kernel, write_trace

CLOCK_US = 1e6


def traced(folder: Path, content: dict[str, Any]) -> DeviceTrace:
    return read_kineto(write_trace(folder / "rank0.json", content))


def updating(folder: Path, updates: list[int], steps: int) -> DeviceTrace:
    """A trace whose optimizer updates in these steps only."""
    content = document(steps=steps)
    content["traceEvents"] = [
        event
        for event in content["traceEvents"]
        if not event["name"].startswith("Optimizer") or int(event["ts"] - CLOCK_US) // STEP_US in updates
    ]
    return traced(folder, content)


@pytest.mark.parametrize(
    ("updates", "steps", "joined", "last"),
    [
        ([0, 1, 2, 3], 4, 1, [0, 1, 2, 3]),
        ([1, 3, 5], 6, 2, [1, 3, 5]),
        # The trace begins and ends within a cycle.
        ([1, 4, 7], 9, 3, [1, 4, 7]),
        ([2], 4, 3, [2]),
        # An update was skipped: no cycle to be seen.
        ([0, 1, 3, 4], 5, 1, [0, 1, 2, 3, 4]),
        ([], 3, 1, [0, 1, 2]),
    ],
)
def test_marks_are_joined_up_to_updates(
    tmp_path: Path, updates: list[int], steps: int, joined: int, last: list[int]
) -> None:
    found = cycles_of(updating(tmp_path, updates, steps))
    assert found.passes == joined
    assert [step.number - 7 for step in found.steps] == last


def test_a_trace_without_marks_has_no_cycles(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"] = [e for e in content["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    assert cycles_of(traced(tmp_path, content)).steps == ()


def second_pass(content: dict[str, Any]) -> dict[str, Any]:
    """Every step gets another product, and behind it another backward with the same gradients."""
    sizes: Any = {"Input Dims": [[10, 20], [20, 30]]}
    for number in range(3):
        begin = CLOCK_US + number * STEP_US
        shapes = [e for e in content["traceEvents"] if "AccumulateGrad" in e["name"]][:2]
        content["traceEvents"] += [
            event("aten::mm", "cpu_op", begin + 610, 5, **sizes),
            event("autograd::engine::evaluate_function: MulBackward0", "cpu_op", begin + 620, 60, tid=2),
            *kernel("gemm_backward_again", begin + 625, begin + 801, 15, 900 + number),
            *(shape | {"ts": begin + 640 + 10 * place} for place, shape in enumerate(shapes)),
        ]
    return content


def test_a_forward_between_two_backwards_makes_two_passes(tmp_path: Path) -> None:
    trace = traced(tmp_path, second_pass(document(world_size=1)))
    step = trace.steps[1]
    first, second = passes_of(trace, step.start_ns, step.end_ns)
    assert first.end_ns == second.begin_ns == step.start_ns + 610_000
    assert (second.backward_ns - step.start_ns, second.end_ns) == (620_000, step.end_ns)
    assert updates_of(trace, (first, second)) == 1
    record = traced_model(traced_job([trace])).record
    assert record is not None
    assert (record.micro_batches, record.gradient_tensors) == (2, 2)


def test_updates_between_passes_are_not_accumulation(tmp_path: Path) -> None:
    content = second_pass(document(world_size=1))
    for number in range(3):
        mark = event("Optimizer.step#Adam.step", "user_annotation", CLOCK_US + number * STEP_US + 602, 3)
        content["traceEvents"].append(mark)
    assert "optimizer updates between them" in str(traced_model(traced_job([traced(tmp_path, content)])).why_not)


def test_kernels_name_their_group_and_scattered_gradients_are_refused(tmp_path: Path) -> None:
    content = document()
    for each in content["traceEvents"]:
        if each["name"].startswith("ncclDevKernel"):
            each["args"] |= {"Process Group Name": "3", "Process Group Ranks": "[0, 1]"}
    trace = traced(tmp_path, content)
    assert [(group.name, group.ranks) for group in trace.groups] == [("3", "[0, 1]")]
    assert {key[1] for key in traced_job([trace]).ranks[0].visits} == {"AllReduce in 3 [0, 1]"}
    for each in content["traceEvents"]:
        each["name"] = each["name"].replace("nccl:all_reduce", "nccl:_reduce_scatter_base")
    assert "FSDP" in str(traced_model(traced_job([traced(tmp_path, content)])).why_not)
