"""Forms of JSON that Slurm documents for releases after the one the other tests run.

Not recorded from a running Slurm of ours: the fields and forms follow SchedMD's published examples and schemas
(slurmrestd(8), OpenAPI v0.0.39 to v0.0.42, that is Slurm 23.02 to 24.11). Numbers are `{"set", "infinite", "number"}`,
states and flags lists of words, exit codes objects, `sinfo --json` groups instead of nodes.
"""

import json
import os
from pathlib import Path

import pytest

from stallwise.slurm._placement import layout_of
from stallwise.slurm.commands import Slurm, decode_jobs, decode_nodes
from stallwise.slurm.facts import PinMark, ResourceNeed, SlurmError, SlurmJob, SlurmNode, mark_text


def number(value: float) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


UNSET: dict[str, object] = {"set": False, "infinite": False, "number": 0}
INFINITE = {"set": False, "infinite": True, "number": 0}
META = {
    "plugin": {"type": "", "name": "", "data_parser": "data_parser/v0.0.42", "accounting_storage": ""},
    "slurm": {"version": {"major": "24", "micro": "0", "minor": "11"}, "release": "24.11.0", "cluster": "c"},
}


def ended(status: str, code: dict[str, object], signal: dict[str, object]) -> dict[str, object]:
    return {"status": [status], "return_code": code, "signal": {"id": signal, "name": ""}}


PENDING = {
    "account": "ml", "accrue_time": number(0), "admin_comment": "", "array_job_id": number(0), "array_task_id": UNSET,
    "array_max_tasks": number(0), "array_task_string": "", "association_id": 0, "batch_flag": True, "batch_host": "",
    "flags": ["JOB_ACCRUE_OVER"], "comment": 'stallwise:{"speeds":[1.0,0.9,0.5]}', "contiguous": False,
    "core_spec": 0, "cpus_per_task": number(1), "cpus_per_tres": "gres/gpu:8", "cron": "", "deadline": number(0),
    "dependency": "", "derived_exit_code": ended("SUCCESS", number(0), UNSET), "eligible_time": number(0),
    "end_time": number(0), "excluded_nodes": "", "exit_code": ended("SUCCESS", number(0), UNSET), "features": "",
    "gres_detail": [], "group_id": 1000, "het_job_id": number(0), "het_job_id_set": "", "het_job_offset": number(0),
    "hold": True, "job_id": 333, "job_resources": None, "job_size_str": [], "job_state": ["PENDING"],
    "max_cpus": number(0), "max_nodes": number(16), "memory_per_tres": "", "name": "train", "nodes": "",
    "node_count": number(1), "tasks": number(1), "cpus": number(16), "partition": "gpu", "prefer": "",
    "memory_per_cpu": UNSET, "memory_per_node": number(64000), "minimum_cpus_per_node": number(1),
    "priority": number(0), "qos": "normal", "required_nodes": "", "requeue": True, "restart_cnt": 0, "resv_name": "",
    "shared": [], "exclusive": [], "oversubscribe": True, "start_time": number(0), "state_description": "",
    "state_reason": "JobHeldUser", "submit_time": number(1746693311), "time_limit": INFINITE,
    "tres_per_job": "gres/gpu:16", "tres_per_node": "", "tres_per_socket": "", "tres_per_task": "",
    "tres_req_str": "cpu=16,mem=64000M,node=1,billing=16,gres/gpu=16", "user_id": 1000, "user_name": "ada",
}  # fmt: skip
RUNNING = PENDING | {
    "job_id": 334, "job_state": ["RUNNING"], "hold": False, "priority": number(4242), "nodes": "gpu[005-006]",
    "gres_detail": ["gpu:a100:8(IDX:0-7)", "gpu:a100:8(IDX:0-7)"], "node_count": number(2), "time_limit": number(90),
    "start_time": number(1746693400), "state_reason": "None", "exclusive": ["true"], "shared": ["none"],
    "job_resources": {"select_type": ["CORE"], "nodes": {"count": 2, "list": "gpu[005-006]", "whole": False}},
}  # fmt: skip
NODE = {
    "architecture": "x86_64", "boards": 1, "boot_time": number(1720820315), "cluster_name": "", "cores": 64,
    "specialized_cores": 0, "cpu_load": 446, "free_mem": number(398710), "cpus": 256, "effective_cpus": 252,
    "specialized_cpus": "0-3", "features": ["a100"], "active_features": ["a100", "ib"], "gpu_spec": "",
    "gres": "gpu:a100:8(S:0-1)", "gres_drained": "N/A", "gres_used": "gpu:a100:3(IDX:0-2)", "specialized_memory": 4000,
    "name": "gpu005", "next_state_after_reboot": ["INVALID"], "address": "gpu005", "hostname": "gpu005",
    "state": ["MIXED"], "owner": "", "partitions": ["gpu", "debug"], "port": 6818, "real_memory": 512000,
    "reason": "", "reservation": "", "alloc_memory": 100000, "alloc_cpus": 40, "alloc_idle_cpus": 212,
    "tres_used": "cpu=40,mem=100000M,gres/gpu=3", "tres_weighted": 0.0, "sockets": 2, "threads": 2, "weight": 1,
    "tres": "cpu=252,mem=500G,billing=252,gres/gpu=8", "version": "24.11.0",
}  # fmt: skip


