"""torchrun's options as the user gave them."""

import os

import pytest

from stallwise.errors import InputError
from stallwise.record.torchrun import TorchrunOptions


def test_without_options_the_script_runs_as_a_plain_process() -> None:
    assert TorchrunOptions().arguments() == ()
    assert TorchrunOptions().world().world_size == 1
    assert TorchrunOptions().run_id() is None


def test_any_option_of_torchrun_asks_for_torchrun() -> None:
    assert "--standalone" in TorchrunOptions(nproc_per_node="2").arguments()
    given = TorchrunOptions(master_addr="127.0.0.1", rdzv_id="x").arguments()
    assert given[given.index("--master-addr") + 1] == "127.0.0.1"
    assert given[given.index("--nproc-per-node") + 1] == "1"


def test_nodes_name_their_run_alike() -> None:
    nodes = [TorchrunOptions(nnodes=2, node_rank=n, master_addr="h", master_port=None) for n in (0, 1)]
    assert nodes[0].run_id() == nodes[1].run_id()
    assert nodes[0].world().world_size == 2
    assert "--standalone" not in nodes[0].arguments()


def test_words_for_the_number_of_processes() -> None:
    assert TorchrunOptions(nproc_per_node="cpu").world().world_size == os.cpu_count()
    for bad in ("0", "-1", "two", "1.5"):
        with pytest.raises(InputError, match="--nproc-per-node"):
            TorchrunOptions(nproc_per_node=bad).arguments()
    for bad_nodes in (0, -3):
        with pytest.raises(InputError, match="--nnodes"):
            TorchrunOptions(nnodes=bad_nodes).arguments()
