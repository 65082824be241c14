"""Wrapping a script changes nothing that it can see, whatever shape its training loop has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import texts
from tests.record.jobs import JOBS, Profiled

# Another process through the same code; those in `make test` are the ways that differ.
SOAK = pytest.mark.soak


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"STALLWISE_RUN": "run", "PYTHONPATH": "extra"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=250
    )


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder to work in, with a link to the script and a package that holds it."""
    (tmp_path / "linked.py").symlink_to(JOBS / "faithful.py")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text((JOBS / "faithful.py").read_text())
    (tmp_path / "sibling.py").write_text((JOBS / "sibling.py").read_text())
    return tmp_path


@pytest.mark.parametrize(
    "target", [[str(JOBS / "faithful.py")], pytest.param(["linked.py"], marks=SOAK), ["-m", "package.tool"]]
)
def test_the_script_sees_what_it_would_see_without_us(linked: Path, target: list[str]) -> None:
    plain = run(linked, *target, "end", "--flag", "-x=1")
    watched = run(linked, "-m", "stallwise.record", *target, "end", "--flag", "-x=1")
    assert watched.returncode == plain.returncode == 0, watched.stderr
    assert json.loads(watched.stdout.splitlines()[0]) == json.loads(plain.stdout.splitlines()[0])
    assert watched.stdout == plain.stdout, "exit handlers run too"


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("hook", 1),
        ("interrupt", 130),
        *(
            pytest.param(how, code, marks=SOAK)
            for how, code in (("text", 1), ("code", 3), ("raise", 1), ("missing", 1))
        ),
    ],
)
def test_the_script_ends_as_it_would_end_without_us(tmp_path: Path, how: str, code: int) -> None:
    script = str(JOBS / "faithful.py")
    plain = run(tmp_path, script, how)
    watched = run(tmp_path, "-m", "stallwise.record", script, how)
    assert watched.returncode == code
    assert plain.returncode in (code, -2), "a shell shows 130 for a script that ends by SIGINT"
    ours = [line for line in watched.stderr.splitlines() if line.startswith("stallwise: ")]
    assert watched.stderr == plain.stderr + "".join(f"{line}\n" for line in ours)
    assert len(ours) == 1, "where the record is, and how to join it"
    assert "stallwise run join run" in ours[0]


def test_a_syntax_error_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    watched = run(tmp_path, "-m", "stallwise.record", "broken.py")
    assert watched.returncode == 1
    assert "stallwise.record" not in watched.stderr
    assert "SyntaxError" in watched.stderr
    assert "Traceback" not in watched.stderr


@pytest.mark.parametrize(
    "shape",
    [
        "spawn",
        "critic",
        *(pytest.param(shape, marks=SOAK) for shape in ("workers", "persistent", "accumulate", "amp", "evaluate")),
    ],
)
def test_training_loops_of_many_shapes_are_profiled(tmp_path: Path, shape: str) -> None:
    job = Profiled(tmp_path, "--json", "--max-time", "0.8s", str(JOBS / "shapes.py"), shape).ended(0)
    found = json.loads(job.out)
    step_s = 0.0075 if shape == "critic" else 0.005
    assert found["step_s"] >= step_s, "a step is the whole repetition"
    assert found["split"]["prep"] is not None
    assert "Traceback" not in job.err
    assert job.litter() == []


def test_an_epoch_keeps_its_length_so_that_schedules_hold(tmp_path: Path) -> None:
    job = Profiled(tmp_path, str(JOBS / "shapes.py"), "one_cycle").ended(0)
    assert "trained to the end" in job.out
    assert "The script ended by itself" in " ".join(texts(job.manifest["notes"]))


def test_a_script_that_holds_on_is_left_all_the_same(tmp_path: Path) -> None:
    job = Profiled(tmp_path, "--max-time", "0.5s", str(JOBS / "shapes.py"), "stubborn").ended(0)
    assert "swallowed ProfileDone" in job.out
