"""FLOPs from shapes, against torch's own counter."""

import json
from pathlib import Path
from typing import Any

import pytest

from stallwise.run.readers.kineto import read_kineto
from stallwise.run.readers.kineto_flops import flops_of


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
