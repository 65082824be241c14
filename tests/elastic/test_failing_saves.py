"""Every call of a save fails or stops in turn: a whole checkpoint is left, what is visible is whole, of one round."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.elastic.faults import Fault


def _lines(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.elastic.failing_saves", str(folder), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_save_that_fails_at_any_call_loses_nothing(every: int, tmp_path: Path) -> None:
    lines = _lines(tmp_path, str(every))
    for line in lines:
        assert 10 in line["steps"] or 30 in line["steps"], line  # 20 was damaged
        assert 20 not in line["steps"], line
        assert line["error"] is not None or 30 in line["steps"], line
        assert line["drafts"] == [], line
        assert line["later"] is None, line
        assert line["after"][0] == 50, line
        assert len(line["after"]) <= line["keep"], line
    counts = Counter(line["fault"] for line in lines)
    faults = set(Fault) - {Fault.STOP}
    assert set(counts) == {fault.name for fault in faults}
    assert min(counts.values()) >= 2 * 20 // every, counts
    failed = Counter(line["fault"] for line in lines if line["error"])
    assert all(failed[fault.name] for fault in faults if fault is not Fault.SHORT_WRITE), failed
    assert not failed["SHORT_WRITE"]


def test_a_save_that_is_stopped_at_any_call_publishes_nothing_after_a_later_round(tmp_path: Path) -> None:
    """As on a machine that was paused between any two calls, the last check of its claim and the rename among them."""
    lines = _lines(tmp_path, "1", "stop")
    for line in lines:
        assert line["later"] is None, line
        assert line["before"][0] == 50, line
        assert line["after"] == line["before"], line
        assert line["saved"] <= (30 in line["visible"]), line  # what it takes for saved was there for the later round
        assert line["drafts"] == [], line
    cases = Counter((line["locks"], line["held"], line["saved"]) for line in lines)
    assert set(cases) == {
        (True, True, True),
        (True, False, True),
        (True, False, False),
        (False, False, True),
        (False, False, False),
    }