def jobs(*entries: dict[str, object]) -> list[SlurmJob]:
    return decode_jobs(json.dumps({"jobs": entries, "meta": META, "errors": [], "warnings": []}).encode())


def nodes(*entries: dict[str, object]) -> list[SlurmNode]:
    return decode_nodes(json.dumps({"nodes": entries, "meta": META, "errors": [], "warnings": []}).encode())


def test_a_held_job() -> None:
    (job,) = jobs(PENDING)
    assert (job.key, job.state, job.held, job.reason, job.user) == ("333", "PENDING", True, "JobHeldUser", "ada")
    assert (job.gang, job.per_node, job.least_nodes, job.most_nodes, job.unit) == (16, 0, 1, 16, 1)
    assert (job.submit_s, job.start_s, job.limit_s, job.exit_code) == (1746693311.0, 0.0, None, 0)
    assert job.need == ResourceNeed(cpus=16, cpus_per_gpu=8, memory_mb=64000.0)
    assert not job.special
    assert job.markable


def test_a_running_job() -> None:
    (job,) = jobs(RUNNING)
    assert job.running
    assert not job.held
    assert job.held_gpus == {"gpu005": 8, "gpu006": 8}
    assert (job.start_s, job.limit_s) == (1746693400.0, 5400.0)
    assert job.need.whole_nodes


@pytest.mark.parametrize(
    ("states", "running", "over", "state"),
    [
        (["RUNNING", "COMPLETING"], False, False, "COMPLETING"),
        (["COMPLETED"], False, True, "COMPLETED"),
        (["CANCELLED"], False, True, "CANCELLED"),
        (["NODE_FAIL"], False, True, "NODE_FAIL"),
        (["PENDING", "REQUEUED"], False, False, "PENDING"),
        (["RUNNING", "CONFIGURING"], True, False, "RUNNING"),
    ],
)
def test_states_with_their_flags(states: list[str], running: bool, over: bool, state: str) -> None:
    (job,) = jobs(RUNNING | {"job_state": states})
    assert (job.running, job.over, job.state) == (running, over, state)


def test_how_a_job_ended() -> None:
    failed = jobs(RUNNING | {"exit_code": ended("ERROR", number(3), UNSET)})
    killed = jobs(RUNNING | {"exit_code": ended("SIGNALED", UNSET, number(15))})
    assert [job.exit_code for job in (*failed, *killed)] == [3, 15]


def test_a_requeued_job_that_slurm_holds() -> None:
    (job,) = jobs(PENDING | {"hold": True, "priority": UNSET, "restart_cnt": 2, "job_state": ["PENDING"]})
    assert job.held
    assert job.restarts == 2


