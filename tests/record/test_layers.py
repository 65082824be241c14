"""The layers phase: per-layer times, the moment gradients become ready, buckets, features.

Tolerance of times, written before the first measurement: 3 % of the backward pass, as its own clock and the bare
script's have it. The layers sleep, so a busy machine lengthens them a little: times are judged by `make truth`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.model.exchange.merge import ddp_buckets, gradients_of, message_bytes
from stallwise.run import Run
from tests.conftest import ROOT, texts
from tests.figures import Figures
from tests.program import run_program

JOB = Path(__file__).with_name("jobs") / "layered.py"
WITHIN = 0.03
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}


class Measured(NamedTuple):
    profile: dict[str, Any]
    run: Run

    def gradients(self) -> list[dict[str, Any]]:
        table = self.run.table("gradients")
        return list(table.filter(table["rank"].equals(0)).sort("order").dicts())


def profiled(folder: Path, *options: str, ranks: int = 0, seconds: float = 0.5) -> Measured:
    launcher = ("--nproc-per-node", str(ranks)) if ranks else ()
    command = ("profile", "--json", "--max-time", f"{seconds}s", "-o", str(folder), *launcher)
    done = run_program([*command, str(JOB), *options], Path.cwd(), ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return Measured(json.loads(done.stdout), Run.open(folder))


def bare(*options: str) -> dict[str, float]:
    command = [sys.executable, str(JOB), *options, "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True, timeout=250)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.truth
def test_gradients_fill_backward_and_end_with_it(tmp_path: Path, figures: Figures) -> None:
    truth, found = bare(), profiled(tmp_path / "run")
    model = found.run.manifest.model
    assert model is not None
    assert model.backward_s is not None
    gradients = found.gradients()
    ready = [row["ready_s"] for row in gradients]
    gaps = [later - earlier for earlier, later in zip([0.0, *ready], ready, strict=False)]
    figures.judge("gaps between gradients fill backward", sum(gaps), model.backward_s, rel=WITHIN)
    figures.judge("the last gradient ends backward", ready[-1], model.backward_s, rel=WITHIN)
    for name in ("forward_s", "backward_s"):
        figures.judge(f"layers: {name}", getattr(model, name), truth[name], rel=WITHIN)
    slow = max(range(6), key=lambda n: gaps[n])
    assert gradients[slow]["name"] == "blocks.3.weight"


def test_a_slow_layer_is_named_and_features_are_counted(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "--slow", "1")
    assert found.profile["layers"][0]["name"] == "blocks.1"
    gradients = found.gradients()
    assert [row["name"] for row in gradients] == [f"blocks.{n}.weight" for n in (5, 4, 3, 2, 1, 0)]
    ready = [row["ready_s"] for row in gradients]
    assert ready == sorted(ready)
    model = found.run.manifest.model
    assert model is not None
    assert model.parameters == model.trained_parameters == 971_010
    assert (model.gradient_tensors, model.gradient_bytes, model.layers) == (6, 4 * 971_010, 6)
    assert (model.precision, model.compiled, model.checkpointed, model.micro_batches) == ("fp32", False, False, 1)
    assert model.activation_bytes is None, "this network keeps nothing but its weights"


@pytest.mark.truth
def test_a_slow_layer_takes_its_time(tmp_path: Path, figures: Figures) -> None:
    first, second = profiled(tmp_path / "run", "--slow", "1").profile["layers"][:2]
    figures.judge("slow layer: forward", first["forward_s"], 0.020, rel=0.1)
    figures.judge("slow layer: backward", first["backward_s"], 0.030, rel=0.1)
    figures.at_most("the next slowest layer: forward", second["forward_s"], first["forward_s"] / 4)


def test_checkpointing_is_seen_and_calls_a_layer_once(tmp_path: Path) -> None:
    found = profiled(tmp_path / "run", "--how", "checkpoint")
    model = found.run.manifest.model
    assert model is not None
    assert model.checkpointed
    assert found.run.table("layers")["calls"].to_list() == [1] * 6


@pytest.mark.truth
def test_checkpointing_does_not_double_the_forward_pass(tmp_path: Path, figures: Figures) -> None:
    model = profiled(tmp_path / "run", "--how", "checkpoint").run.manifest.model
    assert model is not None
    assert model.forward_s is not None
    assert model.backward_s is not None
    figures.judge("checkpointed layers: forward, once", model.forward_s, 0.030, rel=0.15)
    figures.judge("checkpointed layers: backward with forward again", model.backward_s, 0.030 + 0.050, rel=0.15)


def test_accumulation_is_counted_in_micro_batches(tmp_path: Path) -> None:
    model = profiled(tmp_path / "run", "--how", "accumulate").run.manifest.model
    assert model is not None
    assert model.micro_batches == 2


@pytest.mark.truth
def test_accumulated_passes_add_up(tmp_path: Path, figures: Figures) -> None:
    model = profiled(tmp_path / "run", "--how", "accumulate").run.manifest.model
    assert model is not None
    assert model.forward_s is not None
    figures.judge("accumulated layers: forward, twice", model.forward_s, 2 * 0.030, rel=0.15)


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
    assert any("compiled" in note for note in texts(found.profile["notes"]))


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
    job = open_run(run).job
    gradients = gradients_of(job.trace)
    limits = {"first_bytes": job.overlap.first_bucket_bytes, "bucket_bytes": job.overlap.bucket_bytes}
    return list(message_bytes(gradients, ddp_buckets(gradients, **limits)))
