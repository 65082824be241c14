"""Buckets of an imported DDP job: those the trace shows, and a plan that real DDP carries out."""

import json
from pathlib import Path

import pytest
from torch import nn

from stallwise.buckets import Bucket, BucketPlan, planned_ddp, read_plan
from stallwise.errors import InputError
from stallwise.model.merge import MIB
from stallwise.run.reader import Run
from tests.conftest import Cli
from tests.record.jobs import plain_ranks

SCRIPT = str(Path(__file__).with_name("traced_job.py"))


def test_a_plan_from_a_trace_is_carried_out(ask: Cli, tmp_path: Path) -> None:
    """Recorded by torch.profiler on two gloo ranks with buckets of 1 MiB, planned for a slow network, run again."""
    plain_ranks(2, SCRIPT, "trace", str(tmp_path / "traces"))
    ask("trace", "import", "traces", "-o", "run", "--gpus-per-node", "1")
    model = Run.open(tmp_path / "run").manifest.model
    assert model is not None
    assert (model.first_bucket_bytes, model.bucket_cap_bytes) == (MIB, MIB)
    assert len(model.bucket_bytes) == 4
    asked = ("whatif", "run", "--network", "100mbit", "--latency", "10ms", "--best-buckets", "plan.json", "--json")
    found = json.loads(ask(*asked).stdout)["best_buckets"]
    assert found["own_buckets"] == 4
    # A message that takes 20 ms before its first byte is worth waiting for.
    assert found["worthwhile"]
    planned = read_plan(tmp_path / "plan.json")
    assert len(planned.buckets) < 4
    assert planned.bytes == model.gradient_bytes
    assert not planned.named
    done = json.loads(plain_ranks(2, SCRIPT, "plan", str(tmp_path / "plan.json")))
    assert done == {"way": "limits", "real_bytes": [bucket.bytes for bucket in planned.buckets], "as_planned": True}


@pytest.mark.parametrize(
    ("name", "buckets", "shapes"),
    [("hta/resnet50_ddp_2xA100_rank0", 5, False), ("tracelens/resnet18_ddp_8xMI300X_rank0", 2, True)],
)
def test_real_jobs(ask: Cli, shared_data: Path, tmp_path: Path, name: str, buckets: int, shapes: bool) -> None:
    ask("trace", "import", str(shared_data / "kineto" / f"{name}.json.gz"), "-o", "run", "--gpus-per-node", "1")
    model = Run.open(tmp_path / "run").manifest.model
    assert model is not None
    assert (model.first_bucket_bytes, model.bucket_cap_bytes) == (MIB, 25 * MIB)
    asked = ("whatif", "run", "--network", "10gbit", "--latency", "10ms", "--best-buckets", "plan.json")
    said = ask(*asked, "--no-curve").stdout
    assert f"{buckets} as they are" in said
    assert ("could be joined, not cut" in said) != shapes
    assert read_plan(tmp_path / "plan.json").bytes == model.gradient_bytes


def test_a_plan_without_names_is_for_limits_and_for_as_many_bytes() -> None:
    plan = BucketPlan(source="t.json", gpus=2, buckets=(Bucket(parameters=("bucket 0",), bytes=24),), named=False)
    with pytest.raises(InputError, match="has 24 bytes of gradients, this one 8"):
        planned_ddp(nn.Linear(1, 1), plan)
    with pytest.raises(InputError, match="has no names of parameters"):
        planned_ddp(nn.Linear(2, 2), plan, way="hook")
