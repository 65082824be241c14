"""What this machine has: the torch of an interpreter, and how much its cores share."""

import os
import sys
from pathlib import Path

import pytest

from stallwise.machine import probe
from tests.figures import Figures


def test_the_real_torch_of_this_interpreter() -> None:
    facts = probe.torch()
    assert facts is not None
    assert facts.version.startswith("2.")
    assert "gloo" in facts.backends


def test_an_interpreter_without_torch(tmp_path: Path) -> None:
    isolated = tmp_path / "python"
    isolated.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    isolated.chmod(0o755)
    assert probe.torch(str(isolated)) is None


def test_one_core_is_never_crowded() -> None:
    assert probe.measure_crowding(1) == 1.0


def test_two_cores_are_never_faster_than_one() -> None:
    assert probe.measure_crowding(2) >= 1.0


@pytest.mark.truth
def test_more_processes_than_cores_share_them(figures: Figures) -> None:
    """Sixteen on whatever this machine has: none can be faster than alone, and on fewer cores each is slower."""
    few = (os.cpu_count() or 1) <= 4
    figures.at_least("crowding of sixteen processes", probe.measure_crowding(16), 1.5 if few else 1.0, unit="x")
