"""Real traces of accumulated steps and of several process groups, as torch.profiler writes them on four processes.

gloo's events do not name their group. NCCL's do, so the names that NCCL writes are put into the same events: which
group each ran in is known by its size.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.analysis.traces._ranks import TracedJob, traced_job
from stallwise.analysis.traces.import_ import TraceHints, write_run
from stallwise.analysis.traces.layers import layers_of
from stallwise.errors import InputError
from stallwise.model.step.timeline import AlignedCollective
from stallwise.run.reader import Run
from stallwise.run.traces.device_trace import DeviceTrace
from stallwise.run.traces.files import find_traces, read_traces
from tests.conftest import ROOT
from tests.figures import Figures
from tests.record.jobs import plain_ranks
from tests.record.jobs.traced_groups import BATCH, LATE_S, PASSES, STEPS, WIDTH

SIDE, ACROSS = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
JOB = ROOT / "tests/record/jobs/traced_groups.py"
# Clocks of machines that never met: hours apart.
CLOCKS_US = (0.0, 3.6e9, -7.2e9, 1.8e10)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    plain_ranks(4, str(JOB), str(folder))
    return folder


def imported(traces: Path, name: str, out: Path) -> Run:
    write_run(read_traces(find_traces([traces / name])), out / name, TraceHints(samples=BATCH * PASSES))
    return Run.open(out / name)


@pytest.mark.parametrize("name", ["update", "batch"])
def test_an_accumulated_step_is_one_step_however_it_was_marked(traces: Path, tmp_path: Path, name: str) -> None:
    run = imported(traces, name, tmp_path)
    model, job = run.manifest.model, open_run(run).job
    assert model is not None
    assert (model.micro_batches, job.overlap.accumulate) == (PASSES, PASSES)
    # One layer's weight and bias, four times; exchanged once a step.
    assert model.gradient_tensors == 8
    assert model.gradient_bytes == sum(model.bucket_bytes) == 4 * (WIDTH * WIDTH + WIDTH) * 4
    assert model.flops_per_step == 3 * PASSES * 4 * 2 * BATCH * WIDTH * WIDTH
    steps = run.table("steps")
    assert steps.filter(steps["kept"].is_true())["step"].n_unique() == STEPS - 1
    assert job.samples == pytest.approx(BATCH * PASSES)
    assert set(run.table("batches")["samples"].to_list()) == {BATCH}
    assert layers_of(run).overlap.accumulate == PASSES
    # The whole step's compute is in the model, four passes of it.
    passes_s = PASSES * sum(layer.forward_s + layer.backward_s for layer in job.trace.layers)
    assert 0 < passes_s <= sum((model.forward_s or 0, model.backward_s or 0)) * 1.001


def test_gradients_exchanged_in_every_pass_are_refused_with_the_remedy(traces: Path, tmp_path: Path) -> None:
    run = imported(traces, "every", tmp_path)
    assert run.manifest.model is None
    with pytest.raises(InputError, match=r"exchanged in each of the 4 passes .*no_sync\(\)"):
        _ = open_run(run).job


def named(traces: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The groups' traces with what NCCL writes, on clocks of their own."""
    for rank in range(4):
        document = json.loads(gzip.decompress((traces / "groups" / f"rank{rank}.json.gz").read_bytes()))
        for event in document["traceEvents"]:
            event["ts"] += CLOCKS_US[rank]
            if event["name"] == "gloo:all_reduce":
                across = event["args"]["Input Dims"] == [[WIDTH, WIDTH]]
                number, ranks = next(
                    (number, ranks)
                    for number, ranks in enumerate(SIDE + ACROSS, 1)
                    if rank in ranks and (number > 2) == across
                )
                event["args"] |= {"Process Group Name": str(number), "Process Group Ranks": str(list(ranks))}
        yield rank, document


@pytest.fixture
def job(traces: Path, tmp_path: Path) -> TracedJob:
    for rank, document in named(traces):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    return traced_job(read_traces(find_traces([tmp_path])))


def of_pair(job: TracedJob, *ranks: int) -> list[AlignedCollective]:
    """The collectives of these two, one a step."""
    found = [meeting for meeting in job.meetings if tuple(sorted(meeting.waited_ns)) == ranks]
    assert len(found) == STEPS - 1
    return found


def test_collectives_meet_within_their_group_only(job: TracedJob) -> None:
    met = [tuple(sorted(meeting.waited_ns)) for meeting in job.meetings]
    assert sorted(met) == sorted((SIDE + ACROSS) * (STEPS - 1))


@pytest.mark.truth
def test_the_neighbour_of_a_late_rank_waits_for_it(job: TracedJob, figures: Figures) -> None:
    # Rank 3 is late: its neighbour waits for it, the other pair does not.
    side, first = of_pair(job, 2, 3), of_pair(job, 0, 1)
    assert [meeting.last for meeting in side] == [3] * (STEPS - 1)
    waited_s = min(meeting.waited_ns[2] for meeting in side) / 1e9
    figures.at_least("wait for a late neighbour", waited_s, 0.5 * LATE_S)
    other_s = max(max(meeting.waited_ns.values()) for meeting in first) / 1e9
    figures.at_most("wait of the pair that is not late", other_s, 0.5 * LATE_S)
    # Across, the late pair makes the other wait.
    assert {meeting.last for ranks in ACROSS for meeting in of_pair(job, *ranks)} == {2, 3}


def test_a_rank_that_shares_no_group_with_the_first_is_put_on_its_clock_by_others(job: TracedJob) -> None:
    assert len(job.shifts) == 4
    assert all(shift.collectives for shift in job.shifts[1:])
    for shift in job.shifts:
        # The clocks are hours apart; a minute is more than a process ever waits for its core.
        assert shift.shift_ns == pytest.approx(-1e3 * CLOCKS_US[shift.rank], abs=60e9)


@pytest.mark.truth
def test_clocks_are_put_together_as_they_were(job: TracedJob, figures: Figures) -> None:
    for shift in job.shifts:
        # One machine made the traces, so true clocks are equal; ends differ by what a process waits for its core.
        off_s = (shift.shift_ns + 1e3 * CLOCKS_US[shift.rank]) / 1e9
        figures.judge(f"clock of rank {shift.rank}", off_s, 0.0, abs=0.5 * LATE_S)


def test_nothing_is_predicted_where_several_groups_share_a_step(job: TracedJob, tmp_path: Path) -> None:
    write_run([view.trace for view in job.ranks], tmp_path / "run")
    with pytest.raises(InputError, match="several process groups"):
        _ = open_run(tmp_path / "run").job


def test_groups_that_the_trace_does_not_name_are_not_guessed(traces: Path, tmp_path: Path) -> None:
    found: list[DeviceTrace] = read_traces(find_traces([traces / "groups"]))
    assert traced_job(found).meetings == ()
    run = imported(traces, "groups", tmp_path)
    assert any("does not say in which a collective ran" in note for note in run.manifest.notes)
    with pytest.raises(InputError, match="several process groups"):
        _ = open_run(run).job
