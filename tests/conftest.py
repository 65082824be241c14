"""What every test shares: a clean user folder, the real command line, and what to do when something is missing."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _own_config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the developer's own prices."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public measurements (`STALLWISE_DATA`), which is not part of the repository."""
    folder = Path(os.environ.get("STALLWISE_DATA", ROOT / "../shared/data"))
    if not folder.is_dir():
        lacks("the folder of public measurements (set STALLWISE_DATA)")
    return folder


def lacks(what: str) -> None:
    """Skip because `what` is not to be had here; with STALLWISE_REQUIRE=all that is a failure."""
    if os.environ.get("STALLWISE_REQUIRE") == "all":
        pytest.fail(f"this test needs {what}")
    pytest.skip(f"needs {what}")


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the real program: `cli("catalog", "gpus", code=0)` in an empty folder, no terminal."""

    def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stallwise", *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=cwd or tmp_path,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run
