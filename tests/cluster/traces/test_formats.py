"""Every format on rows written here: what a job becomes, and what is said about rows that are none."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.cluster.traces import read_trace
from stallwise.cluster.traces.rows import (
    RowProblem,
    Trace,
    TraceError,
    list_problems,
    load_sentence,
    mark_misfits,
    usable_trace,
)
from stallwise.errors import InputError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A file of lines."""

    def made(*lines: str, name: str = "trace.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return made


PLAIN = "job_id,submit_s,gpus,duration_s,model,user"
DALLY = "job_id,arrival_time_s,num_gpus,model,total_iterations,time_per_iteration_1gpu_s"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"


def _told(trace: Trace) -> dict[int, str]:
    return {problem.line: problem.message for problem in trace.problems}


def test_the_plain_table(write: Write) -> None:
    trace = read_trace(write(PLAIN, "b,20,8,3600,ResNet50,ann", "", "a,10.5,1,60,,"))
    assert [job.id for job in trace.jobs] == ["a", "b"], "in order of arrival"
    first, second = trace.jobs
    assert (first.arrival_s, first.gpus, first.work_s, first.model, first.user) == (10.5, 1, 60.0, None, None)
    assert (second.model, second.user, second.line) == ("ResNet50", "ann", 2)
    assert first.line == 4, "empty lines count"


def test_columns_may_come_in_any_order(write: Write) -> None:
    (job,) = read_trace(write("duration_s,gpus,job_id,extra,submit_s", "60,2,x,,5")).jobs
    assert (job.id, job.gpus, job.work_s, job.arrival_s) == ("x", 2, 60.0, 5.0)


def test_every_bad_row_is_found_in_one_go(write: Write) -> None:
    trace = read_trace(
        write(
            PLAIN,
            "a,0,1,60,,",
            "b,-5,1,60,,",
            "c,0,1,,,",
            "d,0,0,60,,",
            "e,0,two,60,,",
            "f,0,1.5,60,,",
            "a,3,1,60,,",
            "g,0,1,nan,,",
            "h,,1,60,,",
            ",0,1,60,,",
            "i,0,1,60",
            "j,0,1,x,,",
            "k,0,1,inf,,",
            "l,0,2.0,60,,",
        )
    )
    assert [job.id for job in trace.jobs] == ["a", "l"]
    assert _told(trace) == {
        3: "submit_s -5 is negative",
        4: "no duration_s",
        5: "gpus 0: at least 1 is needed",
        6: "gpus 'two' is no whole number",
        7: "gpus '1.5' is no whole number",
        8: "id 'a' is on line 2 already",
        9: "duration_s nan is not a time",
        10: "no submit_s",
        11: "no job_id",
        12: "4 fields, expected 6",
        13: "duration_s 'x' is not a number",
        14: "duration_s inf is not a time",
    }


def test_bad_rows_stop_or_are_skipped(write: Write) -> None:
    trace = read_trace(write(PLAIN, "a,0,1,60,,", "b,-5,1,60,,", "c,0,64,60,,"))
    checked = mark_misfits(trace, 32)
    with pytest.raises(TraceError) as error:
        usable_trace(checked, skip_bad=False)
    assert str(error.value) == (
        "trace.csv has 2 lines that cannot be simulated:\n"
        "  line 3: submit_s -5 is negative\n"
        "  line 4: 64 GPUs; the cluster has 32\n"
        "Correct them, or leave them out."
    )
    kept = usable_trace(checked, skip_bad=True)
    assert [job.id for job in kept.jobs] == ["a"]
    assert kept.problems == ()
    assert kept.notes[-1] == "2 lines left out: 1 with negative submit_s, 1 with a gang larger than the cluster."


def test_nothing_left_is_said(write: Write) -> None:
    trace = mark_misfits(read_trace(write(PLAIN, "c,0,64,60,,")), 32)
    with pytest.raises(InputError, match="no job that can be simulated"):
        usable_trace(trace, skip_bad=True)


def test_models_without_a_profile_offer_the_nearest(write: Write) -> None:
    trace = mark_misfits(
        read_trace(write(PLAIN, "a,0,1,60,ResNet51,", "b,0,1,60,BERT,", "c,0,1,60,,")), 8, models=("ResNet50", "BERT")
    )
    assert _told(trace) == {2: "model 'ResNet51' has no profile (nearest: ResNet50)"}
    assert [job.id for job in trace.jobs] == ["b", "c"], "a job without a model is never slowed"


@given(st.sets(st.integers(1, 500), min_size=41))
def test_very_many_bad_lines_are_listed_by_kind(lines: set[int]) -> None:
    text = list_problems(RowProblem(line, "no duration", "no duration") for line in lines)
    assert text.count("\n") == 0
    listed = text.rpartition(": ")[2]
    found: set[int] = set()
    for piece in listed.split(", "):
        low, _, high = piece.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    assert found == lines, "not one is left out"


def test_jobs_of_no_time_are_counted_and_left_out(write: Write) -> None:
    trace = read_trace(write(PLAIN, "a,0,1,0,,", "b,0,1,9,,"))
    assert ([job.id for job in trace.jobs], trace.problems, trace.notes) == (["b"], (), ("1 jobs of 0 s: left out.",))


def test_dally(write: Write) -> None:
    trace = read_trace(write(DALLY, "1,0,4,BERT,1000,0.5", "2,9,1,BRET,10,1", "3,9,1,VGG,0,1"))
    (job,) = trace.jobs
    assert (job.work_s, job.iteration_s, job.model, job.gpus) == (125.0, 0.5, "BERT", 4), "1000 iterations by 4 GPUs"
    assert _told(trace) == {3: "unknown model 'BRET' (nearest: BERT)", 4: "total_iterations 0: at least 1 is needed"}


def test_dally_takes_the_ideal_duration_of_the_file(write: Write) -> None:
    (job,) = read_trace(write(f"{DALLY},ideal_duration_s,gpu_util", "1,0,4,BERT,1000,0.5,124.9,45.5")).jobs
    assert (job.work_s, job.gpu_utilisation) == (124.9, 0.455)


def test_tiresias_and_slices(write: Write) -> None:
    trace = read_trace(write(TIRESIAS, "0,4,30,271,vgg16,128,33", "1,4,30,271,vgg17,128,33"))
    assert (trace.format, trace.jobs[0].work_s, trace.jobs[0].arrival_s) == ("Tiresias", 128.0, 30.0)
    assert list(_told(trace)) == [3]
    assert _told(trace)[3].startswith("unknown model_name 'vgg17' (nearest: vgg1")
    trace = read_trace(write("job_id,num_gpu,submit_time,duration", "7,8,5,60"))
    assert (trace.format, trace.jobs[0].gpus, trace.jobs[0].model) == ("Philly slice", 8, None)


def test_dates_are_counted_from_the_first(write: Write) -> None:
    trace = read_trace(
        write(
            "timestamp,duration,num_gpus,gpu_time,cluster",
            "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
            "2017-10-09 07:00:00,60,2,120,6214e9",
            "yesterday,60,2,120,6214e9",
            ",60,2,120,6214e9",
        )
    )
    assert [(job.id, job.arrival_s, job.user) for job in trace.jobs] == [("3", 0.0, "6214e9"), ("2", 115.0, "11cb48")]
    assert _told(trace) == {4: "timestamp 'yesterday' is no date and time", 5: "no timestamp"}


def test_themis(write: Write) -> None:
    trace = read_trace(
        write(
            "experiment-id,job-id,start-time,run-time,num-gpus",
            "1781, app_75, 2018-06-16 04:51:49, 7953.0, 1",
            "1781, app_42, 2018-06-16 04:48:01, 0.0, 1",
        )
    )
    (job,) = trace.jobs
    assert (job.id, job.arrival_s, job.work_s, job.user) == ("app_75", 228.0, 7953.0, "1781")
    (job,) = read_trace(write(",experiment_id,start_time,running_time,num_gpus", "20771,1665,5,143,1")).jobs
    assert (job.id, job.arrival_s, job.work_s) == ("20771", 5.0, 143.0)


def test_alibaba_pods(write: Write) -> None:
    trace = read_trace(
        write(
            PODS,
            "p0,1,1,1,1000,,LS,Running,0,100,40",
            "p1,1,1,1,460,,LS,Running,5,100,5",
            "p2,1,1,0,0,,LS,Running,5,100,5",
            "p3,1,1,1,1000,,LS,Pending,5,100,",
            "p4,1,1,1,1000,,LS,Failed,5,100,120",
        )
    )
    assert [(job.id, job.arrival_s, job.work_s) for job in trace.jobs] == [("p0", 0.0, 60.0), ("p1", 5.0, 95.0)]
    assert _told(trace) == {6: "deleted before it was scheduled"}
    assert trace.notes == (
        "1 pods without a GPU: left out.",
        "1 pods that never ran: left out.",
        "1 pods ask for a share of a GPU: each takes a whole one.",
    )


def test_pods_without_times(write: Write) -> None:
    with pytest.raises(InputError, match="without their times"):
        read_trace(write("name,cpu_milli,memory_mib,num_gpu,gpu_milli", "p0,1,1,1,1000"))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("ip,DSW,PSW,ASW", "is a topology, not a trace"),
        ("num_switch,num_node_p_switch,num_gpu_p_node", "is a cluster, not a trace"),
        ("time,submit_gpu_job,submit_gpu_num", "can give the arrivals of another trace"),
        ("job_id,submit_s,gpus", "nearest to a plain trace, but lacks duration_s"),
        ("a,b,c", "no known trace"),
    ],
)
def test_what_is_no_trace_is_told_what_it_is(write: Write, header: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_trace(write(header, "1,2,3"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("none.csv", "No such file"),
        ("empty.csv", "is empty"),
        ("binary.csv", "not text"),
        ("", "is a folder"),
    ):
        with pytest.raises(InputError, match=said):
            read_trace(tmp_path / name)


def test_load(write: Write) -> None:
    from stallwise.cluster.job import load

    trace = read_trace(write(PLAIN, "a,0,8,7000,,", "b,1000,8,7000,,"))
    assert load_sentence(load(trace.jobs, 80)) == (
        "This trace needs 1.4 × the cluster: 31.1 GPU-hours arrive in 16.7 min; the queue grows while jobs arrive."
    )
    assert load_sentence(load(trace.jobs, 112)).endswith("arrive in 16.7 min.")
    batch = read_trace(write(PLAIN, "a,0,8,7200,,"))
    assert load_sentence(load(batch.jobs, 8)) == (
        "All jobs come at once: 16 GPU-hours, 2 h of the whole cluster at full speed."
    )


FIELDS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=8)


@given(st.lists(st.lists(FIELDS | st.integers(-3, 99).map(str), min_size=1, max_size=7), max_size=12))
def test_no_text_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    """Whatever stands there is a job, a problem or left out; every job can be simulated."""
    import csv

    path = tmp_path_factory.mktemp("fuzz") / "trace.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(PLAIN.split(","))
        writer.writerows(rows)
    trace = read_trace(path)
    assert len(trace.jobs) + len(trace.problems) <= len(rows)
    assert len({job.id for job in trace.jobs}) == len(trace.jobs)
    for job in trace.jobs:
        assert job.gpus >= 1
        assert 0 < job.work_s < float("inf")
        assert 0 <= job.arrival_s < float("inf")
