"""The judge, and that the report in the repository is what the cases give today."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from validation.__main__ import all_cases
from validation.harness import Case, NoInputError, Row, in_order, judge, judge_all
from validation.origins import evidence_of, unused_rules
from validation.report import _counts, as_markdown, forecasts


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
        ({"compute": lambda _: 12.0, "reason": "another disk"}, "off by +20.0% (another disk)"),
        ({"incomparable": "another disk"}, "not comparable (another disk)"),
        ({"published": None}, "forecast (nobody has published the truth)"),
        ({"compute": no_input}, "no-input (not public)"),
        ({"published": 0.0, "compute": lambda _: 3.0}, "off by +3 s"),
    ],
)
def test_verdicts(changes: dict[str, object], verdict: str, tmp_path: Path) -> None:
    assert judge(made(**changes), tmp_path).verdict == verdict


# Most of the time of all cases; these are computed in `make soak`.
SLOW = frozenset({"cluster-V7", "cluster-V17", "cluster-V20", "spot-V25", "spot-V28"})
ORIGINS = {"paper", "authors' data", "peer's program", "own"}
REPRODUCED_EVIDENCE = 134


def _of(line: str) -> str:
    """The id of the case that a line of a report is about: a row of its table, or how ours is computed."""
    return line.removeprefix("- **").removeprefix("| ").split("**")[0].split(" |")[0]


def _lines(report: str) -> list[str]:
    """Without the counts of all verdicts and without the slow cases."""
    counts = {*ORIGINS, "of these, evidence", "from"}
    return [line for line in report.splitlines() if _of(line) not in SLOW | counts and not line.startswith("| **of")]


@pytest.mark.filterwarnings("default")
def test_the_reports_in_the_repository_are_current(shared_data: Path) -> None:
    cases = all_cases()
    assert {case.id for case in cases} > SLOW
    fast = [case for case in cases if case.id not in SLOW]
    rows = judge_all(fast, shared_data)
    for name, written in (("validation", as_markdown(fast, rows)), ("forecasts", forecasts(fast, rows))):
        committed = (ROOT / f"evidence/{name}.md").read_text()
        assert len(_lines(committed)) > 300
        assert _lines(written) == _lines(committed), "run `make validate` and commit the result"


def _committed() -> list[tuple[Case, str]]:
    """The judged cases with the verdicts of the committed report."""
    lines = (ROOT / "evidence/validation.md").read_text().splitlines()
    head = lines.index("| --- " * 8 + "|")
    table = [line.strip("| ").split(" | ") for line in lines[head + 1 : lines.index("", head)]]
    judged = [case for case in in_order(all_cases()) if case.published is not None]
    assert [(cells[0], cells[1]) for cells in table] == [(case.id, case.case) for case in judged]
    return [(case, cells[-1]) for case, cells in zip(judged, table, strict=True)]


def test_the_counts_of_the_committed_report_are_right() -> None:
    report = (ROOT / "evidence/validation.md").read_text()
    rows = [(case, Row(**_blank(case), verdict=verdict)) for case, verdict in _committed()]
    assert all(line in report for line in _counts(rows))


def _blank(case: Case) -> dict[str, Any]:
    return {"id": case.id, "case": case.case, "value": None, "published": None, "unit": "", "tolerance": 0.0}


def test_reproduced_evidence_does_not_shrink() -> None:
    """A row that was reproduced and is off now must be noticed, even where the report was made anew."""
    verdicts = Counter(verdict.split()[0] for case, verdict in _committed() if evidence_of(case).counts)
    assert verdicts["reproduced"] >= REPRODUCED_EVIDENCE


def test_every_case_has_an_origin_and_every_rule_a_case() -> None:
    cases = all_cases()
    assert all(evidence_of(case).origin in ORIGINS for case in cases)
    assert unused_rules(cases) == []
    with pytest.raises(LookupError, match="stash-99"):
        evidence_of(made(id="stash-99"))


def test_our_own_numbers_and_identities_are_no_evidence() -> None:
    worth = {case.id: evidence_of(case).counts for case in all_cases()}
    assert not any(worth[name] for name in ("spot-V21", "spot-V10", "stash-22", "graph-V9", "loading-13"))
    assert all(worth[name] for name in ("cluster-V1", "graph-V5", "cluster-V8"))


@pytest.mark.soak
def test_the_program_writes_the_reports_in_the_repository(shared_data: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "validation", "--into", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name in ("evidence/validation.md", "evidence/forecasts.md"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), "run `make validate` and commit the result"
    rows = json.loads((tmp_path / "build/validation.json").read_text())
    judged = {"id", "case", "value", "published", "unit", "tolerance", "verdict"}
    assert judged | {"origin", "computation", "weakness", "counts"} == set(rows[0])
