"""Predictions: what a target leaves open, and runs whose intervals are as wide as they can be."""

from dataclasses import replace

import numpy as np
import pytest

import stallwise
from stallwise.analysis.compute import compute_seconds, compute_time
from stallwise.analysis.prediction import predict
from stallwise.analysis.target import Target
from stallwise.errors import InputError
from stallwise.hardware.catalog import load_catalog
from tests.conftest import ROOT


def test_a_step_whose_lower_bound_is_zero_has_no_highest_speedup() -> None:
    """A profile that was killed after a few blocks: the interval of compute reaches down to 0."""
    analysis = stallwise.open_run(ROOT / "examples/runs/images")
    model = analysis.model()
    job = replace(model.job, compute_factors=(0.0, 2.0), work=None)
    prediction = predict(replace(model, job=job), Target(gpus=1), analysis.links)
    assert prediction.low_s == 0
    assert prediction.speedup is not None
    assert prediction.speedup_high is None


def test_nodes_of_a_named_gpu_hold_up_to_eight_with_the_cores_per_gpu_of_the_run() -> None:
    job = stallwise.open_run(ROOT / "examples/runs/images")
    one_node, two_nodes = job.on(gpu="H100", gpus=8), job.on(gpu="H100", gpus=16, network_bytes_per_s=12.5e9)
    assert (one_node.setup.gpus, one_node.gpus_per_node) == (8, 8)
    assert (two_nodes.setup.gpus, two_nodes.gpus_per_node) == (16, 8)
    pair = job.on(gpu="H100", gpus=2)
    assert pair.setup.cores is not None
    assert one_node.setup.cores == 4 * pair.setup.cores, "the loader's cores grow with the GPUs"
    assert one_node.step_s > pair.step_s, "its storage does not"
    assert any("share its storage" in note for note in one_node.assumptions)
    with pytest.raises(InputError, match="network"):
        job.on(gpu="H100", gpus=16)


def test_a_faster_gpu_does_not_launch_faster() -> None:
    """80 of 100 ms of a step are launching: H200 makes the device's part shorter, and the step hardly."""
    analysis = stallwise.open_run(ROOT / "examples/runs/images")
    model = replace(analysis.model(), source=load_catalog().gpu("A100"), launching_s=0.0, no_transfer="", spread=None)
    bound = replace(model, launching_s=0.97 * model.measured_compute_s)
    kinds = {
        kind: compute_time(bound if kind == "bound" else model, load_catalog().gpu("H200")) for kind in ("", "bound")
    }
    one = np.zeros(1, dtype=np.int64), np.ones(1), np.ones(1)
    free, launched = (float(compute_seconds([kinds[kind]], *one)[0]) for kind in ("", "bound"))
    assert free < 0.8 * model.measured_compute_s
    assert 0.97 * model.measured_compute_s <= launched <= model.measured_compute_s
    same = compute_seconds([compute_time(bound, load_catalog().gpu("A100"))], *one)
    assert float(same[0]) == pytest.approx(model.measured_compute_s)
