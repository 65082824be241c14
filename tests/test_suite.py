"""The rules of the test suite: what hangs or dies ends the run by name, figures are judged, nothing is installed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import GROUPS, ROOT, group_of
from tests.figures import Figures, Row, judge_coverage, table
from tests.program import run_program

TESTS = ROOT / "tests"
PARALLEL = ("--numprocesses", "2", "--dist", "loadfile", "--max-worker-restart", "0")


def run_tests(folder: Path, text: str, *options: str, **variables: str) -> tuple[int, str]:
    """Run pytest over one file with this repository's settings; exit code and output."""
    (folder / "test_made.py").write_text(text)
    (folder / "conftest.py").write_text("pytest_plugins = ['tests.figures']\nfrom tests.conftest import *\n")
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(folder), "-p", "no:cacheprovider")
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, *options, str(folder / "test_made.py")],
        env=outer | {"PYTHONPATH": str(ROOT), "STALLWISE_REQUIRE": "", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_hangs_fails_with_its_stack(tmp_path: Path) -> None:
    text = "import time\ndef test_hangs():\n    time.sleep(100)\ndef test_other():\n    pass\n"
    code, printed = run_tests(tmp_path, text, "--timeout", "1")
    assert code == 1
    assert "time.sleep(100)" in printed
    assert "1 failed, 1 passed" in printed


def test_a_worker_that_dies_ends_the_run_by_name(tmp_path: Path) -> None:
    text = "import os\ndef test_dies():\n    os._exit(3)\ndef test_other():\n    pass\n"
    code, printed = run_tests(tmp_path, text, *PARALLEL)
    assert code != 0
    assert re.search(r"worker 'gw\d' crashed while running 'test_made.py::test_dies'", printed)


def test_what_is_missing_is_said_and_fails_where_everything_is_required(tmp_path: Path) -> None:
    text = "from tests.conftest import needs\ndef test_needs():\n    needs('no_such_module')\n"
    code, printed = run_tests(tmp_path, text)
    assert code == 0
    assert "not covered here" in printed
    assert "needs the Python package no_such_module" in printed
    code, printed = run_tests(tmp_path, text, STALLWISE_REQUIRE="all")
    assert code == 1


def test_figures_that_miss_fail_after_all_were_recorded(tmp_path: Path) -> None:
    text = (
        "def test_two(figures):\n"
        "    figures.judge('first', 1.2, 1.0, rel=0.1)\n"
        "    figures.judge('second', 1.05, 1.0, rel=0.1)\n"
        "    figures.cover('an interval', True)\n"
    )
    code, printed = run_tests(tmp_path, text)
    assert code == 1
    assert "MISSED" in printed
    assert "1 of 2 figures held on the first try" in printed
    kept = json.loads((tmp_path / "build/truth.json").read_text())
    assert [row["held"] for row in kept["figures"]] == [False, True]


def test_a_test_of_times_that_fails_otherwise_is_reported_and_hides_no_other(tmp_path: Path) -> None:
    text = (
        "import pytest\n"
        "pytestmark = pytest.mark.truth\n"
        "def test_cannot_measure():\n"
        "    raise RuntimeError('no link\\nsecond line')\n"
        "def test_asserts_after_a_figure(figures):\n"
        "    figures.judge('before', 1.0, 1.0, rel=0.1)\n"
        "    assert not 'a stall'\n"
        "def test_misses(figures):\n"
        "    figures.judge('late', 1.2, 1.0, rel=0.1)\n"
        "def test_holds(figures):\n"
        "    figures.judge('last', 1.0, 1.0, rel=0.1)\n"
    )
    code, printed = run_tests(tmp_path, text, "-m", "truth")
    assert code == 1
    assert "FAILED test_made.py::test_cannot_measure: RuntimeError: no link\n" in printed
    kept = json.loads((tmp_path / "build/truth.json").read_text())
    assert [row["held"] for row in kept["figures"]] == [True, False, True]
    assert [failure["test"].partition("::")[2] for failure in kept["failed"]] == [
        "test_cannot_measure",
        "test_asserts_after_a_figure",
    ]


def test_intervals_that_cover_too_seldom_fail_the_run(tmp_path: Path) -> None:
    text = "def test_cells(figures):\n    for number in range(40):\n        figures.cover('cell', number % 5 != 0)\n"
    code, printed = run_tests(tmp_path, text)
    assert code == 1
    assert "32 of 40 intervals cover the known value: MISSED" in printed


def test_coverage_is_judged_as_a_binomial_count() -> None:
    assert judge_coverage([True] * 40)
    assert judge_coverage([False] * 4 + [True] * 36)
    assert not judge_coverage([False] * 8 + [True] * 32), "80 % is not 95 %"
    assert not judge_coverage([]), "no intervals are no evidence"


def test_the_larger_of_two_allowances_counts() -> None:
    figures = Figures("here")
    assert figures.judge("relative", 110.0, 100.0, rel=0.10, abs=1.0)
    assert figures.judge("absolute", 0.5, 0.0, rel=0.10, abs=1.0)
    assert not figures.judge("neither", 112.0, 100.0, rel=0.10, abs=1.0)
    assert figures.at_most("bound", 1.0, 1.0)
    assert not figures.at_least("bound", 0.9, 1.0)
    assert [row.held for row in figures.rows] == [True, True, False, True, False]
    assert len(figures.misses) == 2


def test_the_table_shows_misses_as_misses() -> None:
    row = Row("tests/a/test_b.py::test_c", "stall", 0.063, 0.0709, "± 10%", "s", held=False)
    assert "MISSED (test_b.py)" in table([row])[1]


def test_a_forked_program_is_the_program(tmp_path: Path) -> None:
    done = run_program(["--version"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    real = subprocess.run([sys.executable, "-m", "stallwise", "--version"], capture_output=True, text=True, timeout=250)
    assert done.stdout == real.stdout
    wrong = run_program(["report", "gone"], tmp_path, env=os.environ | {"LC_ALL": "C"})
    assert wrong.returncode == 2
    assert "gone" in wrong.stderr


def test_a_forked_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["ui", str(tmp_path), "--no-browser"], tmp_path, timeout_s=2)
    assert run_program(["--version"], tmp_path).returncode == 0


def test_files_that_share_something_expensive_are_one_group() -> None:
    groups = {group_of(str(path.relative_to(ROOT))) for path in TESTS.rglob("test_*.py")}
    assert set(GROUPS) <= groups, "every group has files"
    assert group_of("tests/model/test_graph.py") == "tests/model/test_graph.py"


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r"importorskip", "needs() of tests/conftest.py, which STALLWISE_REQUIRE=all turns into a failure"),
        (r"mark\.alone", "truth or soak"),
        (r"apt-get\"|npm\b.*install|\"pip\", \"install\"", "make system"),
    ],
)
def test_no_test_skips_or_installs_in_its_own_way(pattern: str, instead: str) -> None:
    allowed = {"test_suite.py", "system.py", "test_package.py"}
    files = [path for path in TESTS.rglob("*.py") if path.name not in allowed]
    assert files
    wrong = [str(path.relative_to(ROOT)) for path in files if re.search(pattern, path.read_text(encoding="utf-8"))]
    assert wrong == [], f"use {instead}"
