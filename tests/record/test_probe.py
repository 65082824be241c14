"""What this machine has: the readers against real files and against what a real driver printed."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from stallwise.record import probe
from stallwise.record.diagnosis import features
from stallwise.units import GIB, MIB


def test_cores_and_memory_agree_with_the_kernel() -> None:
    found = probe.cpu()
    assert 0 < found.usable <= found.logical == os.cpu_count()
    assert probe.memory_bytes() == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_quota_of_both_control_group_versions(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert probe.cpu_quota(tmp_path) == cores


def test_a_driver_line_becomes_facts() -> None:
    (gpu,) = probe.parse_gpus("0, NVIDIA H200, 143771, 580.159.04, 5, 16\n")
    assert gpu.name == "H200"
    assert gpu.memory_bytes == 143771 * MIB
    assert gpu.memory_bytes / GIB == pytest.approx(140.4, abs=0.05)
    assert (gpu.pcie_generation, gpu.pcie_lanes) == (5, 16)


def test_what_the_driver_does_not_know_is_none() -> None:
    (gpu,) = probe.parse_gpus("3, Tesla K80, 11441, 470.57.02, [N/A], [N/A]\n")
    assert gpu.index == 3
    assert gpu.pcie_generation is None
    assert gpu.pcie_lanes is None


def test_a_program_that_is_missing_or_fails_answers_nothing() -> None:
    assert probe.ask("no-such-program-anywhere") is None
    assert probe.ask(sys.executable, "-c", "raise SystemExit(3)") is None


def test_the_real_torch_of_this_interpreter() -> None:
    found = probe.torch()
    assert found is not None
    assert found.version.startswith("2.")
    assert "gloo" in found.backends


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    isolated = tmp_path / "python"
    isolated.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    isolated.chmod(0o755)
    assert probe.torch(str(isolated)) is None


def test_every_absent_thing_comes_with_what_to_do() -> None:
    poor = features(torch=None, gpu_count=0, slurm=None, ray=False, drops_page_cache=False, counts_runqueue_wait=False)
    assert [f.name for f in poor if f.ready] == ["catalog, compare, show"]
    assert all(f.missing and f.advice for f in poor if not f.ready)
