"""Trees of GPUs: counts, tables of hosts, and Slurm's topology files."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.cluster.topology import Cluster, expand, parse_cluster, read_counts, read_slurm
from stallwise.errors import InputError


def test_counts_are_per_parent() -> None:
    cluster = Cluster.counts(gpus=8, slots=2, machines=3, racks=2, blocks=2)
    assert cluster.levels == ("slot", "machine", "rack", "block")
    assert cluster.gpus == 96
    assert [cluster.size(level) for level in range(5)] == [24, 12, 4, 2, 1]
    assert [cluster.largest(level) for level in range(5)] == [4, 8, 24, 48, 96]
    assert cluster.spans(np.array([0, 7, 8, 95], dtype=np.int32)) == (4, 3, 2, 2)


def test_levels_with_one_domain_per_parent_are_left_out() -> None:
    assert Cluster.counts(gpus=4).levels == ("machine", "rack")
    assert Cluster.counts(gpus=4).level("machine") == 0
    assert Cluster.counts(gpus=4).level("core") == 2


def test_a_tree_numbers_gpus_along_itself_and_keeps_equal_names_apart() -> None:
    cluster = Cluster.tree(("machine", "rack"), [("m", "b"), ("m", "a"), ("m", "b"), ("n", "a")])
    assert cluster.names == (("m", "m", "n"), ("b", "a"))
    assert cluster.domain.tolist() == [[0, 0, 1, 2], [0, 0, 1, 1]]


def test_hosts_of_several_sizes() -> None:
    cluster = Cluster.hosts(("machine", "rack"), [(("h1", "r1"), 4), (("h2", "r1"), 2)])
    assert cluster.gpus == 6
    assert cluster.largest(0) == 4


@pytest.mark.parametrize("counts", [{"gpus": 0}, {"gpus": 4, "racks": 0}, {"gpus": 4, "slots": 3}])
def test_impossible_counts(counts: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Cluster.counts(**counts)


def test_impossible_trees() -> None:
    with pytest.raises(InputError, match="at least one GPU"):
        Cluster.tree(("machine",), [])
    with pytest.raises(InputError, match="2 parts for 1 levels"):
        Cluster.tree(("machine",), [("a", "b")])


SLURM = """
# two leaves
SwitchName=leaf0 Nodes=n[1-4]   # first rack
SwitchName=leaf1 Nodes=n[5-6],gpu[01-02] LinkSpeed=100
SwitchName=spine \\
  Switches=leaf[0-1]
