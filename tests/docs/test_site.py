"""The documentation as a site: whole, its links lead somewhere, nothing from elsewhere, no script."""

import re
from pathlib import Path

import pytest

from docsite.__main__ import build
from docsite.nav import pages
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build(ROOT, folder)
    return folder


def test_every_document_has_a_page_and_the_order_is_that_of_a_reader(site: Path) -> None:
    groups = pages(ROOT)
    sources = [page.source for _, members in groups for page in members]
    assert set((ROOT / "docs").glob("*.md")) <= set(sources)
    names = [page.name for _, members in groups for page in members]
    assert names[:2] == ["Quick start", "The words"]
    for wanted in ("How sure it is", "Limits", "Architecture", "In the browser", "Recommend"):
        assert wanted in names
    assert {path.name for path in site.glob("*.html")} == {page.file for _, members in groups for page in members}


def test_links_lead_to_pages_and_headings_of_the_site(site: Path) -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    ids = {name: set(re.findall(r'id="([^"]+)"', text)) for name, text in texts.items()}
    dead = []
    for name, text in texts.items():
        for href in re.findall(r'<a [^>]*href="([^"]+)"', text):
            if re.match(r"[a-z]+:", href):
                continue
            file, _, fragment = href.partition("#")
            if (file or name) not in texts or (fragment and fragment not in ids[file or name]):
                dead.append(f"{name}: {href}")
    assert dead == []


def test_pages_need_nothing_else(site: Path) -> None:
    for path in site.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe)|@import", text), path.name
        assert len(re.findall("<h1", text)) == 1, path.name
        assert re.findall(r'<link rel="stylesheet" href="([^"]+)"', text) == ["style.css"]
    assert "$ make demo" in (site / "index.html").read_text(encoding="utf-8")
