"""Kineto traces decoded piece by piece: what is found, in any layout, and in little memory."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stallwise import inputs
from stallwise.errors import InputError
from stallwise.run.traces import kineto_events
from stallwise.run.traces._kineto import flops_of, read_kineto
from stallwise.run.traces.device_trace import DeviceTrace, WorkKind, work_of
from stallwise.run.traces.files import find_traces, read_traces
from tests.run.traces.made_traces import document, event, kernel, write_trace


@pytest.fixture
def made(tmp_path: Path) -> DeviceTrace:
    return read_kineto(write_trace(tmp_path / "rank0.json", document()))


def test_work_knows_its_kind_launch_and_bytes(made: DeviceTrace) -> None:
    kinds = [WorkKind(kind).name for kind in made.work.kind[:5]]
    assert kinds == ["COMPUTE", "COMPUTE", "COMPUTE", "COMMUNICATION", "COMPUTE"]
    assert (made.work.start_ns - made.work.launch_ns)[:5].tolist() == [10_000, 10_000, 10_000, 8_000, 115_000]
    assert (made.work.end_ns - made.work.start_ns)[:5].tolist() == [200_000, 100_000, 100_000, 200_000, 60_000]
    assert (made.rank, made.world_size, made.backend, len(made.gpus)) == (0, 2, "nccl", 2)


def test_steps_marks_gradients_and_calls(made: DeviceTrace) -> None:
    assert [step.number for step in made.steps] == [7, 8, 9]
    assert [mark.end_ns - mark.start_ns for mark in made.loader] == [100_000] * 3
    assert len(made.optimizer) == 3
    assert [gradient.shape for gradient in made.gradients[:2]] == [(1000,), (10, 20)]
    assert [(call.elements, call.bytes) for call in made.calls] == [(1200, 4800)] * 3
    # Autograd's operators overlap, so each step's backward is one stretch.
    assert len(made.backward) == 3


@pytest.mark.parametrize("piece_bytes", [1 << 10, 5000, 1 << 20])
@pytest.mark.parametrize("layout", ["compact", "indented", "events first", "bare list", "gzip", "two gzip members"])
def test_layout_and_cuts_do_not_matter(
    made: DeviceTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, piece_bytes: int
) -> None:
    for module in (inputs, kineto_events):
        monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
    content = document()
    # Text that looks like the end of an event must not mislead the cutting.
    content["traceEvents"].insert(3, event('tricky }, {"name": "x"} ], "traceEvents": [', "cpu_op", 1e6, 1))
    path = tmp_path / ("t.json.gz" if "gzip" in layout else "t.json")
    text = json.dumps(content)
    if layout == "indented":
        text = json.dumps(content, indent=2)
    elif layout == "events first":
        text = json.dumps({"traceEvents": content.pop("traceEvents"), "note": "x" * 20_000, **content})
    elif layout == "bare list":
        text = json.dumps(content["traceEvents"])
    data = text.encode()
    if layout == "gzip":
        data = gzip.compress(data)
    elif layout == "two gzip members":
        data = gzip.compress(data[:5000]) + gzip.compress(data[5000:])
    path.write_bytes(data)
    found = read_kineto(path)
    assert np.array_equal(found.work.start_ns, made.work.start_ns)
    assert [step.number for step in found.steps] == [7, 8, 9]
    assert found.rank == (None if layout == "bare list" else 0)


def test_old_names_of_categories(tmp_path: Path, made: DeviceTrace) -> None:
    text = json.dumps(document())
    for new, old in (("cpu_op", "Operator"), ("cuda_runtime", "Runtime"), ("kernel", "Kernel")):
        text = text.replace(f'"cat": "{new}"', f'"cat": "{old}"')
    (tmp_path / "old.json").write_text(text.replace("user_annotation", "Operator"))
    found = read_kineto(tmp_path / "old.json")
    assert np.array_equal(found.work.launch_ns, made.work.launch_ns)
    assert found.loader == made.loader


def test_memory_stays_far_below_the_file(tmp_path: Path) -> None:
    content = document(steps=2)
    stack = "torch/nn/modules/module.py(1190): _call_impl;" * 40
    content["traceEvents"] += [event("aten::mm", "python_function", 1e6, 1, stack=stack) for _ in range(20_000)]
    path = write_trace(tmp_path / "large.json", content)
    del content
    size = path.stat().st_size
    tracemalloc.start()
    read_kineto(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 35e6
    assert peak < size / 4


def test_without_a_device_operators_are_the_work(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#0", "user_annotation", 0, 100),
        event("aten::linear", "cpu_op", 10, 40),
        event("aten::addmm", "cpu_op", 12, 30),
        event("gloo:all_reduce", "user_annotation", 60, 20, **{"Input Dims": [[8]], "Input type": ["c10::BFloat16"]}),
    ]
    found = read_kineto(write_trace(tmp_path / "cpu.json", {"traceEvents": events}))
    assert found.on_processor
    assert found.work.kind.tolist() == [WorkKind.COMPUTE, WorkKind.COMMUNICATION]
    assert found.work.bytes.tolist() == [-1, 16]


def test_kernels_without_a_launch_are_known_as_such(tmp_path: Path) -> None:
    events = [event("k", "kernel", 5, 2, stream=1, correlation=9), *kernel("m", 1, 8, 1, 10)]
    work = read_kineto(write_trace(tmp_path / "t.json", {"traceEvents": events})).work
    assert work.launch_ns.tolist()[1] == 1000
    assert work.launch_ns.tolist()[0] < -(2**62)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", WorkKind.COMMUNICATION),
        ("ncclDevKernel_Generic(x)", WorkKind.COMMUNICATION),
        ("Memcpy HtoD (Pageable -> Device)", WorkKind.MEMORY),
        ("Memset (Device)", WorkKind.MEMORY),
        ("Stream Sync", WorkKind.OTHER),
        ("void cutlass::Kernel<gemm>()", WorkKind.COMPUTE),
    ],
)
def test_kinds_by_name(name: str, kind: WorkKind) -> None:
    assert work_of(name) is kind


def test_a_folder_gives_its_traces_in_order(tmp_path: Path) -> None:
    for rank in (1, 0):
        write_trace(tmp_path / f"rank{rank}.json.gz", document(rank))
    (tmp_path / "readme.txt").write_text("not a trace")
    assert [trace.rank for trace in read_traces(find_traces([tmp_path]))] == [0, 1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no trace"):
        find_traces([tmp_path / "empty"])


def test_real_traces_of_many_makers(shared_data: Path) -> None:
    for name, ranks, steps in (
        ("hta/resnet50_ddp_2xA100_rank0", 2, 3),
        ("tracelens/resnet18_ddp_8xMI300X_rank0", 8, 3),
        ("hta/mi250_minitoy_train", None, 2),
        ("hta/cpu_only_rank34of300", 300, 1),
    ):
        found = read_kineto(shared_data / "kineto" / f"{name}.json.gz")
        assert (found.world_size, len(found.steps)) == (ranks, steps)
        assert len(found.work)


@pytest.mark.parametrize(
    ("name", "shapes", "values", "flops"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [], 60),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], [], 60),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [], 420),
        (
            "aten::_scaled_dot_product_flash_attention",
            [[2, 4, 16, 8], [2, 4, 32, 8], [2, 4, 32, 8]],
            [],
            4 * 2 * 4 * 16 * 32 * 8,
        ),
        ("aten::mm", [[2, 3], [4, 5]], [], None),
        ("aten::mm", [[2, 3]], [], None),
        ("aten::mm", "x", [], None),
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], ["", "", "", "[0, 0]", "[1]", "[1]", "False"], None),
        ("aten::convolution", [[1, 3, 8, 8], [4, 3, 3, 3]], None, None),
    ],
)
def test_by_formula_or_not_at_all(name: str, shapes: Any, values: Any, flops: int | None) -> None:
    assert flops_of(name, shapes, values) == flops


def test_a_real_trace_counts_as_torch_does(tmp_path: Path) -> None:
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
    images = torch.randn(4, 3, 32, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(images)
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    with FlopCounterMode(display=False) as counter:
        model(images)
    found = [count for _, count in read_kineto(tmp_path / "t.json").flops]
    assert sum(count or 0 for count in found) == counter.get_total_flops()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
def test_attention_counts_once_however_torch_computes_it(tmp_path: Path, backend: str) -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    from torch.profiler import ProfilerActivity, profile

    queries, keys = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 32, 8)
    with sdpa_kernel(getattr(SDPBackend, backend)), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        scaled_dot_product_attention(queries, keys, keys)
    p.export_chrome_trace(str(tmp_path / "t.json"))
    assert sum(count or 0 for _, count in read_kineto(tmp_path / "t.json").flops) == 4 * 2 * 4 * 16 * 32 * 8
