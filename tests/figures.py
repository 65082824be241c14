"""Measured figures against their bars: what `make truth` judges and prints.

A case is measured once and its first try counts. `Figures.judge` records a row and says nothing; after the body of the
test every row is there, and the test fails if one of them missed. All rows stand in one table at the end of the run
and in `build/truth.json`, misses as misses; so do tests marked `truth` that failed in another way, each with its
reason.
"""

import json
import math
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

_ROWS = pytest.StashKey[list["Row"]]()
_CELLS = pytest.StashKey[list["Cell"]]()
_FAILURES = pytest.StashKey[list["Failure"]]()


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value, what it was compared with, and the bar that was written beforehand."""

    test: str
    name: str
    measured: float
    expected: float
    bar: str
    unit: str
    held: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One interval: whether it covered the value that is known."""

    test: str
    name: str
    covers: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed without a figure that missed: another fact did not hold, or nothing could be measured."""

    test: str
    why: str


class Figures:
    """The rows and cells of one test."""

    def __init__(self, test: str) -> None:
        self.test = test
        self.rows: list[Row] = []
        self.cells: list[Cell] = []

    def judge(
        self, name: str, measured: float, expected: float, *, rel: float = 0.0, abs: float = 0.0, unit: str = "s"
    ) -> bool:
        """Record a value that should be `expected` within `rel` of it or within `abs`, whichever is larger."""
        bar = " or ".join([*[f"± {rel:.0%}"] * (rel > 0), *[f"± {abs:.3g} {unit}"] * (abs > 0)]) or "exact"
        held = math.fabs(measured - expected) <= max(rel * math.fabs(expected), abs)
        return self._add(name, measured, expected, bar, unit, held)

    def at_most(self, name: str, measured: float, bound: float, *, unit: str = "s") -> bool:
        """Record a value that must not exceed `bound`."""
        return self._add(name, measured, bound, "at most", unit, measured <= bound)

    def at_least(self, name: str, measured: float, bound: float, *, unit: str = "s") -> bool:
        """Record a value that must reach `bound`."""
        return self._add(name, measured, bound, "at least", unit, measured >= bound)

    def cover(self, name: str, covers: bool) -> None:
        """Record whether an interval covered the value that is known; the run as a whole is judged on these."""
        self.cells.append(Cell(self.test, name, bool(covers)))

    def _add(self, name: str, measured: float, expected: float, bar: str, unit: str, held: bool) -> bool:
        self.rows.append(Row(self.test, name, float(measured), float(expected), bar, unit, bool(held)))
        return bool(held)

    @property
    def misses(self) -> list[str]:
        """The rows that missed, as sentences."""
        return [
            f"{row.name}: {row.measured:.4g} {row.unit}, expected {row.expected:.4g} ({row.bar})"
            for row in self.rows
            if not row.held
        ]


def judge_coverage(cells: list[bool], confidence: float = 0.95) -> bool:
    """Whether intervals cover as often as their confidence says.

    One-sided exact binomial test at 1 %: with the true coverage at `confidence`, at least this many misses among
    `len(cells)` intervals would be seen in more than one of a hundred runs. No cells are no evidence, and fail.
    """
    misses, n = cells.count(False), len(cells)
    missing = 1 - confidence
    tail = sum(math.comb(n, k) * missing**k * confidence ** (n - k) for k in range(misses, n + 1))
    return n > 0 and tail > 0.01


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Record measured values and judge them after the body of the test."""
    record = Figures(request.node.nodeid)
    request.node.stash[_RECORD] = record
    yield record
    request.config.stash.setdefault(_ROWS, []).extend(record.rows)
    request.config.stash.setdefault(_CELLS, []).extend(record.cells)


_RECORD = pytest.StashKey[Figures]()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Fail a test whose figures missed, once its body has recorded all of them."""
    outcome = yield
    record = pyfuncitem.stash.get(_RECORD, None)
    if record and record.misses:
        pytest.fail("\n".join(record.misses), pytrace=False)
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep the reason of a test of times that failed in another way than by a figure."""
    report = yield
    record = item.stash.get(_RECORD, None)
    if report.failed and call.excinfo and item.get_closest_marker("truth") and not (record and record.misses):
        lines = call.excinfo.exconly(tryshort=True).splitlines() or [call.excinfo.typename]
        item.config.stash.setdefault(_FAILURES, []).append(Failure(item.nodeid, lines[0]))
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Judge the coverage of all intervals together; keep every figure in `build/truth.json`."""
    rows, cells = session.config.stash.get(_ROWS, []), session.config.stash.get(_CELLS, [])
    failures = session.config.stash.get(_FAILURES, [])
    if not rows and not cells and not failures:
        return
    if cells and not judge_coverage([cell.covers for cell in cells]) and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    content = {
        "figures": [asdict(row) for row in rows],
        "intervals": [asdict(cell) for cell in cells],
        "failed": [asdict(failure) for failure in failures],
    }
    path = session.config.rootpath / "build" / "truth.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print every figure, held or missed."""
    rows, cells = config.stash.get(_ROWS, []), config.stash.get(_CELLS, [])
    failures = config.stash.get(_FAILURES, [])
    if rows or failures:
        terminalreporter.section("first measurements")
    if rows:
        for line in table(rows):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"{sum(row.held for row in rows)} of {len(rows)} figures held on the first try")
    for failure in failures:
        terminalreporter.write_line(f"FAILED {failure.test}: {failure.why}")
    if cells:
        covers = [cell.covers for cell in cells]
        verdict = "as 95 % intervals do" if judge_coverage(covers) else "MISSED: fewer than 95 % intervals do"
        terminalreporter.write_line(f"{sum(covers)} of {len(cells)} intervals cover the known value: {verdict}")


def table(rows: list[Row]) -> list[str]:
    """The rows in columns."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'figure':{width}}  {'measured':>10}  {'expected':>10}  {'bar':<22}  verdict"]
    for row in rows:
        measured, expected = (f"{value:.4g} {row.unit}" for value in (row.measured, row.expected))
        verdict = "held" if row.held else f"MISSED ({Path(row.test.partition('::')[0]).name})"
        lines.append(f"{row.name:{width}}  {measured:>10}  {expected:>10}  {row.bar:<22}  {verdict}")
    return lines
