"""Whatever a file holds: a trace, or one sentence. Never a traceback."""

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stallwise import inputs
from stallwise.analysis.traces._model import traced_model
from stallwise.analysis.traces._ranks import traced_job
from stallwise.analysis.traces._steps import path_of, rank_splits, traced_steps
from stallwise.analysis.traces.import_ import write_run
from stallwise.errors import StallwiseError
from stallwise.run.reader import Run
from stallwise.run.traces import kineto_events
from stallwise.run.traces.files import read_trace
from tests.run.traces.made_traces import document, event, kernel, write_trace

GOOD = json.dumps(document()).encode()


def whole_way(path: Path) -> None:
    """Everything an import does, without writing it."""
    trace = read_trace(path)
    job = traced_job([trace])
    for view in job.ranks:
        assert all(step.duration_s > 0 for step in traced_steps(job, view))
    traced_model(job)
    segments = path_of(job)
    assert all(one.end_ns == two.start_ns for one, two in pairwise(segments))
    rank_splits([(view.rank, view.trace) for view in job.ranks])


def sentence(path: Path) -> str:
    with pytest.raises(StallwiseError) as caught:
        whole_way(path)
    said = str(caught.value)
    assert path.name in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"hello", "neither JSON nor"),
        (b"{}", "no list of trace events"),
        (b"null", "neither JSON nor"),
        (b'{"traceEvents": {}}', "no list of trace events"),
        (b'{"traceEvents": [1, 2]}', "Expected `object`, got `int`"),
        (b'{"traceEvents": []}', "neither kernels nor operators"),
        (b'{"traceEvents": [', "cut off"),
        (GOOD[:3000], "cut off"),
        (GOOD[:-1], "cut off"),
        (b'{"traceEvents": [{"ph": "X", "ts": NaN}]}', "damaged"),
        (b'{"traceEvents": [{"ph": "X", "ts": "soon", "dur": 1}]}', "Expected `int | float | null`, got `str`"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1e999, "dur": 1}]}', "out of range"),
        (b'{"traceEvents": [{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"[" * 100_000 + b', "traceEvents": [', "no list of trace events"),
        (b'{"distributedInfo": {"rank": "zero"}, "traceEvents": []}', "Expected `int | null`, got `str`"),
        (b'{"traceEvents": [{"name": "\xff\xfe"}]}', "damaged"),
        (b'{"schema": "1.0.2-chakra.0.0.4", "nodes": [{"id": 1, "ctrl_deps": 0}]}', "execution trace"),
        (b'{"workload_graph": 3}', "no usable Chakra trace"),
        (b'{"workload_graph": []}', "holds no nodes"),
        (b'{"workload_graph": [{"Id": 1, "runtime": -4}]}', "which cannot be"),
        (b'{"workload_graph": [{"Id": 1, "runtime": 4}, {"Id": 1}]}', "twice"),
        (
            b'{"workload_graph": [{"Id": 1, "runtime": 4, "data_deps": [2]}, {"Id": 2, "data_deps": [1]}]}',
            "in a circle",
        ),
        (b"\x10\x12\x0e\n\x06schema\xea\x01\x05", "cut off"),
        (b'{"workload_graph": [{"Id": 1, "runtime": 1%s}]}' % (b"0" * 400), "which cannot be"),
        (b'{"workload_graph": [{"Id": 1, "runtime": 1}], "ngpus": 1%s}' % (b"0" * 400), "ngpus is 1e+300"),
        (
            b'{"workload_graph": [%s]}'
            % b",".join(b'{"Id": %d, "runtime": 900000000000}' % number for number in range(10_001)),
            "together, which cannot be",
        ),
        (GOOD.replace(b'"world_size": 2', b'"world_size": 2000000'), "world_size is 2000000; it must be"),
    ],
)
def test_every_way_to_be_wrong_has_its_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert words in sentence(path)


