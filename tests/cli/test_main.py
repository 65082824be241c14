"""The program as a whole: version, help, completion, errors."""

import json
import subprocess
import sys

import pytest

import stallwise
from tests.conftest import Cli


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout == f"stallwise {stallwise.__version__}\n"


def test_help_names_every_command(cli: Cli) -> None:
    text = cli("--help").stdout
    assert all(command in text for command in ("doctor", "catalog", "show", "compare"))


def test_no_arguments_shows_the_help(cli: Cli) -> None:
    assert "Usage" in cli(code=2).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(cli: Cli, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without this the shell is guessed from the parent processes, and under CI there may be none.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert "stallwise" in cli("--show-completion", shell).stdout


def test_a_wrong_option_is_bad_usage(cli: Cli) -> None:
    done = cli("doctor", "--jsn", code=2)
    assert done.stdout == ""
    assert "--json" in done.stderr


def test_a_closed_pipe_is_not_an_error() -> None:
    program = f"{sys.executable} -m stallwise catalog gpus | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", program], capture_output=True, text=True, timeout=250)
    assert done.stderr == ""
    assert done.returncode == 0


def test_doctor_in_json(cli: Cli) -> None:
    found = json.loads(cli("doctor", "--json").stdout)
    assert found["stallwise_version"] == stallwise.__version__
    assert found["cpu"]["usable"] >= 1
    assert found["memory_bytes"] > 2**28
    assert {"name", "ready", "missing", "advice"} == set(found["features"][0])
    for feature in found["features"]:
        assert feature["ready"] or (feature["missing"] and feature["advice"]), feature


def test_doctor_as_text(cli: Cli) -> None:
    text = cli("doctor").stdout
    assert "memory" in text
    assert "torch" in text
