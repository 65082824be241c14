"""Laws of every profile, and profiles made by hand that are held to them."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stallwise.analysis.analysis import Analysis, open_run
from stallwise.report.views.profile import document, draw, parts_of
from stallwise.report.views.profile_page import page
from stallwise.run import BatchRow, EventRow, JobRecord, PhaseRecord, RankWriter, StepRow, WorldRecord, join, start_run
from stallwise.run.manifest import LoaderRecord, NodeRecord, new_manifest
from tests.report.page_reader import PageReader
from tests.report.test_profile import printed

SAMPLES = 32


def check_laws(job: Analysis) -> None:
    """Hold a profile, its card, its page and its document to what is always true."""
    profile = job.profile
    split, verdict = profile.split, profile.verdict
    parts = [split.compute, *split.stalls().values()]
    assert all(0 <= part.low_s <= part.s <= part.high_s for part in parts)
    assert sum(part.s for part in parts) == pytest.approx(profile.step_s)
    shown = [part.share.s for part in parts_of(profile) if part.share is not None and part.words is None]
    assert sum(shown) == pytest.approx(profile.step_s)
    if math.isfinite(profile.step_low_s):
        assert 0 < profile.step_low_s <= profile.step_s <= profile.step_high_s
    rates = profile.rates
    of_job = [rates.P, rates.C, rates.G, rates.F if profile.cold_step_s is None else None]
    if profile.samples_per_s is not None:
        assert all(rate.samples_per_s >= profile.samples_per_s * (1 - 1e-9) for rate in of_job if rate is not None)
    assert all(rate.low <= rate.samples_per_s <= rate.high for rate in of_job if rate is not None)
    if verdict.predicted_step_s is not None and verdict.binds != "skew":
        assert split.compute.s * (1 - 1e-9) <= verdict.predicted_step_s <= profile.step_s
        assert verdict.predicted_low_s <= verdict.predicted_step_s <= verdict.predicted_high_s  # type: ignore[operator]
        assert verdict.predicted_gain == pytest.approx(1 - verdict.predicted_step_s / profile.step_s)
    loader = job.run.manifest.loader
    if "(now " in verdict.next_step and loader is not None:
        assert f"(now {loader.num_workers})" in verdict.next_step
    if verdict.binds == "compute":
        assert all(share.high_s <= 0.1 * profile.step_s for share in split.stalls().values())
    if verdict.binds in split.stalls():
        assert split.stalls()[verdict.binds].distinguishable
        assert (verdict.confidence or 0.0) >= 0.9
    if verdict.binds == "inconclusive":
        shares = (int(number) for number in re.findall(r"(\d+) % of the step", verdict.sentence))
        assert all(number <= 100 for number in shares)
        assert verdict.confidence is None or "no bound yet" not in verdict.sentence
    if "GPU link" in verdict.next_step:
        assert any(node.gpus for node in profile.nodes)
    _check_views(job)


def _check_views(job: Analysis) -> None:
    """Card, page and document name the same bottleneck and the same next step."""
    profile = job.profile
    verdict = profile.verdict
    card = " ".join(printed(draw(profile), 200).split())
    text = " ".join(PageReader(page(profile)).text.split())
    assert document(profile)["verdict"]["binds"] == verdict.binds
    for sentence in (verdict.sentence, verdict.next_step):
        assert " ".join(sentence.split()) in card
        assert " ".join(sentence.split()) in text


def write_profile(
    folder: Path,
    phases: Mapping[str, Sequence[float]],
    *,
    ranks: int = 1,
    workers: int = 2,
    batch_s: float = 0.01,
    blocked_s: float = 0.0,
    cores: int = 8,
    gpus: bool = False,
    light: bool = False,
    fetches: int = 1,
    loader_samples: int = SAMPLES,
    threads: int = 1,
) -> Analysis:
    """Write a run of one node: per phase the mean step of each block; four steps a block, in rounds."""
    node = NodeRecord(node=0, cores=cores, gpus=("NVIDIA H200",) * ranks if gpus else ())
    records = tuple(PhaseRecord(name=name) for name in phases)
    start_run(folder, new_manifest(JobRecord(script="train.py"), world=WorldRecord(world_size=ranks), phases=records))
    for rank in range(ranks):
        with RankWriter.open(folder, rank, hardware=node) as writer:
            writer.light(light)
            writer.loader(LoaderRecord(num_workers=workers, prefetch_factor=2, batch_size=SAMPLES, batches=400))
            writer.append("events", EventRow(rank, "worker_startup", 0.0, 0.01, 0, f"{workers} workers"))
            number, now_s = 0, 0.0
            for block in range(max(map(len, phases.values()))):
                for name, times_s in phases.items():
                    for _ in range(4 if block < len(times_s) else 0):
                        step_s = times_s[block]
                        row = StepRow(
                            rank, number, name, block, now_s, step_s, 0.1 * step_s, SAMPLES, None,
                            cpu_s=threads * step_s, fetches=fetches,
                        )  # fmt: skip
                        writer.append("steps", row)
                        for batch in range(fetches if name == "as is" else 0):
                            index = number * fetches + batch
                            writer.append(
                                "batches",
                                BatchRow(
                                    rank, index % workers if workers else None, index, batch_s, now_s,
                                    batch_s - blocked_s, 0.0, blocked_s, 0, loader_samples, name, block,
                                ),
                            )  # fmt: skip
                        number, now_s = number + 1, now_s + step_s
    join(folder, exit_code=0)
    return open_run(folder)
