"""A question about a run is answered before it is forgotten: `stallwise whatif` from a cold process."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Result, command_s, take_turns
from stallwise.run import BatchRow, JobRecord, PhaseRecord, RankWriter, StepRow, WorldRecord, join, start_run
from stallwise.run.manifest import ModelRecord, new_manifest
from stallwise.run.schema import GradientRow, LayerRow

ROUNDS = 5
BAR_S = 1.5
TENSORS, RANKS, BLOCKS, STEPS = 160, 2, 12, 8
PHASES = {"as is": 0.120, "replay from host": 0.118, "no exchange": 0.100}


def make_run(folder: Path) -> None:
    """Two ranks, a network of 160 gradients, as many steps as a profile of a minute has."""
    phases = tuple(PhaseRecord(name=name, differs="") for name in PHASES)
    world = WorldRecord(world_size=RANKS, nnodes=1)
    start_run(folder, new_manifest(JobRecord(script="train.py", launcher="torchrun"), world=world, phases=phases))
    for rank in range(RANKS):
        with RankWriter.open(folder, rank, backend="nccl") as writer:
            for step in _steps(rank):
                writer.append("steps", step)
                writer.append("batches", _batch(rank, step))
            for place in range(TENSORS):
                writer.append("layers", _layer(rank, place))
                writer.append("gradients", _gradient(rank, place))
            writer.model(
                ModelRecord(
                    parameters=25_000_000,
                    trained_parameters=25_000_000,
                    gradient_tensors=TENSORS,
                    gradient_bytes=TENSORS * 640_000,
                    layers=TENSORS,
                    micro_batches=1,
                    step_s=0.1,
                    forward_s=0.03,
                    backward_s=0.06,
                    update_s=0.01,
                )
            )
    join(folder, exit_code=0)


def _steps(rank: int) -> Iterator[StepRow]:
    number = 0
    for block in range(BLOCKS):
        for phase, length_s in PHASES.items():
            for _ in range(STEPS):
                wobble_s = 1e-4 * ((number * 7) % 11)
                yield StepRow(rank, number, phase, block, 0.12 * number, length_s + wobble_s, 0.001, 64, None)
                number += 1


def _batch(rank: int, step: StepRow) -> BatchRow:
    return BatchRow(
        rank, step.step % 4, step.step, 0.2, step.start_s, 0.19, 0.001, 0.01, 6_000_000, 64, step.phase, step.block
    )


def _layer(rank: int, place: int) -> LayerRow:
    begin_s, length_s = 0.03 * place / TENSORS, 0.03 / TENSORS
    return LayerRow(rank, place, f"layer{place}", "Conv2d", 1, begin_s, length_s, None, 2 * length_s, 640_000)


def _gradient(rank: int, order: int) -> GradientRow:
    ready_s = 0.06 * (order + 1) / TENSORS
    return GradientRow(rank, order, f"layer{TENSORS - 1 - order}.weight", 160_000, 640_000, ready_s, order // 40)


def measure() -> list[Result]:
    """Median of five cold processes after one; the run lies in the page cache, the program's code is compiled."""
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        make_run(run)
        asked = ("--gpus", "64", "--gpus-per-node", "8", "--network", "100gbit")
        times = take_turns(
            {
                "python -c pass": lambda: command_s(python, "-c", "pass"),
                "whatif": lambda: command_s(python, "-m", "stallwise", "whatif", str(run), *asked),
            },
            ROUNDS,
        )
    ours, peer = times["whatif"], times["python -c pass"]
    return [
        Result(
            claim=f"whatif with a curve to 1,024 GPUs, {TENSORS} gradients, link fitted to the run ≤ {BAR_S:g} s",
            measured=f"{ours}; python -c pass {peer}; ratio {ours.median_s / peer.median_s:.1f}",
            held=ours.median_s <= BAR_S,
        )
    ]