def test_tasks_of_an_array_heterogeneous_jobs_and_what_a_pin_left() -> None:
    task = PENDING | {"array_job_id": number(300), "array_task_id": number(7)}
    rest = PENDING | {"array_job_id": number(300), "array_task_string": "8-9"}
    part = PENDING | {"het_job_id": number(400)}
    mark = PinMark.of(1, 16, (), ("gpu005", "gpu006"))
    pinned = PENDING | {"admin_comment": mark_text(mark), "required_nodes": "gpu[005-006]"}
    noted = PENDING | {"admin_comment": "see ticket 12"}
    found = jobs(task, rest, part, pinned, noted)
    assert [job.key for job in found] == ["300_7", "300_8", "300_9", "333", "333", "333"]
    assert [job.special for job in found[-3:]] == [True, False, False]
    assert found[-2].mark == mark
    assert mark.pinned_to(found[-2].required)
    assert (found[-1].mark, found[-1].markable) == (None, False)


def test_gpus_by_node_task_and_socket() -> None:
    none = {"tres_per_job": ""}
    rigid = PENDING | none | {"tres_per_node": "gres/gpu:a100:4", "node_count": number(2), "max_nodes": number(2)}
    tasks = PENDING | none | {"tres_per_task": "gres/gpu=2", "tasks": number(4)}
    sockets = PENDING | none | {"tres_per_socket": "gres/gpu:1"}
    found = jobs(rigid, tasks, sockets)
    assert [(job.gang, job.per_node, job.unit) for job in found[:2]] == [(8, 4, 1), (8, 0, 2)]
    assert [job.special for job in found] == [False, False, True]


def test_a_node() -> None:
    (node,) = nodes(NODE)
    assert (node.gpus, node.used, node.usable) == (8, 3, True)
    assert (node.cpus, node.idle_cpus, node.memory_mb, node.used_memory_mb) == (252, 212, 508000.0, 100000.0)
    assert node.features == {"a100", "ib"}
    assert node.partitions == ("gpu", "debug")
    assert node.free(counts_memory=True).memory_mb == 408000.0
    for states in (
        ["MIXED", "DRAIN"],
        ["IDLE", "NOT_RESPONDING"],
        ["DOWN"],
        ["IDLE", "POWERED_DOWN"],
        ["IDLE", "MAINTENANCE"],
    ):
        (broken,) = nodes(NODE | {"state": states})
        assert not broken.usable, states
    (planned,) = nodes(NODE | {"state": ["IDLE", "PLANNED"]})
    assert planned.usable, "backfill means it for a job of its own; free it is"


def test_nodes_come_from_scontrol_where_sinfo_gives_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that print what those of 23.11 do: `sinfo --json` has no nodes, `scontrol show nodes --json` has."""
    group = {"node": {"state": ["MIXED"]}, "nodes": {"total": 1, "nodes": ["gpu005"]}, "cluster": "c", "port": 6818}
    answers = {"sinfo": {"sinfo": [group], "meta": META, "errors": []}, "scontrol": {"nodes": [NODE], "errors": []}}
    for name, answer in answers.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(answer))
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\ncat {tmp_path}/{name}.json\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    slurm = Slurm()
    assert [node.name for node in (*slurm.nodes(), *slurm.nodes())] == ["gpu005", "gpu005"]
    asked = (tmp_path / "calls").read_text().splitlines()
    assert asked == ["sinfo --json", *["scontrol show nodes --json"] * 2], "the wrong one is asked once"
    (tmp_path / "scontrol.json").write_text('{"nodes": [], "errors": [{"error": "no"}]}')
    with pytest.raises(SlurmError, match="scontrol show nodes answered with errors"):
        slurm.nodes()


def test_blocks_are_racks() -> None:
    """`scontrol show topology` under topology/block."""
    names = [f"gpu{number:03d}" for number in range(1, 9)]
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=gpu[001-004] BlockSize=4\n"
        "BlockName=b2 BlockIndex=1 Nodes=gpu[005-008] BlockSize=4\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu[001-008] BlockSize=8\n"
    )
    found = layout_of([node for name in names for node in nodes(NODE | {"name": name})], text, "gpu")
    assert [found.level(pair) for pair in (["gpu001"], ["gpu001", "gpu004"], ["gpu001", "gpu005"])] == [0, 1, 2]
