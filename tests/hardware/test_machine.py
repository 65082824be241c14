"""The machine record on disk: what is written is read; what is no machine record is refused in a sentence."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallwise.errors import InputError
from stallwise.hardware.machine import (
    FitRecord,
    HostRecord,
    LineRecord,
    LinkRecord,
    MachineRecord,
    PointRecord,
    Scope,
    encode_machine,
    read_machine,
)

numbers = st.floats(0, 1e3)
lines = st.builds(LineRecord, latency_s=numbers, s_per_byte=numbers)
scopes: st.SearchStrategy[Scope] = st.sampled_from(("inside", "between", "all"))
links = st.builds(
    LinkRecord,
    scope=scopes,
    ranks=st.integers(2, 1024),
    nodes=st.integers(1, 64),
    backend=st.sampled_from(("gloo", "nccl")),
    points=st.lists(
        st.builds(
            PointRecord,
            size_bytes=st.integers(1, 2**40),
            time_s=numbers,
            low_s=st.none() | numbers,
            high_s=st.none() | numbers,
            repeats=st.integers(1, 100),
        ),
        max_size=3,
    ).map(tuple),
    fit=st.builds(FitRecord, small=lines, large=lines, break_bytes=st.none() | numbers, low=numbers, high=numbers),
)
records = st.builds(
    MachineRecord,
    created=st.just(datetime(2026, 1, 2, 3, 4, tzinfo=UTC)),
    stallwise_version=st.just("1.0"),
    ranks=st.integers(2, 64),
    nodes=st.integers(1, 64),
    hosts=st.just((HostRecord(node=0, cpu_model="a CPU", cores=4, memory_bytes=2**30, gpus=("H100",)),)),
    links=st.lists(links, max_size=3).map(tuple),
)


@given(records)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, record: MachineRecord) -> None:
    path = tmp_path_factory.mktemp("machine") / "machine.json"
    path.write_bytes(encode_machine(record))
    assert read_machine(path) == record


def whole() -> dict[str, Any]:
    made = MachineRecord(
        created=datetime(2026, 1, 2, tzinfo=UTC),
        stallwise_version="1.0",
        ranks=2,
        nodes=2,
        links=(
            LinkRecord(
                scope="between",
                ranks=2,
                nodes=2,
                backend="gloo",
                points=(),
                fit=FitRecord(
                    small=LineRecord(latency_s=1e-3, s_per_byte=1e-9),
                    large=LineRecord(latency_s=1e-3, s_per_byte=1e-9),
                    break_bytes=None,
                    low=0.9,
                    high=1.1,
                ),
            ),
        ),
    )
    return json.loads(encode_machine(made))  # type: ignore[no-any-return]


def test_a_link_is_found_by_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(whole() | {"added_later": 1}))
    record = read_machine(path)
    assert record.link("between") is record.links[0]
    assert record.link("inside") is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "cut off or not JSON"),
        (json.dumps(whole())[:-20], "cut off or not JSON"),
        ("[]", "not a machine record"),
        ('{"schema_version": 1, "run_id": "x"}', "not a machine record"),
        (json.dumps(whole() | {"schema_version": 99}), "reads up to 1"),
        (json.dumps(whole() | {"ranks": "two"}), "not a usable machine record"),
        ("\udcff\x00", "cut off or not JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=sentence) as caught:
        read_machine(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_machine(tmp_path / "absent.json")
    with pytest.raises(InputError, match="directory"):
        read_machine(tmp_path)
