"""What every test shares: a clean user folder, the real command line, and what to do when something is missing."""

import contextlib
import gc
import importlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.program import DATE_OF_PRICES, run_program, stop_server

pytest_plugins = ("tests.figures",)

ROOT = Path(__file__).parents[1]

# A law holds however busy the machine is; what may take how long is measured in `benchmarks/`.
# The same examples every time, so that a change is judged by what it changed; `make soak` draws new ones.
settings.register_profile("stallwise", deadline=None, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "stallwise"))


def pytest_configure(config: pytest.Config) -> None:
    """Collect garbage seldom, here and in programs that tests start; where times are measured, as everywhere."""
    if "not truth" in config.getoption("markexpr"):
        gc.set_threshold(10_000)
        startup = str(ROOT / "tests/startup")
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join([startup, *(path for path in paths if path not in ("", startup))])


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not look through it again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_config(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the developer's own prices, and none fails because they have become a day older."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", DATE_OF_PRICES)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public measurements (`STALLWISE_DATA`), which is not part of the repository."""
    folder = Path(os.environ.get("STALLWISE_DATA", ROOT / "../shared/data"))
    if not folder.is_dir():
        lacks("the folder of public measurements (set STALLWISE_DATA)")
    return folder


@pytest.fixture(scope="session")
def documentation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as pages, built once."""
    from tests.docs.test_site import build

    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def lacks(what: str) -> None:
    """Skip because `what` is not to be had here; with STALLWISE_REQUIRE=all that is a failure."""
    if os.environ.get("STALLWISE_REQUIRE") == "all":
        pytest.fail(f"this test needs {what}")
    pytest.skip(f"needs {what}")


def texts(sentences: list[dict[str, Any]]) -> list[str]:
    """The texts of the sentences of a JSON document; each has a code."""
    assert all(one["code"] for one in sentences)
    return [one["text"] for one in sentences]


def needs(module: str) -> Any:
    """Import a module that the test cannot do without; skip (see `lacks`) where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return lacks(f"the Python package {module.partition('.')[0]}")


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the real program: `cli("catalog", "gpus", code=0)` in an empty folder, no terminal. See tests/program.py."""

    def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = run_program(arguments, cwd or tmp_path)
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


class _Errors(io.StringIO):
    def fileno(self) -> int:
        """Where the output of a job goes that a command starts."""
        return 2


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Likewise without a process of its own: for the many answers of a command that other tests start for real."""
    from stallwise.cli.main import run as program

    def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd or tmp_path)
        monkeypatch.setattr(sys, "argv", ["stallwise", *arguments])
        out, err = io.StringIO(), _Errors()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            program()
        done = subprocess.CompletedProcess(sys.argv, int(left.value.code or 0), out.getvalue(), err.getvalue())
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session", autouse=True)
def _program_server() -> Iterator[None]:
    """End the process that `cli` forks from."""
    yield
    stop_server()


# Files whose tests share one expensive thing (a Slurm of eight nodes, an object store, Chromium, Ray) run in one
# worker, which starts it once. A file belongs to the first group whose words it uses.
GROUPS = {
    "slurm": r"\b(site: Site|two_racks)\b",
    "object store": r"\b(seaweed|new_bucket|proxy: Proxy)\b",
    "pages": r"\b(browser|tab|opened|served|shelf|documentation)\b(: \"?(Browser|Opened|Served|Path)|\))",
    "ray": r"\bimport ray\b|ray_nodes",
}
# What takes longest starts first, so that no worker is left alone with it at the end.
FIRST = (
    "tests/slurm/",
    "tests/record/",
    "tests/elastic/",
    "tests/data/",
    "tests/deflate/",
    "tests/cluster/",
    "tests/web/",
    "tests/tune/",
    "tests/cli/test_machine.py",
    "tests/cli/test_tune.py",
    "tests/docs/",
    "tests/fleet/",
    "tests/scripts/",
    "tests/validation/",
    "tests/cli/test_recommend.py",
    "tests/cloud/test_handover.py",
    "tests/machine/",
    "tests/test_package.py",
)


@cache
def group_of(file: str) -> str:
    """The unit in which a worker gets tests: a file, or the group of files that share something expensive."""
    text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
    return next((name for name, words in GROUPS.items() if re.search(words, text)), file)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the groups: the longest first, every other file as collected."""

    def order(item: pytest.Item) -> tuple[int, str]:
        file = item.nodeid.partition("::")[0]
        place = next((number for number, start in enumerate(FIRST) if file.startswith(start)), len(FIRST))
        group = group_of(file)
        return (list(GROUPS).index(group) - len(GROUPS) if group in GROUPS else place), group

    items.sort(key=order)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile` with groups of files (pytest-xdist's own group marks belong to single tests)."""
    from xdist.scheduler import LoadScopeScheduling

    class LoadGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    return LoadGroups(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was not covered because something is missing here."""
    reasons = {
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    }
    missing = sorted(reason for reason in reasons if reason.startswith("needs "))
    if missing:
        terminalreporter.section("not covered here")
        for reason in missing:
            terminalreporter.write_line(reason)
