"""Every call of a save fails in turn: a whole checkpoint is always left, and what is visible is whole."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.elastic.faults import Fault


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_save_that_fails_at_any_call_loses_nothing(every: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.elastic.failing_saves", str(tmp_path), str(every)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=ROOT)
    assert run.returncode == 0, run.stderr[-3000:]
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    for line in lines:
        assert 10 in line["steps"] or 30 in line["steps"], line  # 20 was damaged
        assert 20 not in line["steps"], line
        assert line["error"] is not None or 30 in line["steps"], line
        assert line["drafts"] == [], line
        assert line["later"] is None, line
        assert line["after"][0] == 50, line
        assert len(line["after"]) <= line["keep"], line
    counts = Counter(line["fault"] for line in lines)
    assert set(counts) == {fault.name for fault in Fault}
    assert min(counts.values()) >= 2 * 20 // every, counts
    failed = Counter(line["fault"] for line in lines if line["error"])
    assert all(failed[fault.name] for fault in Fault if fault is not Fault.SHORT_WRITE), failed
    assert not failed["SHORT_WRITE"]
