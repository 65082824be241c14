"""Traces of machines: what a line means, and what is said of one that means nothing. Real files where there are."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from stallwise.errors import InputError
from stallwise.overcommit.resources import ResourceAmounts, parse_host
from stallwise.overcommit.traces import (
    complete_machines,
    priorities,
    read_hosts,
    read_machines,
    read_nodes,
    read_use,
    sample_machines,
)

PLAIN = "machine_id,start_s,end_s,cpu,memory_gib,gpu,priority,least\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "a,4000,1024,1,460,,LS,Running,0,100,10\n"
    "b,2000,2048,2,1000,,BE,Running,0,50,5\n"
    "c,1000,512,0,0,,Burstable,Running,0,50,\n"
)


def wrote(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_plain_trace(tmp_path: Path) -> None:
    found = read_machines(wrote(tmp_path / "vms.csv", PLAIN + "b,5,9,2,4,0.5,0.4,0.5\na,0,10,1,2,,,\n"))
    assert found.arrival_s.tolist() == [0, 5]
    assert found.size.tolist() == [[1000, 2048, 0, 0, 0], [2000, 4096, 0, 0, 500]]
    assert found.least.tolist()[1] == [1000, 2048, 0, 0, 250]
    assert found.low.tolist() == [False, True]
    assert found.priority.tolist() == [1.0, 0.4]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,10,5,1,1,,,", "not after start_s"),
        ("a,0,5,x,1,,,", "cpu 'x' is not a number"),
        ("a,0,5,1,1,,2,", "priority 2"),
        ("a,0,5,1,1,,,3", "at most 1"),
        ("a,0,5,0,0,,,", "nothing asked for"),
        ("a,0,5", "3 fields, expected 8"),
    ],
)
def test_bad_lines_are_told(tmp_path: Path, row: str, said: str) -> None:
    path = wrote(tmp_path / "vms.csv", PLAIN + row + "\nok,0,5,1,1,,,\n")
    with pytest.raises(InputError, match="line 2") as error:
        read_machines(path)
    assert said in str(error.value)
    kept = read_machines(path, skip_bad=True)
    assert len(kept) == 1
    assert kept.notes == ("1 bad lines left out.",)


def test_pods(tmp_path: Path) -> None:
    found = read_machines(wrote(tmp_path / "pods.csv", PODS))
    assert found.arrival_s.tolist() == [5, 10]
    assert found.size.tolist() == [[2000, 2048, 0, 0, 2000], [4000, 1024, 0, 0, 460]]
    assert found.low.tolist() == [True, False]
    assert found.notes == ("1 pods that never ran: left out.",)


def test_nodes_and_hosts(tmp_path: Path) -> None:
    path = wrote(tmp_path / "nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\nb,96000,1024,8,A\na,32000,512,0,\n")
    assert read_nodes(path).total.tolist() == [[32000, 512, 0, 0, 0], [96000, 1024, 0, 0, 8000]]
    assert len(read_hosts(str(path)).first(5)) == 5
    asked = parse_host("cpu=48,memory=128GiB,disk=1GiB/s,network=25gbit,gpu=8")
    assert asked == ResourceAmounts(48000, 131_072, 1024, 25_000, 8000)
    for bad in ("cpu=48,memory", "cores=3", "cpu=-1", str(tmp_path / "none.csv")):
        with pytest.raises(InputError):
            read_hosts(bad)


def test_azure_by_hand(tmp_path: Path) -> None:
    path = wrote(tmp_path / "v.txt", "300 g,|,b,b,|\n600 g,|\n")
    wrote(tmp_path / "v.c1500.txt", "300 U1,|,U0,C2,|\n600 U2,|\n")
    wrote(tmp_path / "flav_map.txt", "1,1.75 b\n2,3.5 g\n")
    wrote(tmp_path / "v.interval_map.txt", "0 0\n300 1\n600 2\n900 2\n")
    found = read_machines(path)
    assert found.size[:, 0].tolist() == [2000, 1000, 1000, 2000]
    assert found.arrival_s.tolist() == [0, 0, 0, 300]
    assert found.end_s.tolist() == [450, 150, 1200, 1200]
    wrote(tmp_path / "v.c1500.txt", "300 U1,|,U0,|\n600 U2,|\n")
    with pytest.raises(InputError, match="line 1 does not belong"):
        read_machines(path)
    (tmp_path / "v.c1500.txt").unlink()
    with pytest.raises(InputError, match="lifetimes"):
        read_machines(path)


def test_azure_cut_off_or_damaged_is_one_sentence(tmp_path: Path) -> None:
    whole = {
        "v.txt": "300 g,|,b,b,|\n600 g,|\n",
        "v.c1500.txt": "300 U1,|,U0,C2,|\n600 U2,|\n",
        "flav_map.txt": "1,1.75 b\n2,3.5 g\n",
        "v.interval_map.txt": "0 0\n300 1\n600 2\n900 2\n",
    }
    damaged = {
        "v.c1500.txt": ("300 U1,|,U0,C2,|\n", "2 lines and v.c1500.txt 1: one of them is cut off"),
        "flav_map.txt": ("1,1.75 b\n2,x g\n", "flav_map.txt, line 2: 'x' is no number"),
        "v.interval_map.txt": ("0 0\n3oo 1\n", "v.interval_map.txt, line 2: '3oo' is no number"),
    }
    for file, (text, said) in damaged.items():
        for name, good in whole.items():
            wrote(tmp_path / name, text if name == file else good)
        with pytest.raises(InputError, match=said):
            read_machines(tmp_path / "v.txt")


def test_use_that_is_cut_off_or_damaged_is_one_sentence(tmp_path: Path) -> None:
    packed = gzip.compress(b"a,b\n" + b"10,90\n30,100\n" * 100)
    path = tmp_path / "use.csv.gz"
    for raw in (packed[: len(packed) // 2], packed[:20] + bytes(8) + packed[28:], packed[:12] + b"\xff" + packed[13:]):
        path.write_bytes(raw)
        with pytest.raises(InputError, match="no table of CPU use"):
            read_use(path)


def test_use_and_lots(tmp_path: Path) -> None:
    path = tmp_path / "use.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n10,90\n30,100\n"))
    use = read_use(path)
    assert use.part.tolist() == [[0.1, 0.3], [0.9, 1.0]]
    assert priorities(use).tolist() == [0.2, 0.8]
    crowd = read_machines(wrote(tmp_path / "vms.csv", PLAIN + "".join(f"m{i},{i},99,1,1,,,\n" for i in range(50))))
    drawn = complete_machines(crowd, use, low=0.5, seed=1)
    assert 0 < drawn.low.sum() < 50
    assert (drawn.priority == priorities(use)[drawn.series]).all()
    assert (complete_machines(crowd, use, low=0.5, seed=1).offset == drawn.offset).all()
    assert len(sample_machines(crowd, 10, seed=0)) == 10
    assert (np.diff(sample_machines(crowd, 10, seed=0).arrival_s) >= 0).all()
    wrote(tmp_path / "bad.csv", "a,b\n10,x\n")
    with pytest.raises(InputError, match="no table of CPU use"):
        read_use(tmp_path / "bad.csv")


@pytest.mark.parametrize("text", ["", "what,is,this\n"])
def test_no_trace(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_machines(wrote(tmp_path / "x.csv", text))


def test_the_public_traces(shared_data: Path) -> None:
    pods = read_machines(shared_data / "transient/alibaba_gpu_v2023/openb_pod_list_default.csv")
    nodes = read_hosts(str(shared_data / "transient/alibaba_gpu_v2023/openb_node_list_all_node.csv"))
    assert len(nodes) == 1523
    assert nodes.total[:, 4].sum() == 6_212_000
    assert len(pods) + sum(int(note.split()[0].replace(",", "")) for note in pods.notes) == 8152
