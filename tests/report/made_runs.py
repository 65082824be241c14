"""Runs made by hand, with every table filled and times that are known."""

from collections.abc import Iterator
from pathlib import Path

from stallwise.run import BatchRow, EventRow, JobRecord, PhaseRecord, RankWriter, StepRow, WorldRecord, join, start_run
from stallwise.run.manifest import Manifest, ModelRecord, new_manifest
from stallwise.run.schema import CollectiveRow, GradientRow, LayerRow, ObservedRow, SpanRow
from tests.run.made import NODE

STEP_S = 0.1
PHASES = ("as is", "replay from host", "no exchange")
STEPS_PER_BLOCK = 4
BLOCKS = 3
RANKS = 4
APART_S = 1000.0
"""How far the clock of node 1 lies behind that of node 0."""

MODEL = ModelRecord(
    parameters=11_689_512, trained_parameters=11_689_512, gradient_tensors=40, gradient_bytes=46_758_048, layers=20,
    precision="fp32", flops_per_step=3.5e11, activation_bytes=200 * 2**20, micro_batches=1, step_s=0.09, forward_s=0.03,
    backward_s=0.05, update_s=0.01, bucket_bytes=(4_000_000, 25_000_000, 17_758_048),
)  # fmt: skip


def make_full_run(folder: Path, *, began_s: float = 5.0, joined: bool = True, blocks: int = BLOCKS) -> Manifest | None:
    """Two nodes of two ranks; node 1 began `APART_S` later by its clock. Rank 3 computes longest."""
    manifest = new_manifest(
        JobRecord(script="train.py", launcher="torchrun"),
        world=WorldRecord(world_size=RANKS, nnodes=2),
        phases=tuple(PhaseRecord(name=name, differs=f"what {name} changes") for name in PHASES),
    )
    start_run(folder, manifest)
    for rank in range(RANKS):
        _write(folder, rank, began_s, blocks)
    return join(folder, exit_code=0) if joined else None


def _write(folder: Path, rank: int, began_s: float, blocks: int) -> None:
    zero_s = began_s + (0.0 if rank >= 2 else APART_S)
    with RankWriter.open(folder, rank, node=rank // 2, hardware=NODE, backend="gloo") as writer:
        for row in _steps(rank, zero_s, blocks):
            writer.append("steps", row)
            for worker in range(2):
                writer.append("batches", _batch(rank, worker, row))
        for event in _events(rank, zero_s):
            writer.append("events", event)
        for span in _spans(rank, zero_s):
            writer.append("spans", span)
        writer.append("collectives", CollectiveRow(rank, 2, "all_reduce", 3, 4096, 0.002))
        writer.append("observed", ObservedRow(rank, 0, 4, "compute", 0.28))
        for layer in layers(rank):
            writer.append("layers", layer)
        for gradient in gradients(rank):
            writer.append("gradients", gradient)
        writer.model(MODEL)


def _steps(rank: int, zero_s: float, blocks: int) -> Iterator[StepRow]:
    """Rounds of one block per phase. Steps of ranks that exchange end together; without it, rank 3 takes longest."""
    number, now_s = 0, zero_s
    for block in range(blocks):
        for phase in PHASES:
            for nth in range(STEPS_PER_BLOCK):
                alone = phase == "no exchange"
                length_s = 0.07 + 0.002 * rank if alone else STEP_S
                wait_s = 0.02 if phase == "as is" else 0.00001
                yield StepRow(rank, number, phase, block, now_s, length_s, wait_s, 32, None, nth > 0)
                number += 1
                now_s += STEP_S if alone else length_s
            now_s += 0.05  # switching


def _batch(rank: int, worker: int, step: StepRow) -> BatchRow:
    return BatchRow(
        rank, worker, 2 * step.step + worker, 0.06, step.start_s + 0.01 * worker, 0.05, 0.001, 0.004, 500_000, 16,
        step.phase if step.kept else None, step.block if step.kept else None,
    )  # fmt: skip


def _events(rank: int, zero_s: float) -> Iterator[EventRow]:
    yield EventRow(rank, "worker_startup", zero_s - 0.5, 0.3, 0, "2 workers")
    yield EventRow(rank, "checkpoint", zero_s + 0.15, 0.04, 1, "save")
    yield EventRow(rank, "validation", zero_s + 0.17, 0.04, 1)  # begins before the checkpoint is over
    yield EventRow(rank, "preemption_notice", zero_s + 0.3, None, 3, "a moment, no duration")


def _spans(rank: int, zero_s: float) -> Iterator[SpanRow]:
    """One traced step: layers inside layers, and two collectives in flight at once."""
    yield SpanRow(rank, 2, "copy", "batch to device", zero_s + 0.2, 0.005, 3_000_000)
    yield SpanRow(rank, 2, "forward", "forward", zero_s + 0.205, 0.03)
    yield SpanRow(rank, 2, "layer", "block", zero_s + 0.205, 0.03)
    yield SpanRow(rank, 2, "layer", "block.linear", zero_s + 0.206, 0.01)
    # GPU events are read to half a microsecond: it seems to outlast the layer around it.
    yield SpanRow(rank, 2, "layer", "block.last", zero_s + 0.216, 0.019_000_7)
    yield SpanRow(rank, 2, "backward", "backward", zero_s + 0.235, 0.05)
    yield SpanRow(rank, 2, "collective", "all_reduce", zero_s + 0.25, 0.02, 25_000_000)
    yield SpanRow(rank, 2, "collective", "all_reduce", zero_s + 0.26, 0.02, 17_758_048)
    yield SpanRow(rank, 2, "optimizer", "update", zero_s + 0.285, 0.01)


def layers(rank: int) -> Iterator[LayerRow]:
    """Twenty layers; `layer4.conv` is slowest in forward and backward together."""
    for place in range(20):
        slow = 6.0 if place == 11 else 1.0
        name = "layer4.conv" if place == 11 else f"layer{place // 4}.{place % 4}.conv"
        yield LayerRow(
            rank, place, name, "Conv2d", 1, 0.001 * place, 0.001 * slow * (1 + 0.01 * place), 0.05 - 0.002 * place,
            0.0018 * slow, 1_000_000, 4_000_000,
        )  # fmt: skip


def gradients(rank: int) -> Iterator[GradientRow]:
    """Forty gradients in three buckets, ready one after another over the backward pass."""
    for order in range(40):
        bucket = 0 if order < 4 else 1 if order < 24 else 2
        size = {0: 1_000_000, 1: 1_250_000, 2: 1_109_878}[bucket]
        yield GradientRow(rank, order, f"layer{39 - order}.weight", size // 4, size, 0.001 + 0.00125 * order, bucket)
