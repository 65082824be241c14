"""Claims of benchmarks: what they print, what the page says, and that every bar can be missed."""

import ast
import json
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.harness import Result
from tests.conftest import ROOT


@pytest.mark.parametrize(("held", "verdict"), [(True, "held"), (False, "missed"), (None, "shown")])
def test_verdicts(held: bool | None, verdict: str) -> None:
    assert Result(claim="c", measured="m", held=held).verdict == verdict


def test_the_page_holds_the_last_run_of_every_benchmark(tmp_path: Path) -> None:
    kept, written = tmp_path / "kept.json", tmp_path / "page.md"
    busy = {"day": "2026-01-02", "cores": 2, "load": 7.5, "busy": True}
    quiet = {"day": "2026-01-03", "cores": 2, "load": 0.1, "busy": False}
    page.keep("b", busy, [Result(claim="replaced", measured="1×", held=True)], kept, written)
    page.keep("a", busy, [Result(claim="c | d", measured="2×")], kept, written)
    page.keep("b", quiet, [Result(claim="new", measured="3× (2× to 4×)", held=False)], kept, written)
    text = written.read_text()
    assert "2 claims of 2 benchmarks: 0 held, 1 missed, 1 shown." in text
    assert "2026-01-02, 2 cores, busy (load 7.5)." in text
    assert "| new | 3× (2× to 4×) | missed |" in text
    assert "| c \\| d | 2× | shown |" in text
    assert "replaced" not in text
    assert text.index("## a") < text.index("## b")


def test_the_page_in_the_repository_is_made_from_what_was_kept() -> None:
    assert page.PAGE.read_text() == page.as_markdown(json.loads(page.KEPT.read_text()))


def test_no_claim_is_held_whatever_was_measured() -> None:
    keywords = (
        (path.name, node)
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "held"
    )
    constant = [(name, node.value.value) for name, node in keywords if isinstance(node.value, ast.Constant)]
    # Missing inputs are misses, not results.
    assert all(value is False for _, value in constant), constant
