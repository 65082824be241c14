"""Slurm's JSON as 22.05 prints it, as later releases document it, and when it is no answer at all."""

import json

import pytest

from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmError, gpus_in
from stallwise.slurm.wire import decode_jobs, decode_nodes
from tests.slurm.recorded import JOB, NODE


def jobs(*entries: dict[str, object]) -> bytes:
    return json.dumps({"meta": {}, "errors": [], "jobs": entries}).encode()


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gres:gpu:8", 8),
        ("gres/gpu=4", 4),
        ("gpu:a100:2(IDX:0,3),shard:1", 2),
        ("gpu:a:2,gpu:b:3", 5),
        ("gpu", 1),
        ("shard:8", 0),
        ("", 0),
    ],
)
def test_gpus_in_generic_resources(text: str, count: int) -> None:
    assert gpus_in(text) == count


def test_a_held_job_and_a_running_one() -> None:
    running = JOB | {
        "job_state": "RUNNING", "priority": 5, "nodes": "n[2,6]", "gres_detail": ["gpu:4(IDX:0-3)", "gpu:2(IDX:0-1)"]
    }  # fmt: skip
    held, other = decode_jobs(jobs(JOB, running))
    assert held.held
    assert (held.gang, held.least_nodes, held.most_nodes, held.submit_s) == (6, 1, 6, 1794780611.0)
    assert not other.held
    assert other.held_gpus == {"n2": 4, "n6": 2}


def test_gpus_per_node_and_the_tasks_of_an_array() -> None:
    rigid = JOB | {"tres_per_job": "", "tres_per_node": "gres:gpu:3", "node_count": 2, "max_nodes": 2}
    array = JOB | {"array_job_id": 5, "job_id": 5, "array_task_string": "0-4:2,7%2"}
    task = JOB | {"array_job_id": 5, "job_id": 9, "array_task_id": 2}
    found = decode_jobs(jobs(rigid, array, task))
    assert (found[0].gang, found[0].per_node) == (6, 3)
    assert [job.key for job in found[1:]] == ["5_0", "5_2", "5_4", "5_7", "5_2"]


def test_the_forms_of_later_releases() -> None:
    """data_parser v0.0.40: numbers that may be unset, states as lists, exit codes as objects."""
    new = JOB | {
        "job_state": ["RUNNING", "COMPLETING"],
        "priority": {"set": True, "infinite": False, "number": 0},
        "time_limit": {"set": True, "infinite": False, "number": 90},
        "node_count": {"set": True, "infinite": False, "number": 2},
        "array_job_id": {"set": True, "infinite": False, "number": 0},
        "submit_time": {"set": True, "infinite": False, "number": 17},
        "end_time": {"set": False, "infinite": True, "number": 0},
        "exit_code": {"return_code": {"set": True, "infinite": False, "number": 3}},
    }
    (job,) = decode_jobs(jobs(new))
    assert job.state == "COMPLETING"
    assert (job.limit_s, job.submit_s, job.end_s, job.exit_code, job.least_nodes) == (5400.0, 17.0, 0.0, 3, 2)
    node = NODE | {"state": ["MIXED", "DRAIN"], "gres": "gpu:h100:8", "gres_used": "gpu:h100:3(IDX:0-2)"}
    (found,) = decode_nodes(json.dumps({"nodes": [node], "errors": []}).encode())
    assert (found.gpus, found.used, found.usable) == (8, 3, False)


def test_an_empty_list_beside_an_error_is_no_answer() -> None:
    """What 22.05 prints, with exit code 0, when slurmctld does not answer: nobody's jobs are over."""
    error = {"description": "Failed while looking for jobs", "error_number": -1, "source": "slurm_load_jobs"}
    with pytest.raises(SlurmError, match="Failed while looking for jobs"):
        decode_jobs(json.dumps({"errors": [error], "jobs": []}).encode())
    with pytest.raises(SlurmError, match="cannot be read"):
        decode_jobs(b'{"jobs": [')
    with pytest.raises(SlurmError, match="errors"):
        decode_nodes(json.dumps({"errors": [{"errno": -1}], "nodes": []}).encode())


def test_only_numbers_of_jobs_and_names_of_nodes_become_arguments() -> None:
    slurm = Slurm()
    for key in ("1; true", "--help", "1 2", "", "1_", "٣"):
        with pytest.raises(SlurmError, match="no number of a job"):
            slurm.release(key)
    with pytest.raises(SlurmError, match="no name of a node"):
        slurm.pin("1", ["n1", "-x"], now=False)
    assert slurm.calls == 0


def test_a_name_in_another_encoding_hides_nobody() -> None:
    (found,) = decode_jobs(jobs(JOB | {"name": "caf?"}).replace(b"caf?", b"caf\xe9"))
    assert found.name == "caf\ufffd"


def test_whether_a_job_may_be_queued_again_is_told() -> None:
    (found,) = decode_jobs(jobs(JOB | {"requeue": False}))
    assert not found.requeues
