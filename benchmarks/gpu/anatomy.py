"""Layers, gradients, MFU and the cost of being profiled, on a GPU: python -m benchmarks.gpu.anatomy [model …]

Bars (written before the measurement): the last gradient is ready within 3 % of the end of backward; forward, backward
and update fill the step of the layers phase to within 10 %; a layer slowed down on the stream is named as the slowest;
light mode costs at most 1 % (median of interleaved pairs). The cost of the full profile is printed.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.train import BATCH

JOB = str(Path(__file__).with_name("train.py"))
SLOW = {
    "resnet50": "layer3.2.conv2",
    "vgg16": "features.19",
    "vit_b_16": "encoder.layers.encoder_layer_5.mlp.0",
    "gpt2": "transformer.h.7.mlp.c_fc",
}
WORKERS = "12"
PAIRS = 3
SECONDS = "6"


def speed(model: str, *before: str) -> float:
    """Samples per second by the script's own clock; `before` is what it runs under."""
    command = [*(before or (sys.executable,)), JOB, "--model", model, "--workers", WORKERS, "--seconds", SECONDS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith('{"samples_per_s"'))
    return float(json.loads(line)["samples_per_s"])


def profiled(model: str, folder: Path, *options: str) -> dict[str, object]:
    """The profile of the job as JSON."""
    command = ["profile", "--json", "--no-cold", "--max-time", "8s", "-o", str(folder), JOB, "--model", model]
    done = subprocess.run(
        [sys.executable, "-m", "stallwise", *command, "--workers", WORKERS, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def anatomy(model: str, folder: Path) -> float:
    """Print what the profile says; the bare step it should have seen is returned in samples per second."""
    from stallwise.run.reader import Run

    found = profiled(model, folder / "run")
    record = Run.open(folder / "run").manifest.model
    ready = Run.open(folder / "run").table("gradients")["ready_s"].max()
    assert record is not None
    passes = (record.forward_s or 0) + (record.backward_s or 0) + (record.update_s or 0)
    print(
        f"{model}: {record.parameters / 1e6:.1f} M parameters, {record.precision}, "
        f"{(record.flops_per_step or 0) / BATCH[model] / 1e9:.2f} GFLOP a sample, activations "
        f"{(record.activation_bytes or 0) / BATCH[model] / 1e6:.1f} MB a sample, MFU {found['mfu']}"
    )
    print(
        f"  forward {record.forward_s:.5f} s, backward {record.backward_s:.5f} s, update {record.update_s:.5f} s: "
        f"{passes / (record.step_s or 1):.1%} of the layers-phase step of {record.step_s:.5f} s; last gradient ready "
        f"at {ready / record.backward_s:.1%} of backward; as-is step {found['step_s']:.5f} s"
    )
    print("  split:", {k: v and round(v["s"] * 1e3, 3) for k, v in found["split"].items()})  # type: ignore[attr-defined]
    slowed = profiled(model, folder / "slow", "--slow-layer", SLOW[model])
    print("  slowest of the slowed:", slowed["layers"][0], "wanted", SLOW[model], flush=True)  # type: ignore[index]
    return BATCH[model] / float(found["step_s"])  # type: ignore[arg-type]


def main() -> None:
    """All models."""
    for model in sys.argv[1:] or list(BATCH):
        with tempfile.TemporaryDirectory() as folder:
            seen = anatomy(model, Path(folder))
            light = [sys.executable, "-m", "stallwise", "profile", "--light", "-o"]
            pairs = [(speed(model), speed(model, *light, f"{folder}/light{n}")) for n in range(PAIRS)]
        costs = [bare / watched - 1 for bare, watched in pairs]
        bare = statistics.median(bare for bare, _ in pairs)
        print(
            f"  light mode: {statistics.median(costs):+.2%} ({min(costs):+.2%} to {max(costs):+.2%}) a step; "
            f"bare {bare:.0f} samples/s, as-is steps of the full profile {bare / seen - 1:+.2%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
