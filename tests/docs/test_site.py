"""The documentation as a site: whole, without a broken link, with nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

from stallwise.run.schema import TABLES
from tests.conftest import ROOT, needs


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> "subprocess.CompletedProcess[str]":
    """Build the site as `make site` does. A warning (a dead link, a heading that is not there) fails it."""
    needs("mkdocs")
    needs("material")
    needs("mkdocstrings")
    # No network is needed; a proxy that leads nowhere shows it for whatever would ask for one.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(
        [*command, "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        timeout=250,
    )


def test_every_document_has_a_page(documentation: Path) -> None:
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "evidence").glob("*.md")]
    names = [path.relative_to(ROOT).as_posix().removeprefix("docs/") for path in sources]
    pages = {re.sub(r"(^|/)README\.md$", r"\1index.md", name).removesuffix(".md") + ".html" for name in names}
    assert {page for page in pages if not (documentation / page).exists()} == set()
    front = (documentation / "index.html").read_text(encoding="utf-8")
    assert [page for page in sorted(pages) if f'href="{page}"' not in front] == [], "the navigation leads to every page"


def test_links_lead_to_pages_and_headings_of_the_site(documentation: Path) -> None:
    pages = [path for path in documentation.rglob("*.html") if path.name != "404.html"]
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    ids = {path: set(re.findall(r'id="([^"]+)"', text)) for path, text in texts.items()}
    dead = []
    for path, text in texts.items():
        for href in re.findall(r'<a [^>]*href="([^"]+)"', text):
            if re.match(r"[a-z]+:", href):
                continue
            file, _, fragment = href.partition("#")
            target = (path.parent / file).resolve() if file else path
            if target not in texts or (fragment and fragment not in ids[target] and fragment != "__skip"):
                dead.append(f"{path.relative_to(documentation)}: {href}")
    assert dead == []


def test_pages_load_nothing_from_elsewhere(documentation: Path) -> None:
    for path in [*documentation.rglob("*.html"), *documentation.rglob("*.css")]:
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="([^"]+)"|url\(["\']?([^)"\']+)', text)
        outside = [one for pair in loaded for one in pair if re.match(r"(https?:)?//", one)]
        assert outside == [], path.name
        for one in (part for pair in loaded for part in pair if part and not part.startswith("data:")):
            file = one.partition("?")[0].partition("#")[0]
            assert not file or (path.parent / file).exists() or path.name == "404.html", f"{path.name}: {one}"


def test_every_command_and_its_options_are_listed(documentation: Path) -> None:
    text = (documentation / "options.html").read_text(encoding="utf-8")
    for name in ("stallwise profile", "stallwise spot plan", "stallwise data warm"):
        assert f">{name}</h2>" in text
    assert "<code>--fail-if-slower</code>" in text


def test_every_column_of_a_run_record_is_listed(documentation: Path) -> None:
    text = (documentation / "run-record.html").read_text(encoding="utf-8")
    for name, table in TABLES.items():
        section = text.partition(f'<h3 id="{name}">')[2].partition("<h")[0]
        assert [column for column in table.columns if f"<code>{column}</code>" not in section] == [], name


def test_a_dead_link_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# One\n\n[gone](nowhere.md) and [no such heading](#none)\n")
    text = (ROOT / "mkdocs.yml").read_text()
    strict = "\n".join(line for line in re.findall(r"^validation:\n(?:  .*\n)+", text, re.MULTILINE))
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\n{strict}")
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
    assert "#none" in done.stderr
