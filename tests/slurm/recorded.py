"""A Slurm that answers with JSON as 22.05 prints it, of any size, and only writes down what it is told."""

import json
import random
from collections.abc import Sequence

from stallwise.slurm.commands import Slurm, decode_jobs, decode_nodes
from stallwise.slurm.facts import SlurmJob, SlurmNode

GPUS, RACK = 8, 40

# A job and a node as `squeue --json` and `sinfo --json` of Slurm 22.05.8 printed them (OpenAPI 0.0.38).
JOB = json.loads(
    r"""{"account": "", "accrue_time": 0, "admin_comment": "", "array_job_id": 0, "array_task_id": null,
"array_max_tasks": 0, "array_task_string": "", "association_id": 0, "batch_features": "", "batch_flag": true,
"batch_host": "", "flags": [], "burst_buffer": "", "burst_buffer_state": "", "cluster": "stallwise",
"cluster_features": "", "command": "/home/u/train.sh", "comment": "", "container": "", "contiguous": false,
"core_spec": null, "thread_spec": null, "cores_per_socket": null, "billable_tres": null, "cpus_per_task": null,
"cpu_frequency_minimum": null, "cpu_frequency_maximum": null, "cpu_frequency_governor": null, "cpus_per_tres": "",
"deadline": 0, "delay_boot": 0, "dependency": "", "derived_exit_code": 0, "eligible_time": 0, "end_time": 0,
"excluded_nodes": "", "exit_code": 0, "features": "", "federation_origin": "", "federation_siblings_active": "",
"federation_siblings_viable": "", "gres_detail": [], "group_id": 0, "group_name": "root", "job_id": 1,
"job_state": "PENDING", "last_sched_evaluation": 1794780611, "licenses": "", "max_cpus": 0, "max_nodes": 6,
"mcs_label": "", "memory_per_tres": "", "name": "train", "nodes": "", "nice": null, "tasks_per_core": null,
"tasks_per_node": 0, "tasks_per_socket": null, "tasks_per_board": 0, "cpus": 1, "node_count": 1, "tasks": 1,
"het_job_id": 0, "het_job_id_set": "", "het_job_offset": 0, "partition": "gpu", "prefer": "", "memory_per_node": null,
"memory_per_cpu": null, "minimum_cpus_per_node": 1, "minimum_tmp_disk_per_node": 0, "preempt_time": 0,
"pre_sus_time": 0, "priority": 0, "profile": null, "qos": "", "reboot": false, "required_nodes": "", "requeue": true,
"resize_time": 0, "restart_cnt": 0, "resv_name": "", "shared": null, "show_flags": ["SHOW_ALL", "SHOW_DETAIL"],
"sockets_per_board": 0, "sockets_per_node": null, "start_time": 0, "state_description": "",
"state_reason": "JobHeldUser", "standard_error": "", "standard_input": "/dev/null", "standard_output": "/dev/null",
"submit_time": 1794780611, "suspend_time": 0, "system_comment": "", "time_limit": null, "time_minimum": 0,
"threads_per_core": null, "tres_bind": "", "tres_freq": "", "tres_per_job": "gres:gpu:6", "tres_per_node": "",
"tres_per_socket": "", "tres_per_task": "", "tres_req_str": "cpu=1,mem=2000M,node=1,billing=1", "tres_alloc_str": "",
"user_id": 0, "user_name": "root", "wckey": "", "current_working_directory": "/tmp"}"""
)
NODE = json.loads(
    r"""{"architecture": "x86_64", "burstbuffer_network_address": "", "boards": 1, "boot_time": 1794733237,
"comment": "", "cores": 1, "cpu_binding": 0, "cpu_load": 182, "extra": "", "free_memory": 19925, "cpus": 64,
"last_busy": 1794780424, "features": "", "active_features": "", "gres": "gpu:8", "gres_drained": "N/A",
"gres_used": "gpu:0", "mcs_label": "", "name": "n1", "next_state_after_reboot": "invalid", "address": "127.0.0.1",
"hostname": "localhost", "state": "idle", "state_flags": [], "next_state_after_reboot_flags": [],
"operating_system": "Linux", "owner": null, "partitions": ["gpu"], "port": 6818, "real_memory": 2000, "reason": "",
"reason_changed_at": 0, "reason_set_by_user": null, "slurmd_start_time": 1794780423, "sockets": 8, "threads": 1,
"temporary_disk": 0, "weight": 1, "tres": "cpu=64,mem=2000M,billing=8", "slurmd_version": "22.05.8",
"alloc_memory": 0, "alloc_cpus": 0, "idle_cpus": 64, "tres_used": null, "tres_weighted": 0.0}"""
)


class Recorded(Slurm):
    """`running` jobs that are not ours fill all nodes but a few GPUs in many places; `waiting` held ones are ours.

    `told` are the commands it was given.
    """

    def __init__(self, *, nodes: int, waiting: int, running: int, seed: int = 0) -> None:
        super().__init__(settings={"killwait": "30 sec", "clustername": "recorded"})
        self.told: list[tuple[str, ...]] = []
        self.now_s = 1794790000.0
        draw = random.Random(seed)
        names = [f"n{number:04d}" for number in range(nodes)]
        # Every node is full but for a GPU here and there: each gang is tried in many places and fits in few.
        used = [GPUS - draw.choice([0, 0, 0, 1]) for _ in names]
        made = [
            NODE | {"name": name, "gres_used": f"gpu:{count}", "state": "mixed"}
            for name, count in zip(names, used, strict=True)
        ]
        entries = [self._running(number, draw, names) for number in range(running)]
        entries += [self._waiting(running + number, draw) for number in range(waiting)]
        self.nodes_json = json.dumps({"meta": {}, "errors": [], "nodes": made}).encode()
        self.jobs_json = json.dumps({"meta": {}, "errors": [], "jobs": entries}).encode()
        racks = [names[at : at + RACK] for at in range(0, nodes, RACK)]
        lines = [f"SwitchName=r{i} Level=0 LinkSpeed=1 Nodes={','.join(rack)}" for i, rack in enumerate(racks)]
        top = f"SwitchName=top Level=1 LinkSpeed=1 Nodes={','.join(names)} Switches=r[0-{len(racks) - 1}]"
        self.topology_text = "\n".join([*lines, top])

    def _running(self, number: int, draw: random.Random, names: Sequence[str]) -> dict[str, object]:
        node = draw.choice(names)
        return JOB | {
            "job_id": number + 1,
            "job_state": "RUNNING",
            "priority": 100,
            "state_reason": "None",
            "nodes": node,
            "gres_detail": ["gpu:4(IDX:0-3)"],
            "tres_per_job": "gres:gpu:4",
            "start_time": 1794780000,
        }

    def _waiting(self, number: int, draw: random.Random) -> dict[str, object]:
        gang = draw.choice([8, 8, 16, 16, 32, 64])
        speeds = [1.0, round(draw.uniform(0.7, 1), 3), round(draw.uniform(0.3, 0.7), 3)]
        comment = "stallwise:" + json.dumps({"speeds": speeds, "model": draw.choice("abcdefgh")})
        asked = {"tres_per_job": f"gres:gpu:{gang}", "max_nodes": gang, "comment": comment}
        return JOB | {"job_id": number + 1, "submit_time": 1794780000 + number} | asked

    def jobs(self) -> list[SlurmJob]:
        return decode_jobs(self.jobs_json)

    def nodes(self) -> list[SlurmNode]:
        return decode_nodes(self.nodes_json)

    def topology(self) -> str:
        return self.topology_text

    def _run(self, *command: str) -> bytes:
        self.told.append(command)
        return b""
