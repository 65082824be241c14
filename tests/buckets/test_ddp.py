"""A bucket plan in real DDP: gradients are plain DDP's, buckets are the plan's, and wrong plans are named."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from stallwise.buckets import BucketPlan, GradientBucket, applied_plan, planned_ddp, read_plan, write_plan
from stallwise.buckets._ddp import Way
from stallwise.errors import InputError
from tests.record.jobs import plain_ranks

SCRIPT = str(Path(__file__).with_name("same_gradients.py"))


def test_gradients_are_those_of_plain_ddp_bit_for_bit() -> None:
    """Two real gloo ranks, four steps, both ways; with frozen parameters, and with two dtypes in the hook."""
    said = json.loads(plain_ranks(2, SCRIPT))
    assert set(said) == {"limits", "hook", "hook mixed"}
    for way, found in said.items():
        assert found["exact"], f"{way}: {found['worst']}"
        assert found["before"] is None, "torch learns the order in the first step"
        assert found["as_planned"], way
        assert found["buckets"] == 3


@pytest.mark.soak
def test_with_three_ranks_only_rounding_differs() -> None:
    for way, found in json.loads(plain_ranks(3, SCRIPT)).items():
        assert found["worst"] < 1e-4, way


def plan(*buckets: tuple[str, ...]) -> BucketPlan:
    return BucketPlan(
        source="run", gpus=2, buckets=tuple(GradientBucket(parameters=names, bytes=4) for names in buckets)
    )


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    made = plan(("b", "a"), ("c",))
    assert read_plan(write_plan(made, tmp_path / "plan.json")) == made
    assert made.parameters == {"a", "b", "c"}
    assert made.bytes == 8


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a bucket plan"),
        ('{"buckets": 3}', "is not a bucket plan"),
        ('{"source": "x", "gpus": 2, "buckets": [], "other": 1}', "is not a bucket plan"),
        ('{"source": "x", "gpus": 2, "buckets": []}', "no buckets"),
        ('{"version": 2, "source": "x", "gpus": 2, "buckets": []}', "version 2"),
        (
            '{"source": "x", "gpus": 2, "buckets": [{"parameters": ["a"], "bytes": 1}, '
            '{"parameters": ["a"], "bytes": 1}]}',
            "in two buckets",
        ),
    ],
)
def test_a_file_that_is_no_plan_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_plan(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_plan(tmp_path / "none.json")


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("way", ["limits", "hook"])
def test_a_wrapped_module_has_the_names_of_the_bare_one(one_rank: None, way: Way) -> None:
    """As `torch.compile(model)` and a model with checkpointed layers are handed to DDP."""
    net = nn.Sequential(nn.Linear(3, 4), checkpoint_wrapper(nn.Linear(4, 2)))
    compiled = torch.compile(net, backend="eager")
    names = [name for name, _ in compiled.named_parameters()]
    assert names[-1] == "_orig_mod.1._checkpoint_wrapped_module.bias"
    model = planned_ddp(compiled, plan(("1.bias", "1.weight"), ("0.bias", "0.weight")), way=way)
    assert applied_plan(model).planned_bytes == (4 * (2 + 8), 4 * (4 + 12))


def test_names_that_only_look_wrapped_are_the_modules_own(one_rank: None) -> None:
    """A module that calls a part of itself `module`, and has a parameter of the same name beside it."""
    net = nn.Linear(2, 2)
    net.module = nn.Linear(2, 2, bias=False)
    model = planned_ddp(net, plan(("module.weight", "bias"), ("weight",)), way="hook")
    assert applied_plan(model).planned_bytes == (24, 16)
    with pytest.raises(InputError, match=r"1 parameter not in the plan \(module.weight\)"):
        planned_ddp(net, plan(("weight", "bias")))


def test_a_plan_of_another_model_is_refused() -> None:
    net = nn.Linear(2, 2)
    with pytest.raises(
        InputError, match=r"1 parameter not in the plan \(bias\); 1 parameter not trained here \(gone\)"
    ):
        planned_ddp(net, plan(("weight",), ("gone",)))
    whole = plan(("bias", "weight"))
    with pytest.raises(InputError, match="find_unused_parameters"):
        planned_ddp(net, whole, find_unused_parameters=True)
    with pytest.raises(InputError, match="bucket_cap_mb"):
        planned_ddp(net, whole, bucket_cap_mb=3)
