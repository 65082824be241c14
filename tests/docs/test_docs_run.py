"""Documentation that runs: every command shown in README and docs is executed, its output compared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.console import Shown, fences, matches, shown_commands

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# This test is part of it; .ci/run executes it in a fresh clone.
RUNS_US = {"make test"}
# Real profiles of a few seconds, as shown: beside other work they end before they have measured anything.
pytestmark = pytest.mark.alone
# torch, taking a gloo group down, aborts the bare job now and then.
TORCH_ABORT = "terminate called without an active exception"
COMMANDS = [shown for page in PAGES for shown in shown_commands(page)]


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands keep what outlives them (indexes of buckets): not among what the user of this machine has kept."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize(
    "shown",
    [pytest.param(c, marks=[pytest.mark.soak] * c.soak) for c in COMMANDS if c.command not in RUNS_US],
    ids=str,
)
def test_a_shown_command_does_what_is_shown(shown: Shown, kept: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "XDG_CACHE_HOME": str(kept)}
    done = _run(shown.command, environment)
    if done.returncode != shown.code and TORCH_ABORT in done.stderr:
        done = _run(shown.command, environment)
    assert done.returncode == shown.code, done.stdout + done.stderr
    if shown.output and not shown.measured:
        assert matches(shown.output, done.stdout), f"shown:\n{shown.output}\nreal:\n{done.stdout}"


def _run(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides_in_another_kind_of_block(page: Path) -> None:
    kinds = {info.split()[0] if info else "" for info, _, _ in fences(page)}
    assert kinds.isdisjoint({"sh", "bash", "shell", ""}), "commands stand in ```console blocks, which are run"


def test_the_comparison_can_fail() -> None:
    assert matches("a\n…\nc\n", "a\nb\nb\nc\n")
    assert matches("a\n…\n", "a\n")
    assert not matches("a\nc\n", "a\nb\nc\n")
    assert not matches("a\n…\nd\n", "a\nb\nc\n")
