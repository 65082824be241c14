"""The gradient noise scale of a job whose noise is known, over ranks and over micro-batches."""

import json
from pathlib import Path

import pytest
import torch

import stallwise
from stallwise.record.observe import _noise as noise
from tests.record.jobs import JOBS, Profiled

WEIGHT = 0.25
SCALE = 1 / WEIGHT**2  # tr Σ / |G|²


@pytest.mark.parametrize(("ranks", "parts"), [(2, 1), (1, 4)])
def test_the_noise_of_a_quadratic_is_found(tmp_path: Path, ranks: int, parts: int) -> None:
    options = ("--json", "--max-time", "1s", "--no-cold", "--nproc-per-node", str(ranks))
    job = Profiled(tmp_path, *options, str(JOBS / "quadratic.py"), str(WEIGHT), str(parts)).ended(0)
    noise = json.loads(job.out)["noise"]
    assert noise["batch"] == 16 * ranks * parts
    assert noise["samples"] == pytest.approx(SCALE, rel=0.1)
    assert noise["low"] < noise["samples"] < noise["high"] < 2 * noise["low"]
    assert stallwise.open_run(job.run).noise is not None


def test_one_batch_a_step_has_no_noise_scale(tmp_path: Path) -> None:
    options = ("--json", "--max-time", "0.5s", "--no-cold")
    job = Profiled(tmp_path, *options, str(JOBS / "quadratic.py"), str(WEIGHT), "1").ended(0)
    assert json.loads(job.out)["noise"] is None


class _OneRank:
    """A process group of this process alone."""

    def allreduce(self, _tensors: list[torch.Tensor]) -> "_OneRank":
        return self

    def wait(self) -> None:
        """Nothing to wait for."""


def test_gradients_are_averaged_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_CHUNK_ELEMENTS", 7)
    phase = noise.NoisePhase([torch.optim.SGD(torch.nn.Linear(5, 4).parameters(), lr=0.1)], [], None)  # type: ignore[arg-type]
    phase._group = _OneRank()
    for place, parameter in enumerate(phase._parameters):
        parameter.grad = torch.full_like(parameter, 1.0 + place)
    phase._reserve()
    assert float(phase._averaged(1)) == pytest.approx(20 * 1 + 4 * 4)
    phase._parameters[1].grad = None
    assert float(phase._averaged(2)) == pytest.approx(20 / 4)


def test_without_memory_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any rank: one that dropped out later would leave the others waiting."""
    phase = noise.NoisePhase([torch.optim.SGD(torch.nn.Linear(5, 4).parameters(), lr=0.1)], [], None)  # type: ignore[arg-type]
    phase._group = _OneRank()
    monkeypatch.setattr(noise, "_CHUNK_ELEMENTS", -1)  # a size that no allocator has
    before = torch.autograd.backward
    with pytest.raises(RuntimeError):
        phase.begin(8)
    assert torch.autograd.backward is before
