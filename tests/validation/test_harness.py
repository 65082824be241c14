"""The judge, and that the report in the repository is what the cases give today."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from validation.harness import Case, NoInputError, judge


def made(**changes: object) -> Case:
    fields: dict[str, object] = {
        "id": "stash-1",
        "case": "c",
        "source": "s",
        "method": "m",
        "published": 10.0,
        "unit": "s",
        "tolerance": 1.0,
        "compute": lambda _: 10.5,
    }
    return Case(**(fields | changes))  # type: ignore[arg-type]


def no_input(_: Path) -> float:
    raise NoInputError("not public")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "reproduced"),
        ({"compute": lambda _: 11.0}, "reproduced"),
        ({"compute": lambda _: 12.0}, "off by +20.0%"),
        ({"compute": lambda _: 12.0, "misfit": "another disk"}, "misfit (another disk)"),
        ({"published": None}, "unjudged (the truth is kept elsewhere)"),
        ({"compute": no_input}, "no-input (not public)"),
        ({"published": 0.0, "compute": lambda _: 3.0}, "off by +3 s"),
    ],
)
def test_verdicts(changes: dict[str, object], verdict: str, tmp_path: Path) -> None:
    assert judge(made(**changes), tmp_path).verdict == verdict


def test_the_report_in_the_repository_is_current(shared_data: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "validation", "--into", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    committed = (ROOT / "docs/VALIDATION.md").read_text()
    assert (tmp_path / "docs/VALIDATION.md").read_text() == committed, "run `make validate` and commit the result"
    rows = json.loads((tmp_path / "build/validation.json").read_text())
    assert {"id", "case", "value", "published", "unit", "tolerance", "verdict"} == set(rows[0])
    words = {row["verdict"].split()[0] for row in rows}
    assert words <= {"reproduced", "off", "misfit", "unjudged", "no-input"}
