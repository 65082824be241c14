"""What a traced step waits for: every moment is blamed on one thing, on a device and without one."""

from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.traces._ranks import traced_job
from stallwise.analysis.traces._steps import TracedStep, traced_steps
from stallwise.analysis.traces.import_ import write_run
from stallwise.analysis.traces.view import view_of
from stallwise.run.reader import Run
from stallwise.run.traces._kineto import read_kineto
from tests.run.traces.made_traces import STEP_US, document, event, kernel, write_trace

CLOCK_US = 1e6
# Within the wait of the first 100 µs.
BEGIN_US, LONG_US = 20, 60


def last_step(folder: Path, content: dict[str, Any]) -> TracedStep:
    job = traced_job([read_kineto(write_trace(folder / "rank0.json", content))])
    return traced_steps(job, job.ranks[0])[-1]


def test_an_exchange_beside_a_wait_for_the_batch_is_the_exchanges_on_a_device(tmp_path: Path) -> None:
    content = document()
    for number in range(3):
        begin = CLOCK_US + number * STEP_US
        content["traceEvents"] += kernel(
            "ncclDevKernel_AllGather", begin + 5, begin + BEGIN_US, LONG_US, 700 + number, stream=20
        )
    step = last_step(tmp_path, content)
    assert step.data_wait_s == pytest.approx(100e-6)
    assert step.data_stall_s == pytest.approx((100 - LONG_US) * 1e-6)
    assert step.exchange_stall_s == pytest.approx((200 + LONG_US) * 1e-6)


def test_without_a_device_the_wait_is_the_batchs_alone(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"] = [e for e in content["traceEvents"] if e.get("cat") != "kernel"]
    for number in range(3):
        begin = CLOCK_US + number * STEP_US
        content["traceEvents"].append(event("gloo:all_gather", "user_annotation", begin + BEGIN_US, LONG_US, tid=3))
    step = last_step(tmp_path, content)
    assert step.data_stall_s == pytest.approx(100e-6)
    # The made trace's own collective of 9 µs begins and ends within backward, which is compute there.
    assert step.exchange_stall_s == pytest.approx(0.0)


def test_marks_of_some_ranks_only_are_none(tmp_path: Path) -> None:
    bare = document(1, late_us=50)
    bare["traceEvents"] = [e for e in bare["traceEvents"] if not e["name"].startswith("ProfilerStep")]
    contents = {"rank0": document(0), "rank1": bare}
    traces = [read_kineto(write_trace(tmp_path / f"{name}.json", content)) for name, content in contents.items()]
    write_run(traces, tmp_path / "run")
    found = view_of(Run.open(tmp_path / "run"))
    assert [(times.rank, times.steps) for times in found.times] == [(0, 1), (1, 1)]
    # Three steps of a millisecond, up to where the last one's work ends.
    assert all(times.step_s == pytest.approx(2.88e-3) for times in found.times)
    assert any("The trace of rank 1 marks no steps" in note for note in found.notes)
    assert not any("is not kept" in note for note in found.notes)
