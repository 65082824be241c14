"""Verdicts of profiles made by hand: named where that is certain, inconclusive where it is not."""

import math
import re
from pathlib import Path

import pytest

from stallwise.analysis.analysis import Analysis
from stallwise.cli.run import longer_command
from tests.analysis.laws import check_laws, write_profile

STEADY = tuple(1 + 0.004 * ((7 * n) % 5 - 2) for n in range(12))
"""Noise of about one per cent."""
WILD = tuple(1 + 0.2 * ((7 * n) % 5 - 2) for n in range(12))


def times(mean_s: float, noise: tuple[float, ...] = STEADY) -> list[float]:
    return [mean_s * factor for factor in noise]


def made(folder: Path, as_is: list[float], host: list[float], **options: object) -> Analysis:
    job = write_profile(folder / "run", {"as is": as_is, "replay from host": host}, **options)  # type: ignore[arg-type]
    check_laws(job)
    return job


def test_a_clear_stall_is_named_with_its_confidence_and_interval(tmp_path: Path) -> None:
    verdict = made(tmp_path, times(0.3), times(0.12), batch_s=0.6).bottleneck
    assert verdict.binds == "prep"
    assert (verdict.confidence or 0) > 0.99
    assert verdict.next_step.startswith("Set num_workers=")
    assert "(now 2)" in verdict.next_step
    assert 0.12 <= (verdict.predicted_low_s or 0) <= (verdict.predicted_step_s or 0) <= (verdict.predicted_high_s or 0)
    assert (verdict.predicted_gain or 0) > 0.4


def test_not_distinguishable_is_not_absent(tmp_path: Path) -> None:
    """The bound allows for far more than 10 %: no claim that no stall is worth removing."""
    noisy = [0.2, 0.5, 0.15, 0.3, 0.2, 0.6, 0.18, 0.2]
    job = made(tmp_path, noisy, noisy[3:] + noisy[:3])
    assert job.split.prep is not None
    assert not job.split.prep.distinguishable
    verdict = job.bottleneck
    assert verdict.binds == "inconclusive"
    assert "prep" in verdict.candidates
    assert (verdict.longer_s or 0) > 0
    assert f"Profile about {verdict.longer_s:.0f} s longer." in verdict.next_step
    assert verdict.predicted_step_s is None


def test_small_stalls_leave_compute(tmp_path: Path) -> None:
    verdict = made(tmp_path, times(0.201), times(0.2)).bottleneck
    assert verdict.binds == "compute"
    assert verdict.sentence.startswith("The step is compute; no stall takes more than")


def test_two_stalls_alike_are_inconclusive_and_both_are_named(tmp_path: Path) -> None:
    swing = [0.02 * ((5 * n) % 7 - 3) for n in range(14)]
    phases = {
        "as is": [0.4] * 14,
        "replay from host": [0.3 + s for s in swing],
        "no exchange": [0.2] * 14,
    }
    job = write_profile(tmp_path / "run", phases, ranks=2, batch_s=0.8)
    check_laws(job)
    assert job.bottleneck.binds == "inconclusive"
    assert set(job.bottleneck.candidates) == {"prep", "interconnect"}
    assert "about equally large" in job.bottleneck.sentence
    assert job.bottleneck.longer_s is None
    assert "For prep: " in job.bottleneck.next_step
    assert "For interconnect: " in job.bottleneck.next_step


def test_one_round_decides_nothing(tmp_path: Path) -> None:
    job = made(tmp_path, [0.3], [0.1])
    assert job.bottleneck.binds == "inconclusive"
    assert job.bottleneck.confidence is None
    assert math.isinf(job.profile.step_high_s)


def test_two_blocks_give_a_step_that_is_longer_than_nothing(tmp_path: Path) -> None:
    """Light mode said 293 ms (0 to 525 ms)."""
    job = write_profile(tmp_path / "run", {"as is": [0.275, 0.311]}, light=True)
    check_laws(job)
    assert job.profile.step_low_s > 0.1


@pytest.mark.parametrize(("light", "advice"), [(True, "Run a full profile"), (False, "stallwise.batches")])
def test_a_job_without_a_loader_is_not_sent_back_to_a_full_profile(tmp_path: Path, light: bool, advice: str) -> None:
    job = write_profile(tmp_path / "run", {"as is": times(0.2)}, light=light)
    assert job.bottleneck.binds == "unknown"
    assert advice in job.bottleneck.next_step
    assert ("full profile" in job.bottleneck.next_step) is light


def test_no_worker_is_proposed_where_training_uses_every_core(tmp_path: Path) -> None:
    """A worker takes from the training what it prepares: 26 % less was predicted, it was 32 % slower."""
    few, many = (
        made(tmp_path / str(n), times(0.317), times(0.227), workers=0, batch_s=0.09, cores=n, threads=2).bottleneck
        for n in (2, 16)
    )
    assert many.next_step.startswith("Set num_workers=")
    assert few.binds == "prep"
    assert "num_workers" not in few.next_step
    assert "cores are used up" in few.next_step


def test_workers_are_proposed_where_cores_are_free_and_blocks_are_few(tmp_path: Path) -> None:
    """Two blocks bound nothing, but twelve idle cores can do no harm; "prepare less per sample" was proposed."""
    phases = {"as is": [0.31, 0.338], "replay from host": [0.12, 0.146], "replay from device": [0.119, 0.125]}
    job = write_profile(tmp_path / "run", phases, workers=4, batch_s=1.03, cores=16, gpus=True)
    check_laws(job)
    verdict = job.bottleneck
    assert verdict.binds == "prep"
    assert re.match(r"Set num_workers=\d+ in the DataLoader \(now 4\)\.", verdict.next_step)
    assert verdict.predicted_high_s == pytest.approx(job.profile.step_s, rel=0.1)


def test_cores_are_used_up_only_where_that_was_measured(tmp_path: Path) -> None:
    idle = made(tmp_path / "idle", times(0.3), times(0.12), workers=16, batch_s=0.001, cores=16).bottleneck
    assert "cores" not in idle.next_step


def test_no_faster_gpu_link_without_gpus(tmp_path: Path) -> None:
    for gpus in (False, True):
        phases = {"as is": times(0.3), "no exchange": times(0.2)}
        job = write_profile(tmp_path / str(gpus), phases, ranks=2, gpus=gpus)
        check_laws(job)
        assert job.bottleneck.binds == "interconnect"
        assert ("faster GPU link" in job.bottleneck.next_step) is gpus


def test_a_sample_that_is_a_whole_batch(tmp_path: Path) -> None:
    """The loader counts one item, the training 32 samples: P was a 32nd of the job's own speed."""
    job = made(tmp_path, times(0.1), times(0.02), batch_s=0.19, loader_samples=1)
    assert job.profile.rates.P is not None
    assert job.profile.rates.P.samples_per_s == pytest.approx(2 * 32 / 0.19, rel=0.05)


def test_the_command_that_measures_longer(tmp_path: Path) -> None:
    profile = made(tmp_path, [0.3], [0.1]).profile
    assert longer_command(profile).startswith("stallwise profile --max-time ")
    assert longer_command(profile).endswith(" train.py")
