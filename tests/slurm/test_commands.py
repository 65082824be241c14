"""Slurm's JSON as 22.05 prints it, and when it is no answer at all."""

import json

import pytest

from stallwise.slurm.actions import release_all
from stallwise.slurm.commands import Slurm, decode_jobs, decode_nodes
from stallwise.slurm.facts import SlurmError, SlurmJob, gpus_in
from stallwise.slurm.state import JobRow
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


def test_words_of_a_request_as_2205_prints_them() -> None:
    """What `squeue --json` said of jobs that were submitted with these options."""
    both = {"tres_per_job": "gres:gpu:8", "tres_per_node": "gres:gpu:2", "node_count": 4, "max_nodes": 4, "tasks": 4}
    named = {"tres_per_job": "gres:gpu:4", "required_nodes": "n[3,5]", "node_count": 2, "max_nodes": 4, "cpus": 2}
    cpus = {"cpus_per_tres": "gres:gpu:3", "memory_per_tres": "gres:gpu:100"}
    tasks = {"tres_per_job": "", "tres_per_task": "gres:gpu:2", "tasks": 4, "cpus": 4}
    found = decode_jobs(
        jobs(*(JOB | more for more in (both, named, cpus, tasks, {"shared": "none"}, {"memory_per_node": 500})))
    )
    assert [(job.gang, job.per_node, job.in_all) for job in found[:2]] == [(8, 2, True), (4, 0, True)]
    assert found[1].required == ("n3", "n5")
    assert (found[2].need.cpus_per_gpu, found[2].need.memory_mb_per_gpu) == (3, 100)
    assert (found[3].gang, found[3].unit, found[3].need.cpus) == (8, 2, 4)
    assert found[4].need.whole_nodes
    assert found[5].need.memory_mb == 500


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
        with pytest.raises(SlurmError, match="no job id"):
            slurm.release(key)
    with pytest.raises(SlurmError, match="no node name"):
        slurm.pin("1", ["n1", "-x"], now=False)
    assert slurm.calls == 0


def test_a_name_in_another_encoding_hides_nobody() -> None:
    (found,) = decode_jobs(jobs(JOB | {"name": "caf?"}).replace(b"caf?", b"caf\xe9"))
    assert found.name == "caf\ufffd"


def test_whether_a_job_may_be_queued_again_is_told() -> None:
    (found,) = decode_jobs(jobs(JOB | {"requeue": False}))
    assert not found.requeues


def test_a_node_as_2205_prints_it() -> None:
    busy = NODE | {"gres_used": "gpu:3", "alloc_cpus": 24, "idle_cpus": 40, "alloc_memory": 500, "state": "mixed"}
    (node,) = decode_nodes(json.dumps({"nodes": [busy], "errors": []}).encode())
    assert (node.gpus, node.used, node.cpus, node.idle_cpus, node.memory_mb) == (8, 3, 64, 40, 2000)
    assert node.free(counts_memory=True).memory_mb == 1500
    assert not node.free(counts_memory=True).empty
    (drained,) = decode_nodes(json.dumps({"nodes": [busy | {"state_flags": ["DRAIN"]}], "errors": []}).encode())
    assert not drained.usable


class Strict(Slurm):
    """A Slurm that lets this account change everything of a job but the administrator's comment."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, ...]] = []
        self.refuses_all = False

    def _run(self, *command: str) -> bytes:
        self.told.append(command)
        if self.refuses_all or any(word.startswith("AdminComment=") for word in command):
            raise SlurmError("scontrol update JobId=1 failed: slurm_update error: Access/permission denied.")
        return b""


def test_a_pin_goes_without_its_mark_where_the_account_may_not_write_one() -> None:
    slurm = Strict()
    for key in ("1", "2"):
        slurm.pin(key, ["n1"], now=False, mark="stallwise:{}")
    plain = ("ReqNodeList=n1", "NumNodes=1-1")
    assert [words[2:] for words in slurm.told] == [
        ("JobId=1", *plain, "AdminComment=stallwise:{}"),
        ("JobId=1", *plain),
        ("JobId=2", *plain),
    ]
    with pytest.raises(SlurmError, match="denied"):
        slurm.pin("3", ["n1"], now=False, mark="stallwise:{}", marked=True)
    assert len(slurm.told) == 4, "an old mark beside a new pin would be a lie"


def test_a_refusal_that_passes_does_not_end_marks() -> None:
    slurm = Strict()
    slurm.refuses_all = True
    with pytest.raises(SlurmError, match="denied"):
        slurm.pin("1", ["n1"], now=False, mark="stallwise:{}")
    assert slurm.marks


class Queued(Slurm):
    """A Slurm with these jobs; what it is told is kept."""

    def __init__(self, *entries: dict[str, object]) -> None:
        super().__init__()
        self.told: list[str] = []
        self.entries = [JOB | entry for entry in entries]

    def jobs(self) -> list[SlurmJob]:
        return decode_jobs(jobs(*self.entries))

    def _run(self, *command: str) -> bytes:
        self.told.append(" ".join(command))
        return b""


def test_taken_off_a_job_without_a_mark_is_unpinned_too() -> None:
    ran = {"job_id": 1, "required_nodes": "n1", "restart_cnt": 1, "node_count": 2, "max_nodes": 2}
    named = {"job_id": 2, "required_nodes": "n1"}
    long = {"job_id": 3, "required_nodes": "n1", "admin_comment": "stallwise:long", "node_count": 1, "max_nodes": 1}
    slurm = Queued(ran, named, long)
    assert [one.error for one in release_all(slurm, "gpu", {})] == [None] * 3
    assert slurm.told == [
        "scontrol update JobId=1 ReqNodeList= NumNodes=2-2",
        "scontrol update JobId=1 StartTime=now",
        "scontrol release 1",
        "scontrol release 2",
        "scontrol update JobId=3 ReqNodeList= NumNodes=1-1 AdminComment=",
        "scontrol release 3",
    ]
    known = Queued(long)
    row = JobRow(key="3", submit_s=0.0, least_nodes=1, most_nodes=8, required=("n1",))
    assert [one.error for one in release_all(known, "gpu", {"3": row})] == [None]
    assert known.told[0] == "scontrol update JobId=3 ReqNodeList=n1 NumNodes=1-8 AdminComment="
