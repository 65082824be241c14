"""What the machine of a job has: the readers against real files and against what a real driver printed."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from stallwise.record import node
from stallwise.units import GIB, MIB


def test_cores_and_memory_agree_with_the_kernel() -> None:
    facts = node.cpu()
    assert 0 < facts.usable <= facts.logical == os.cpu_count()
    assert node.memory_bytes() == psutil.virtual_memory().total


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
    assert node.cpu_quota(tmp_path) == cores


def test_a_driver_line_becomes_facts() -> None:
    (gpu,) = node.parse_gpus("0, NVIDIA H200, 143771, 580.159.04, 5, 16\n")
    assert gpu.name == "H200"
    assert gpu.memory_bytes == 143771 * MIB
    assert gpu.memory_bytes / GIB == pytest.approx(140.4, abs=0.05)
    assert (gpu.pcie_generation, gpu.pcie_lanes) == (5, 16)


def test_what_the_driver_does_not_know_is_none() -> None:
    (gpu,) = node.parse_gpus("3, Tesla K80, 11441, 470.57.02, [N/A], [N/A]\n")
    assert gpu.index == 3
    assert gpu.pcie_generation is None
    assert gpu.pcie_lanes is None


def test_a_program_that_is_missing_or_fails_answers_nothing() -> None:
    assert node.program_output("no-such-program-anywhere") is None
    assert node.program_output(sys.executable, "-c", "raise SystemExit(3)") is None
