"""The page of every kind of result in real Chromium: self-contained, legible, on two sheets, harmless."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.conftest import Cli
from tests.report.conftest import pictures
from tests.report.made_runs import make_full_run
from tests.report.test_browser import _CONTRASTS, TEXT_CONTRAST, Opened
from tests.web import axe
from tests.web.conftest import PATIENCE_MS
from tests.web.made import SCRIPT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Kind = Literal["profile", "profile-hostile", "profile-wide", "whatif", "recommend", "spot", "simulate"]
KINDS: tuple[Kind, ...] = ("profile", "profile-hostile", "profile-wide", "whatif", "recommend", "spot", "simulate")
# What each page has to show, by the words that name its pictures.
SHOWS = {
    "profile": ("A step over time", "When gradients are ready", "narrowest"),
    "profile-wide": ("1,024 ranks", "by rank"),
    "whatif": ("Speed over numbers of GPUs", "Critical path"),
    "recommend": ("Time and cost of fleets",),
    "spot": ("When it is finished", "What it costs"),
    "simulate": ("Fraction of jobs over completion time", "Busy GPUs over time", "Waiting jobs over time"),
}


@pytest.fixture(scope="module")
def made(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind, by the functions that the commands call."""
    return {kind: tmp_path_factory.mktemp("pages") / f"{kind}.html" for kind in KINDS}


def _make(kind: Kind, path: Path, shelf: Path, ask: Cli, tmp_path: Path) -> None:
    run = str(shelf / "cold")
    if kind == "profile":
        ask("report", run, "--html", str(path))
    elif kind.startswith("profile-"):
        ask("report", str(shelf / kind.partition("-")[2]), "--html", str(path))
    elif kind == "whatif":
        ask("whatif", run, "--nodes", "8", "--workers", "4", "--html", str(path))
    elif kind == "recommend":
        ask("recommend", run, "--samples", "1e8", "--deadline", "6h", "--clouds", "aws", "--html", str(path))
    elif kind == "spot":
        words = ("--samples", "1e8", "--mean-life", "12h", "--price", "2", "--spot-price", "0.8", "--replays", "500")
        ask("spot", "plan", run, *words, "--deadline", "48h", "--html", str(path))
    else:
        trace = tmp_path / f"{SCRIPT[:8]}.csv"
        rows = [f"j{i},{i * 30},{1 << (i % 4)},{60 + 37 * i % 600}" for i in range(40)]
        trace.write_text("\n".join(["job_id,submit_s,gpus,duration_s", *rows]) + "\n")
        cluster = ("--cluster", "racks=1,machines=2,gpus=8", "--policy", "fifo,srtf")
        ask("simulate", str(trace), *cluster, "--html", str(path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_self_contained_legible_and_prints(
    browser: "Browser", made: dict[str, Path], shelf: Path, ask: Cli, tmp_path: Path, kind: Kind
) -> None:
    path = made[kind]
    _make(kind, path, shelf, ask, tmp_path)
    assert path.stat().st_size <= 1_000_000
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        opened = Opened(browser, path, scheme)
        assert opened.said == []
        assert [url for url in opened.asked if not url.startswith("data:")] == [path.as_uri()]
        found = opened.page.evaluate(_CONTRASTS)
        assert [text for text in found["texts"] if text[1] < TEXT_CONTRAST] == []
        # Contrast in both; the rest of what axe knows is the same in both.
        wrong = axe.violations(opened.page) if scheme == "light" else None
        if wrong is not None:
            assert wrong == []
        text = opened.page.evaluate("document.documentElement.textContent")
        assert [words for words in SHOWS.get(kind, ()) if words not in text] == []
        assert opened.page.evaluate("window.hacked === undefined && !document.querySelector('script, img')")
        opened.page.screenshot(path=pictures() / f"report-{kind}-{scheme}.png", full_page=True)
        opened.context.close()
    opened = Opened(browser, path, "light")
    opened.page.emulate_media(media="print")
    paper = opened.page.pdf(path=pictures() / f"report-{kind}.pdf", prefer_css_page_size=True, print_background=True)
    # Names of a hundred letters take a third sheet.
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= (3 if kind == "profile-hostile" else 2)
    opened.context.close()


def test_a_run_that_says_little_has_no_empty_pictures(ask: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")
    (tmp_path / "run" / "gradients.npz").unlink()
    ask("report", str(tmp_path / "run"), "--html", str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "A step over time" not in text
    assert "by rank" not in text, "four ranks have a table, from eight on a map"
    assert "rank 3" in text


@pytest.mark.parametrize("name", ["index", "card", "api", "evidence/index"])
def test_the_documentation_site_is_legible(browser: "Browser", name: str, documentation: Path) -> None:
    """Opened from the folder, as from a server: quiet, nothing from elsewhere, clean by axe in both schemes."""
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        opened = Opened(browser, documentation / f"{name}.html", scheme)
        assert opened.said == []
        assert [url for url in opened.asked if not url.startswith((documentation.as_uri(), "data:", "blob:"))] == []
        wrong = axe.violations(opened.page)
        if wrong is not None:
            assert wrong == []
        opened.page.screenshot(path=pictures() / f"site-{name.replace('/', '-')}-{scheme}.png")
        opened.context.close()


def test_the_site_is_searched_without_a_server(browser: "Browser", documentation: Path) -> None:
    opened = Opened(browser, documentation / "index.html", "light")
    opened.page.get_by_role("textbox", name="Search").fill("checkpoint")
    opened.page.wait_for_selector(".md-search-result__item a", timeout=PATIENCE_MS)
    assert opened.said == []
    opened.context.close()
