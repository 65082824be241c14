"""Epochs of 24 batches and 4 workers: the first 8 come from the queue, and each epoch starts the workers anew."""

from pathlib import Path

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.record.ablate.loader import BatchSource
from stallwise.run import BatchRow, JobRecord, PhaseRecord, RankWriter, StepRow, join, start_run
from stallwise.run.manifest import LoaderRecord, NodeRecord, new_manifest
from tests.analysis.laws import check_laws
from tests.record.jobs import JOBS, Profiled
from tests.record.test_loader import Sized

JOB = str(JOBS / "short_epochs.py")
EPOCH, WORKERS, SAMPLES = 24, 4, 256
BATCH_S, START_S, CONSUME_S = 1.19, 2.4, 0.121


def write_h200(folder: Path, *, light: bool) -> None:
    """ResNet-50 on JPEGs of an H200, as the recorder would write it: 297 ms a step where the loader is steady."""
    phases = ("as is",) if light else ("as is", "replay from host")
    manifest = new_manifest(JobRecord(script="main.py"), phases=tuple(PhaseRecord(name=name) for name in phases))
    start_run(folder, manifest)
    with RankWriter.open(folder, 0, hardware=NodeRecord(node=0, cores=16, gpus=("NVIDIA H200",))) as writer:
        writer.light(light)
        writer.loader(LoaderRecord(num_workers=WORKERS, prefetch_factor=2, batch_size=SAMPLES, batches=EPOCH))
        now_s, number = 0.0, 0
        for epoch in range(7):
            now_s, number = _write_epoch(writer, epoch, now_s, number)
            for _ in range(0 if light else 8):
                row = StepRow(0, number, "replay from host", epoch, now_s, CONSUME_S, 0.0, SAMPLES, fetches=1)
                writer.append("steps", row)
                now_s, number = now_s + CONSUME_S, number + 1
    join(folder, exit_code=0)


def _write_epoch(writer: RankWriter, epoch: int, begin_s: float, number: int) -> tuple[float, int]:
    """Workers start, fill the queue, and then deliver one batch each per `BATCH_S` (`model/data/datapath.py`)."""
    source = BatchSource(0, Sized(EPOCH, WORKERS))
    done, taken, rows = [], [], []
    for i in range(EPOCH):
        requested_s = begin_s if i < 2 * WORKERS else taken[i - 2 * WORKERS]
        first = i < WORKERS
        from_s = begin_s if first else max(requested_s, done[i - WORKERS])
        # The first batch of a worker takes as long as its imports do; they all work at once.
        done.append(from_s + (START_S if first else BATCH_S * (1.5 if i < 2 * WORKERS else 1.0)))
        taken.append(max(done[i], taken[-1] + CONSUME_S if taken else 0.0))
        source.prepared, source.delivered = i + 1, i + 1
        rows.append((from_s, done[i] - from_s, source.steady))
    ends_s = [*taken[1:], taken[-1] + CONSUME_S]
    steps = []
    for i in range(EPOCH):
        start_s = begin_s if i == 0 else taken[i]  # the step begins at its fetch: here all waiting is in the one before
        kept = rows[i][2] and i < EPOCH - 1
        steps.append((start_s, ends_s[i], kept))
        step_s = ends_s[i] - start_s
        wait_s = max(0.0, step_s - CONSUME_S)
        row = StepRow(0, number + i, "as is", epoch, start_s, step_s, wait_s, SAMPLES, None, kept, fetches=1)
        writer.append("steps", row)
    for i, (from_s, wall_s, _) in enumerate(rows):
        inside = next((kept for start_s, end_s, kept in steps if start_s <= from_s < end_s), False)
        writer.append("batches", BatchRow(0, i % WORKERS, number + i, wall_s, from_s, wall_s, 0.0, 0.0, 0, SAMPLES,
                                          "as is" if inside else None, epoch if inside else None))  # fmt: skip
    return ends_s[-1], number + EPOCH


def test_the_case_of_the_h200(tmp_path: Path) -> None:
    """Shown before: P 453 samples/s while the job does 836, "now 3" with 4 workers, 98.8 ms below a compute of 119."""
    write_h200(tmp_path / "run", light=False)
    job = open_run(tmp_path / "run")
    check_laws(job)
    profile = job.profile
    assert profile.step_s == pytest.approx(BATCH_S / WORKERS, rel=0.05)
    assert profile.rates.P is not None
    assert profile.rates.P.samples_per_s == pytest.approx(SAMPLES * WORKERS / BATCH_S, rel=0.1)
    assert profile.rates.P.low > 0.5 * profile.rates.P.samples_per_s
    assert profile.verdict.binds == "prep"
    assert "(now 4)" in profile.verdict.next_step
    assert (profile.verdict.predicted_step_s or 0) >= CONSUME_S


def test_the_case_of_the_h200_observed(tmp_path: Path) -> None:
    write_h200(tmp_path / "run", light=True)
    profile = open_run(tmp_path / "run").profile
    assert profile.step_s == pytest.approx(BATCH_S / WORKERS, rel=0.05)
    assert profile.step_low_s > 0.8 * profile.step_s


def test_a_light_profile_keeps_whole_bursts_behind_the_queue(tmp_path: Path) -> None:
    job = Profiled(tmp_path, "--light", JOB, "6").ended(0)
    run = open_run(job.run).run
    steps = run.table("steps")
    kept = steps.filter(steps["kept"].is_true())["step"].to_list()
    assert {step % EPOCH for step in kept} == set(range(8, 20))
    assert steps.height >= 5 * EPOCH
    assert set(steps["fetches"].to_list()) == {1}
    assert run.manifest.loader == LoaderRecord(num_workers=4, prefetch_factor=2, batch_size=4, batches=EPOCH)
    assert run.manifest.light is True


def test_a_full_profile_of_short_epochs_keeps_the_laws(tmp_path: Path) -> None:
    job = Profiled(tmp_path, "--max-time", "4s", "--no-cold", JOB, "4000").ended(0)
    check_laws(open_run(job.run))


def test_one_batch_an_epoch_can_be_measured(tmp_path: Path) -> None:
    """Every step begins an epoch; "give the script more steps" was said however many there were."""
    (tmp_path / "job.py").write_text(ONE_BATCH)
    job = Profiled(tmp_path, "--max-time", "2s", "--no-cold", "job.py").ended(0)
    profile = open_run(job.run).profile
    assert profile.split.prep is not None
    assert profile.samples_per_s is not None


ONE_BATCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(TensorDataset(torch.zeros(64, 16)), batch_size=64)
for _ in range(1_000_000):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
"""
