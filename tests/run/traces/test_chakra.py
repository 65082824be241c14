"""Chakra traces, whose begins are found by replaying what depends on what."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise.run.traces._chakra import looks_like_chakra, read_chakra, read_chakra_json
from stallwise.run.traces.device_trace import WorkKind
from stallwise.run.traces.files import read_trace

COMPUTE, COLLECTIVE = 4, 7


def node(
    number: int, runtime: int, *after: int, kind: int = COMPUTE, cpu: bool = False, name: str = ""
) -> dict[str, Any]:
    return {
        "Id": number,
        "Name": name or f"k{number}",
        "NodeType": kind,
        "data_deps": list(after),
        "runtime": runtime,
        "is_cpu_op": cpu,
    }


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


CONVERTED = field(2, field(1, b"schema") + field(29, b"1.0.1"))
"""Metadata as Chakra's converter writes it; its generators write a version only."""
GENERATED = field(1, b"0.0.4")


def protobuf(nodes: list[dict[str, Any]], metadata: bytes = CONVERTED) -> bytes:
    """The same nodes as Chakra writes them: `et_def.proto`."""
    messages = [metadata]
    for found in nodes:
        attribute = field(1, b"is_cpu_op") + field(27, int(found["is_cpu_op"]))
        messages.append(
            field(1, found["Id"])
            + field(2, found["Name"].encode())
            + field(3, found["NodeType"])
            + field(5, b"".join(varint(n) for n in found["data_deps"]))
            + field(7, found["runtime"])
            + field(10, attribute)
        )
    return b"".join(varint(len(message)) + message for message in messages)


NODES = [
    node(1, 10, cpu=True),
    node(2, 100, 1),
    node(3, 10, 1, cpu=True),
    node(4, 50, 3, 2),
    node(5, 80, 2, kind=COLLECTIVE, name="ncclKernel_AllReduce"),
    node(300, 5, 4, 5),
]


@pytest.fixture(params=["json", "protobuf"])
def trace_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "json":
        path = tmp_path / "job.3.json"
        path.write_text(json.dumps({"workload_graph": NODES, "ngpus": 8}))
    else:
        path = tmp_path / "job.3.et"
        path.write_bytes(protobuf(NODES))
    return path


def test_a_node_runs_when_what_it_waits_for_has_ended_and_its_lane_is_free(trace_path: Path) -> None:
    found = read_trace(trace_path)
    assert found.rank == 3
    rows = zip(found.work.name, found.work.start_ns // 1000, found.work.end_ns // 1000, strict=True)
    assert [(found.names[name], start, end) for name, start, end in rows] == [
        ("k2", 10, 110),
        ("k4", 110, 160),
        ("ncclKernel_AllReduce", 110, 190),
        ("k300", 190, 195),
    ]
    assert found.work.kind.tolist() == [WorkKind.COMPUTE, WorkKind.COMPUTE, WorkKind.COMMUNICATION, WorkKind.COMPUTE]


@pytest.mark.parametrize("metadata", [GENERATED, GENERATED + CONVERTED, field(2, field(1, b"made by") + field(3, 7))])
def test_metadata_of_any_kind_is_known(metadata: bytes, tmp_path: Path) -> None:
    path = tmp_path / "job.0.et"
    path.write_bytes(protobuf(NODES, metadata))
    assert len(read_trace(path).work) == 4


@pytest.mark.parametrize(
    "begin", [b"", b"hello", b'{"traceEvents": []}', b"\n\n\n[{}]", b"  {}", b"\x03\x08\x96\x01", b"\0"]
)
def test_what_is_no_metadata_is_no_chakra(begin: bytes) -> None:
    assert not looks_like_chakra(begin)


def test_both_forms_of_a_real_trace_agree(shared_data: Path, tmp_path: Path) -> None:
    for name in ("feeder_tests_trace", "json_trace"):
        with tarfile.open(shared_data / "kineto/chakra" / f"{name}.tar.gz") as packed:
            packed.extractall(tmp_path, filter="data")
    one = read_chakra(tmp_path / "tests/data/chakra.0.et")
    other = read_chakra_json(tmp_path / "jsonData/chakra.0.json")
    assert len(one.work) == len(other.work) == 1216
    assert np.array_equal(one.work.end_ns, other.work.end_ns)
    assert np.array_equal(one.work.kind, other.work.kind)