"""


def _sizes(cluster: Cluster) -> dict[str, int]:
    return {name: cluster.size(level) for level, name in enumerate(cluster.levels)}


def test_a_table_of_hosts_says_gpus_in_any_case(tmp_path: Path) -> None:
    path = tmp_path / "hosts.csv"
    path.write_text("host,rack,GPUs\na,r1,2\nb,r1,4\nc,r2,1\n")
    assert parse_cluster(str(path)).gpus == 7
    path.write_text("host,rack,gpus\na,r1,1000000000000\n")
    with pytest.raises(InputError, match="are simulated"):
        parse_cluster(str(path))
    with pytest.raises(InputError, match="hosts in"):
        expand("n[0-9999999999]")


def test_counts_in_text_are_per_parent() -> None:
    cluster = parse_cluster("racks=2,machines=8,gpus=8")
    assert cluster.gpus == 128
    assert _sizes(cluster) == {"machine": 16, "rack": 2}
    assert cluster.largest(cluster.level("rack")) == 64
    assert parse_cluster(" gpus=4 , Rack=3 ").gpus == 12, "one machine a rack; singular, any case, any order"
    deep = parse_cluster("blocks=2,racks=2,machines=2,slots=2,gpus=4")
    assert (deep.gpus, deep.levels) == (32, ("slot", "machine", "rack", "block"))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 8))
def test_counts_multiply(racks: int, machines: int, gpus: int) -> None:
    cluster = read_counts(f"racks={racks},machines={machines},gpus={gpus}")
    assert cluster.gpus == racks * machines * gpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("racks=2,machines=8", "says no gpus"),
        ("racks=2,gpus=0", "'gpus=0'"),
        ("racks=two,gpus=8", "'racks=two'"),
        ("rakcs=2,gpus=8", "Did you mean racks"),
        ("gpus=8,gpus=4", "says gpus twice"),
        ("racks=100000,machines=1000,gpus=8", "800,000,000 GPUs"),
        ("slots=3,gpus=8", "do not divide"),
        ("nowhere.conf", "cannot be read"),
    ],
)
def test_what_is_no_cluster(text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        parse_cluster(text)


def test_slurm_tree(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text(SLURM)
    cluster = parse_cluster(str(path), gpus_per_machine=4)
    assert (cluster.gpus, cluster.levels) == (32, ("machine", "rack")), "one spine over all is the cluster itself"
    assert cluster.names == (("n1", "n2", "n3", "n4", "n5", "n6", "gpu01", "gpu02"), ("leaf0", "leaf1"))


def test_slurm_deeper_and_blocks() -> None:
    text = "".join(f"SwitchName=s{i} Nodes=a{i}[1-2]\n" for i in range(4))
    text += "SwitchName=b0 Switches=s[0-1]\nSwitchName=b1 Switches=s[2-3]\nSwitchName=top Switches=b[0-1]\n"
    assert _sizes(read_slurm(text, "t", 2)) == {"machine": 8, "rack": 4, "block": 2}
    blocks = "BlockName=b0 Nodes=n[1-2]\nBlockName=b1 Nodes=n[3-4]\nBlockSizes=2\n"
    assert _sizes(read_slurm(blocks, "t", 8)) == {"machine": 4, "rack": 2}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n2\n", "line 2: node n2 is under a already"),
        ("SwitchName=a Nodes=n1\nSwitchName=t Switches=a,b\n", "never defines it"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a Nodes=n1\n", "above itself"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a Nodes=n2\n", "every node must be as deep"),
        ("SwitchName=a\n", "names no Nodes"),
        ("SwitchName=a Nodes\n", "line 1: 'Nodes'"),
        ("SwitchName=a Nodes=n[1-x]\n", "between brackets"),
    ],
)
def test_what_is_wrong_in_a_topology_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_slurm(text, "topology.conf", 8)


def test_host_lists() -> None:
    assert expand("n[1-3,7],gpu[08-10],x") == ["n1", "n2", "n3", "n7", "gpu08", "gpu09", "gpu10", "x"]
    assert expand("r[0-1]n[1-2]") == ["r0n1", "r0n2", "r1n1", "r1n2"]
    assert expand("") == []


def test_tables_of_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts.csv"
    path.write_text("host,rack,block,gpus\na,r0,b0,8\nb,r0,b0,4\nc,r0,b1,8\n")
    cluster = parse_cluster(str(path))
    assert cluster.gpus == 20
    assert _sizes(cluster) == {"machine": 3, "rack": 2, "block": 2}, "r0 of b0 is not r0 of b1"
    path.write_text("host,rack\na,r0\na,r1\n")
    with pytest.raises(InputError, match="line 3: host a is on line 2 already"):
        parse_cluster(str(path))
    path.write_text("host,rack\na,\n")
    with pytest.raises(InputError, match="line 2: a field is missing"):
        parse_cluster(str(path))
    path.write_text("size,colour\n1,red\n")
    with pytest.raises(InputError, match="no known cluster"):
        parse_cluster(str(path))


def test_lingjun(shared_data: Path) -> None:
    cluster = parse_cluster(str(shared_data / "cluster_traces/alibaba_lingjun_2023/topo.csv"))
    assert (cluster.gpus, cluster.levels) == (847 * 8, ("machine", "rack", "block"))
    assert _sizes(cluster) == {"machine": 847, "rack": 119, "block": 3}
    assert cluster.largest(cluster.level("rack")) == 64, "no switch of racks has more than 8 hosts"


def test_clusters_of_other_sources(shared_data: Path) -> None:
    folder = shared_data / "cluster_traces"
    assert parse_cluster(str(folder / "tiresias/n32g4.csv")).gpus == 128
    assert parse_cluster(str(folder / "helios_venus/vc_config.csv")).gpus == 135 * 8
    assert parse_cluster(str(folder / "alibaba_gpu_v2023/openb_node_list_gpu_node.csv")).gpus == 6212
