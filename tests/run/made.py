"""Makes real runs for tests: the launcher's and the ranks' calls, with step times that are given."""

from pathlib import Path

from stallwise.run import (
    JobRecord,
    NodeRecord,
    PhaseRecord,
    RankWriter,
    StepRow,
    WorldRecord,
    join,
    start_run,
)
from stallwise.run.manifest import Manifest, new_manifest

STEPS_PER_BLOCK = 4
NODE = NodeRecord(
    node=0, cpu_model="AMD EPYC 7763", cores=8, memory_bytes=64 * 2**30, gpus=("NVIDIA A10G", "NVIDIA A10G")
)


def begin(folder: Path, *, ranks: int = 1, arguments: tuple[str, ...] = (), torch: str = "2.13.0") -> None:
    """What the launcher does first."""
    manifest = new_manifest(
        JobRecord(script="train.py", arguments=arguments, launcher="torchrun"),
        world=WorldRecord(world_size=ranks, nnodes=1),
        software={"python": "3.12.4", "torch": torch},
        phases=(PhaseRecord(name="as is", differs="nothing"),),
        notes=("SyncBatchNorm is not ablated.",),
    )
    start_run(folder, manifest)


def step(rank: int, number: int, duration_s: float, *, phase: str = "as is", block: int = 0) -> StepRow:
    """One kept step of 32 samples that waited for data a quarter of its time."""
    return StepRow(
        rank=rank, step=number, phase=phase, block=block, start_s=number * 0.1, duration_s=duration_s,
        data_wait_s=duration_s / 4, samples=32,
    )  # fmt: skip


def write_rank(folder: Path, rank: int, block_times_s: list[float], *, phase: str = "as is") -> None:
    """What one rank does: whole blocks of equal steps, preceded by one warm-up step that is not kept."""
    with RankWriter.open(folder, rank, hardware=NODE, backend="nccl", flush_rows=8) as writer:
        writer.append("steps", step(rank, 0, 9.0, phase=phase)._replace(kept=False))
        number = 1
        for block, time_s in enumerate(block_times_s):
            for _ in range(STEPS_PER_BLOCK):
                writer.append("steps", step(rank, number, time_s, phase=phase, block=block))
                number += 1


def make_run(
    folder: Path,
    block_times_s: list[float],
    *,
    ranks: int = 1,
    arguments: tuple[str, ...] = (),
    torch: str = "2.13.0",
    phase: str = "as is",
) -> Manifest:
    """A whole run in which every rank took the same times."""
    begin(folder, ranks=ranks, arguments=arguments, torch=torch)
    for rank in range(ranks):
        write_rank(folder, rank, block_times_s, phase=phase)
    return join(folder, exit_code=0)
