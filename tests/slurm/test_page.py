"""docs/slurm.md: its commands need a cluster, so they are not run; that they exist is checked."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli, lacks

PAGE = (ROOT / "docs/slurm.md").read_text()
UNIT = (ROOT / "examples/slurm/stallwise-schedule.service").read_text()


def shown(text: str) -> list[list[str]]:
    joined = text.replace("\\\n", " ")
    return [line.split() for line in re.findall(r"stallwise ((?:schedule|submit|queue)\b[^`\n]*)", joined)]


@pytest.mark.parametrize("command", ["schedule", "submit", "queue"])
def test_every_option_that_is_shown_exists(command: str, ask: Cli) -> None:
    known = ask(command, "--help").stdout
    for words in shown(PAGE) + shown(UNIT):
        if words[0] == command:
            for option in (word.split("=")[0] for word in words if word.startswith("--")):
                assert option in known, f"{option} of {' '.join(words)}"
    named = set(re.findall(r"`(--[a-z-]+)", PAGE))
    assert named, "the page names options"


def test_the_unit_starts_the_controller_and_names_folders_it_makes() -> None:
    (start,) = [words for words in shown(UNIT) if "--state" in words]
    assert start[start.index("--state") + 1] == "/var/lib/stallwise"
    assert "StateDirectory=stallwise" in UNIT
    assert "User=stallwise" in UNIT


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        lacks("systemd-analyze")
    unit = tmp_path / "stallwise-schedule.service"
    unit.write_text(UNIT.replace("/opt/stallwise/bin/stallwise", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "stallwise-schedule.service" not in done.stderr, "no line of it is unknown"