@pytest.mark.parametrize(
    ("ts", "dur", "words"),
    [
        (1.0, -5, "less than nothing"),
        (1e18, 1, "which cannot be"),
        (1, 10**30, "which cannot be"),
        (10**400, 1, "which cannot be"),
        (1, 10**400, "which cannot be"),
        (1, -(10**400), "less than nothing"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, ts: float, dur: float, words: str) -> None:
    events = [*kernel("k", 0, 1, 1, 1), event("k2", "kernel", ts, dur, stream=1, correlation=2)]
    path = write_trace(tmp_path / "bad.json", {"traceEvents": events})
    assert words in sentence(path)
    assert "k2" in sentence(path)


def test_wrong_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(GOOD)
    for name, content, words in (
        ("plain.json.gz", GOOD, "is not gzip"),
        ("half.json.gz", packed[: len(packed) // 2], "ends in the middle"),
        ("broken.json.gz", packed[:-8] + b"\1" * 8, "cannot be unpacked"),
        ("none.json.gz", b"", "is not gzip"),
    ):
        (tmp_path / name).write_bytes(content)
        assert words in sentence(tmp_path / name)


def test_numbers_as_words_and_numbers_twice_are_taken(tmp_path: Path) -> None:
    """Some makers write numbers as strings; CUDA graphs give many kernels one correlation."""
    events = [
        event("cudaGraphLaunch", "cuda_runtime", 1, 3, correlation=5),
        event("a", "kernel", 10, 2, stream="7", correlation="5", bytes="12"),
        event("b", "kernel", 12, 2, stream=7, correlation=5),
        event("c", "kernel", 15, 2, stream="0x7f", correlation=10**40),
        event("d", "kernel", 15, 2, stream=7, correlation=10**40),
    ]
    trace = read_trace(write_trace(tmp_path / "t.json", {"traceEvents": events}))
    assert [trace.names[i] for i in trace.work.name] == ["a", "b", "d"]
    assert trace.work.launch_ns.tolist()[:2] == [1000, 1000]


@pytest.mark.parametrize("device", [True, False])
def test_numbers_without_bounds_do_not_reach_tables(tmp_path: Path, *, device: bool) -> None:
    """Step numbers, shapes and counts of elements that fit no column: as large as can be, or unknown."""
    content = document(steps=1)
    events = content["traceEvents"]
    for number in ("9" * 4000, str(10**12)):
        events.append(event(f"ProfilerStep#{number}", "user_annotation", 1e6 + 2000 + len(number), 1))
    for each in events:
        if each["name"] in ("nccl:all_reduce", "torch::autograd::AccumulateGrad"):
            each["args"]["Input Dims"] = [[2**39, 2**39]]
    call = {"In msg nelems": 10**20, "dtype": "Float", "Collective name": "allreduce", "Group size": 10**20}
    events.append(event("record_param_comms", "cpu_op", 1e6 + 590, 5, tid=2, **call))
    if not device:
        content["traceEvents"] = [e for e in events if e.get("cat") != "kernel"]
        content["traceEvents"].append(event("aten::relu", "cpu_op", 1e6 + 120, 10))
    path = write_trace(tmp_path / "t.json", content)
    whole_way(path)
    write_run([read_trace(path)], tmp_path / "run")
    assert not len(Run.open(tmp_path / "run").table("spans")["bytes"].valid)


def test_a_step_marked_on_the_device_at_no_moment_of_time(tmp_path: Path) -> None:
    content = document()
    content["traceEvents"].append(event("ProfilerStep#9", "gpu_user_annotation", 10**400, 1))
    assert "which cannot be" in sentence(write_trace(tmp_path / "t.json", content))


def mutated(draw: random.Random, text: bytes) -> bytes:
    """A few wounds, of the kinds that disks, tools and people inflict."""
    data = bytearray(text)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data))
        kind = draw.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at] = draw.randrange(256)
        elif kind == 2:
            del data[at : at + draw.randrange(1, 400)]
        elif kind == 3:
            data[at:at] = data[at : at + draw.randrange(1, 2000)]
        else:
            odd = [b"-1", b"1e300", b"NaN", b'"x"', b"null", b"[]", b"{}", b"9" * 40, b"-0.5", b"true", b"1e-300"]
            colon = data.find(b":", at)
            end = min((e for e in (data.find(b",", colon), data.find(b"}", colon)) if e > 0), default=-1)
            if colon > 0 and end > colon:
                data[colon + 1 : end] = draw.choice(odd)
        if not data:
            return b""
    return bytes(data)


@pytest.fixture(scope="module")
def bases(request: pytest.FixtureRequest) -> list[bytes]:
    """Ours, and small real ones where they are at hand."""
    folder = Path(__file__).parents[3] / "../shared/data/kineto/hta"
    real = [folder / f"{name}.json.gz" for name in ("mi250_minitoy_train", "critical_path_event_sync")]
    return [
        GOOD,
        json.dumps(document(), indent=1).encode(),
        *(gzip.decompress(p.read_bytes()) for p in real if p.is_file()),
    ]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), which=st.integers(0, 3), piece_bytes=st.sampled_from([1 << 12, 1 << 20]))
def test_mutated_traces_never_crash(
    tmp_path: Path, bases: list[bytes], monkeypatch: pytest.MonkeyPatch, seed: int, which: int, piece_bytes: int
) -> None:
    for module in (inputs, kineto_events):
        monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    path = tmp_path / "mutated.json"
    path.write_bytes(mutated(random.Random(seed), bases[which % len(bases)]))
    said = ""
    try:
        whole_way(path)
    except StallwiseError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 600
