"""Several launchers, several nodes, several folders: one record."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from stallwise.errors import InputError
from stallwise.record.launch import TorchrunOptions
from tests.conftest import Cli
from tests.record.jobs import TRAIN, Profiled


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return str(probe.getsockname()[1])


@pytest.mark.soak
def test_two_nodes_without_a_shared_folder_are_joined_later(tmp_path: Path, cli: Cli) -> None:
    nodes = [tmp_path / "node0", tmp_path / "node1"]
    address = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", free_port())
    jobs = []
    for rank, node in enumerate(nodes):
        node.mkdir()
        script = (TRAIN, "--workers", "1")
        jobs.append(Profiled(node, *address, "--node-rank", str(rank), "--max-time", "0.5s", *script))
    jobs[1].ended(0)
    jobs[0].ended(3)
    assert "node 0 shows the result" in jobs[1].said
    assert "Rank 1 of 2 left no record" in jobs[0].said
    copied = tmp_path / "copied"
    shutil.copytree(jobs[1].run, copied)
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    found = json.loads(cli("run", "join", "--json", str(jobs[0].run), str(copied)).stdout)
    assert found["state"] == "complete", found["partial_reason"]
    assert found["counts"]["ranks_seen"] == 2
    assert len(found["nodes"]) == 2
    assert {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()} == before, "only read"


@pytest.mark.soak
def test_two_nodes_of_two_ranks_in_a_shared_folder_tell_link_from_network(tmp_path: Path) -> None:
    address = ("--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", free_port())
    jobs = [
        Profiled(tmp_path, *address, "--json", "--node-rank", str(rank), "--max-time", "3s", TRAIN, "--workers", "0")
        for rank in (0, 1)
    ]
    jobs[1].ended(0)
    found = json.loads(jobs[0].ended(0).out)
    assert found["split"]["interconnect"] is not None
    assert found["split"]["network"] is not None
    shown = jobs[0].shown()
    assert shown["state"] == "complete", "nothing is left to be joined"
    assert shown["counts"]["ranks_seen"] == 4
    phases = {phase["name"]: phase["steps"] for phase in shown["phases"]}
    assert phases["node only"] > 0


@pytest.mark.soak
def test_another_launcher_starts_the_recorder_itself(tmp_path: Path, cli: Cli) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "stallwise.record", TRAIN, "--steps", "250", "--workers", "1"],
        cwd=tmp_path,
        env=os.environ | {"STALLWISE_RUN": "mine", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "stallwise run join mine" in done.stderr
    found = json.loads(cli("run", "join", "--json", "mine").stdout)
    assert found["state"] == "complete", found["partial_reason"]
    assert found["counts"]["ranks_seen"] == found["world"]["world_size"] == 2
    assert found["job"]["script"] == TRAIN
    assert found["job"]["arguments"] == ["--steps", "250", "--workers", "1"]
    assert {phase["name"] for phase in found["phases"]} >= {"as is", "no exchange"}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_options_the_script_runs_as_a_plain_process() -> None:
    assert TorchrunOptions().arguments() == ()
    assert TorchrunOptions().world().world_size == 1
    assert TorchrunOptions().run_id() is None


def test_any_option_of_torchrun_asks_for_torchrun() -> None:
    assert "--standalone" in TorchrunOptions(nproc_per_node="2").arguments()
    arguments = TorchrunOptions(master_addr="127.0.0.1", rdzv_id="x").arguments()
    assert arguments[arguments.index("--master-addr") + 1] == "127.0.0.1"
    assert arguments[arguments.index("--nproc-per-node") + 1] == "1"


def test_nodes_name_their_run_alike() -> None:
    nodes = [TorchrunOptions(nnodes=2, node_rank=n, master_addr="h", master_port=None) for n in (0, 1)]
    assert nodes[0].run_id() == nodes[1].run_id()
    assert nodes[0].world().world_size == 2
    assert "--standalone" not in nodes[0].arguments()


def test_words_for_the_number_of_processes() -> None:
    assert TorchrunOptions(nproc_per_node="cpu").world().world_size == os.cpu_count()
    for bad in ("0", "-1", "two", "1.5"):
        with pytest.raises(InputError, match="processes per node"):
            TorchrunOptions(nproc_per_node=bad).arguments()
    for bad_nodes in (0, -3):
        with pytest.raises(InputError, match="number of nodes"):
            TorchrunOptions(nnodes=bad_nodes).arguments()
