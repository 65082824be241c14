"""Runs made by hand whose data came from a bucket."""

from pathlib import Path

from stallwise.run import JobRecord, PhaseRecord, RankWriter, StepRow, WorldRecord, join, start_run
from stallwise.run.manifest import new_manifest
from stallwise.run.schema import LoadRow
from tests.run.made import NODE

BATCH, SAMPLE_BYTES, STEPS = 32, 100_000, 40
STEP_S, WAIT_S = 0.1, 0.02


def make_bucket_run(
    folder: Path, *, ranks: int = 2, workers: int = 2, step_s: float = STEP_S, wait_s: float = WAIT_S, nodes: int = 1
) -> Path:
    """Every step takes one batch; a quarter of the samples are hits. Batch n waits n ms for the store."""
    manifest = new_manifest(
        JobRecord(script="train.py", launcher="torchrun"),
        world=WorldRecord(world_size=ranks, nnodes=nodes),
        phases=(PhaseRecord(name="as is", differs="nothing"),),
    )
    start_run(folder, manifest)
    for rank in range(ranks):
        with RankWriter.open(folder, rank, node=rank * nodes // ranks, hardware=NODE, backend="gloo") as writer:
            for number in range(STEPS):
                block = number // 8
                start_s = number * step_s
                writer.append("steps", StepRow(rank, number, "as is", block, start_s, step_s, wait_s, BATCH))
                writer.append("loads", _load(rank, number, workers, start_s))
    join(folder, exit_code=0)
    return folder


def _load(rank: int, number: int, workers: int, start_s: float) -> LoadRow:
    return LoadRow(
        rank=rank,
        worker=number % workers if workers else None,
        start_s=start_s,
        wall_s=0.05,
        samples=BATCH,
        data_bytes=BATCH * SAMPLE_BYTES,
        hits=BATCH // 4,
        requests=BATCH * 3 // 4 + (number == 0),
        retries=int(number == 0),
        fetched_bytes=BATCH * 3 // 4 * SAMPLE_BYTES,
        network_s=number * 1e-3,
        cache_s=0.002,
        decode_s=0.004,
        queue_s=0.001 if workers else None,
        phase="as is",
    )
