"""What every test shares: a clean user folder, the real command line, and what to do when something is missing."""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# A law holds however busy the machine is; what may take how long is measured in `benchmarks/`.
# The same examples every time, so that a change is judged by what it changed; `make soak` draws new ones.
settings.register_profile("stallwise", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "stallwise"))


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
            timeout=200,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Likewise without a process of its own: for the many answers of a command that other tests start for real."""
    from stallwise.cli.main import run as program

    def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setattr(sys, "argv", ["stallwise", *arguments])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            program()
        done = subprocess.CompletedProcess(sys.argv, int(left.value.code or 0), out.getvalue(), err.getvalue())
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
