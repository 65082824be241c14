"""The layers phase: per-layer times, the moment gradients become ready, buckets, features.

Tolerance of times, written before the first measurement: 3 % of the backward pass, as its own clock and the bare
script's have it. The layers sleep, so a busy machine lengthens them a little; a case that misses is measured twice.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stallwise.model.merge import ddp_buckets, gradients_of, message_bytes
from stallwise.record.job import job_of
from stallwise.run import Run
from tests.conftest import ROOT

JOB = Path(__file__).with_name("jobs") / "layered.py"
WITHIN = 0.03
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Measured(NamedTuple):
    profile: dict[str, Any]
    run: Run

    def gradients(self) -> list[dict[str, Any]]:
        frame = self.run.table("gradients")
        return frame.filter(frame["rank"] == 0).sort("order").to_dicts()


def profiled(folder: Path, *options: str, ranks: int = 0, seconds: float = 0.5) -> Measured:
    launcher = ("--nproc-per-node", str(ranks)) if ranks else ()
    command = ("-m", "stallwise", "profile", "--json", "--max-time", str(seconds), "-o", str(folder), *launcher)
    done = subprocess.run(
        [sys.executable, *command, str(JOB), *options], capture_output=True, text=True, env=ENVIRONMENT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return Measured(json.loads(done.stdout), Run.open(folder))


def bare(*options: str) -> dict[str, float]:
    command = [sys.executable, str(JOB), *options, "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=60)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.alone
def test_gradients_come_in_reverse_and_end_with_backward(tmp_path: Path) -> None:
    misses = []
    for attempt in range(2):
        truth, found = bare(), profiled(tmp_path / str(attempt))
        model = found.run.manifest.model
        assert model is not None
        assert model.backward_s is not None
        gradients = found.gradients()
        assert [row["name"] for row in gradients] == [f"blocks.{n}.weight" for n in (5, 4, 3, 2, 1, 0)]
        ready = [row["ready_s"] for row in gradients]
        gaps = [later - earlier for earlier, later in zip([0.0, *ready], ready, strict=False)]
        assert sum(gaps) == pytest.approx(model.backward_s, rel=WITHIN), "gaps fill backward"
        assert ready[-1] == pytest.approx(model.backward_s, rel=WITHIN), "the last one ends it"
        slow = max(range(6), key=lambda n: gaps[n])
        assert gradients[slow]["name"] == "blocks.3.weight"
        misses = [
            f"{name}: {getattr(model, name):.4f} instead of {truth[name]:.4f}"
            for name in ("forward_s", "backward_s")
            if getattr(model, name) != pytest.approx(truth[name], rel=WITHIN)
        ]
        if not misses:
            return
    pytest.fail("; ".join(misses))


@pytest.mark.alone
def test_a_slow_layer_is_named_and_features_are_counted(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "--slow", "1")
    first, second = found.profile["layers"][:2]
    assert first["name"] == "blocks.1"
    assert first["forward_s"] == pytest.approx(0.020, rel=0.1)
    assert first["backward_s"] == pytest.approx(0.030, rel=0.1)
    assert second["forward_s"] < first["forward_s"] / 4
    model = found.run.manifest.model
    assert model is not None
    assert model.parameters == model.trained_parameters == 971_010
    assert (model.gradient_tensors, model.gradient_bytes, model.layers) == (6, 4 * 971_010, 6)
    assert (model.precision, model.compiled, model.checkpointed, model.micro_batches) == ("fp32", False, False, 1)
    assert model.activation_bytes is None, "this network keeps nothing but its weights"


@pytest.mark.alone
def test_checkpointing_does_not_double_the_forward_pass(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "--how", "checkpoint")
    model = found.run.manifest.model
    assert model is not None
    assert model.forward_s is not None
    assert model.backward_s is not None
    assert model.checkpointed
    assert model.forward_s == pytest.approx(0.030, rel=0.15), "once"
    assert model.backward_s == pytest.approx(0.030 + 0.050, rel=0.15), "with the forward that is run again"
    assert found.run.table("layers")["calls"].to_list() == [1] * 6


@pytest.mark.alone
def test_accumulation_is_counted_in_micro_batches(tmp_path: Path) -> None:
    model = profiled(tmp_path / "run", "--how", "accumulate").run.manifest.model
    assert model is not None
    assert model.micro_batches == 2
    assert model.forward_s == pytest.approx(2 * 0.030, rel=0.15)


def test_a_compiled_model_has_sizes_but_no_times(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "--how", "compile")
    model = found.run.manifest.model
    assert model is not None
    assert model.compiled
    assert model.backward_s is None
    assert [(row["name"], row["elements"], row["ready_s"]) for row in found.gradients()] == [
        ("2.bias", 4, None),
        ("2.weight", 16, None),
        ("0.bias", 4, None),
        ("0.weight", 16, None),
    ]
    assert any("compiled" in note for note in found.profile["notes"])


def test_buckets_are_those_torch_built(tmp_path: Path) -> None:
    """Recorded from DDP's own log; 300,000 and 400,000 numbers are over a limit of 1 MB each, the small ones share."""
    found = profiled(tmp_path / "run", "--bucket-mb", "1", ranks=2)
    gradients = found.gradients()
    buckets: dict[int, list[str]] = {}
    for row in gradients:
        buckets.setdefault(row["bucket"], []).append(row["name"].split(".")[1])
    assert buckets == {0: ["5", "4"], 1: ["3", "2"], 2: ["1", "0"]}
    model = found.run.manifest.model
    assert model is not None
    assert model.bucket_bytes == tuple(4 * size for size in (400_010, 370_000, 201_000))
    assert modelled_buckets(found.run) == list(model.bucket_bytes), "the model's rule is torch's"


def modelled_buckets(run: Run) -> list[float]:
    """The buckets that a prediction from this run assumes."""
    job = job_of(run)
    gradients = gradients_of(job.trace)
    limits = {"first_bytes": job.overlap.first_bucket_bytes, "bucket_bytes": job.overlap.bucket_bytes}
    return list(message_bytes(gradients, ddp_buckets(gradients, **limits)))
