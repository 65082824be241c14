"""A bucket plan in real DDP: gradients are plain DDP's, buckets are the plan's, and wrong plans are named."""

import json
from pathlib import Path

import pytest
from torch import nn

from stallwise.buckets import Bucket, BucketPlan, planned_ddp, read_plan, write_plan
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
    return BucketPlan(source="run", gpus=2, buckets=tuple(Bucket(parameters=names, bytes=4) for names in buckets))


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    made = plan(("b", "a"), ("c",))
    assert read_plan(write_plan(made, tmp_path / "plan.json")) == made
    assert made.parameters == {"a", "b", "c"}
    assert made.bytes == 8


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is no bucket plan"),
        ('{"buckets": 3}', "is no bucket plan"),
        ('{"source": "x", "gpus": 2, "buckets": [], "other": 1}', "is no bucket plan"),
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
