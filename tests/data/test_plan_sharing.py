"""`stallwise data plan` with shared caches and with several jobs: the figures are those of the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.data.made_loads import make_bucket_run

LINK = ("--link", "8mbit", "--latency", "10ms", "--samples", "1000", "--sample-size", "20KB")


def planned(ask: Cli, folder: Path, *words: str) -> dict[str, Any]:
    run = make_bucket_run(folder / "run", ranks=1, step_s=0.1, wait_s=0.0)
    found: dict[str, Any] = json.loads(ask("data", "plan", str(run), *LINK, *words, "--json").stdout)
    return found


def test_nodes_that_share_caches_read_the_bucket_once(ask: Cli, tmp_path: Path) -> None:
    found = planned(ask, tmp_path, "--cache", "13MB", "--nodes", "2", "--epochs", "3", "--peer-link", "1gbit")
    rows = {(row["name"], row["sticky"]): row for row in found["alternatives"]}
    assert rows["this cache, shared", False]["misses"] == [1.0, 0.0, 0.0]
    assert rows["this cache", False]["misses"] == pytest.approx([1.0, 0.5, 0.35])
    assert rows["this cache, shared", False]["requests_last"] == 0
    assert rows["this cache, shared", False]["epochs_s"] < rows["this cache", False]["epochs_s"]
    slow = planned(ask, tmp_path / "slow", "--cache", "13MB", "--nodes", "2", "--epochs", "3", "--peer-link", "80kbit")
    again = {row["name"]: row for row in slow["alternatives"]}
    assert again["this cache, shared"]["epochs_s"] > rows["this cache, shared", False]["epochs_s"]


def test_one_node_has_nobody_to_share_with(ask: Cli, tmp_path: Path) -> None:
    found = planned(ask, tmp_path, "--cache", "13MB", "--nodes", "1")
    assert not any("shared" in row["name"] for row in found["alternatives"])
    assert found["jobs"] is None


def test_jobs_that_prepare_together(ask: Cli, tmp_path: Path) -> None:
    jobs = planned(ask, tmp_path, "--cache", "20MB", "--nodes", "1", "--jobs", "8")["jobs"]
    assert jobs["jobs"] == 8
    assert 1 <= jobs["gain"] <= 8 + 1e-9
    assert jobs["apart"]["reads"] >= jobs["together"]["reads"] == 0
    run = make_bucket_run(tmp_path / "shown", ranks=1, step_s=0.1, wait_s=0.0)
    shown = ask("data", "plan", str(run), *LINK, "--cache", "20MB", "--jobs", "8").stdout
    assert "prepared together (SharedLoader)" in shown
