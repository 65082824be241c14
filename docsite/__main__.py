"""`python -m docsite [FOLDER]`: Markdown in, a folder of pages out. No script, nothing from elsewhere."""

import itertools
import re
import shutil
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from docsite.nav import Page, pages
from stallwise.report.style import BODY_STYLE, STYLE

ROOT = Path(__file__).parents[1]
_LOOKS = """
.stallwise { max-width: 78rem; display: grid; grid-template-columns: 13rem minmax(0, 1fr); gap: 0 2.5rem; }
.stallwise > nav { display: block; font-size: .9em; margin: 0; }
.stallwise > nav h2 { border: 0; margin: 1.1em 0 .2em; padding: 0; font-size: 1em; }
.stallwise > nav ul { list-style: none; padding: 0; margin: 0; }
.stallwise > nav li { margin: .15rem 0; }
.stallwise > nav a[aria-current] { color: var(--ink); font-weight: 650; }
.stallwise main { min-width: 0; max-width: 54rem; }
.stallwise main h3 { margin: 1.4em 0 .3em; }
.stallwise main a { color: var(--network); }
.stallwise pre { overflow-x: auto; background: var(--raised); border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; font-size: .82em; line-height: 1.35; }
.stallwise code { font-family: ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; font-size: .92em;
  overflow-wrap: anywhere; }
.stallwise pre code { font-size: 1em; overflow-wrap: normal; }
.stallwise main li { margin: .25rem 0; }
.stallwise main td, .stallwise main tbody th { white-space: normal; vertical-align: top; }
.stallwise .skip { position: absolute; left: -9999px; }
.stallwise .skip:focus { position: static; grid-column: 1 / -1; }
@media (max-width: 52rem) { .stallwise { display: block; } }
@media print { .stallwise { display: block; } }
"""


def build(root: Path, out: Path) -> list[Path]:
    """Write the site; returns its pages."""
    groups = pages(root)
    every = [page for _, members in groups for page in members]
    files = {page.source.resolve(): page.file for page in reversed(every) if page.section is None}
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "style.css").write_text(BODY_STYLE + STYLE + _LOOKS, encoding="utf-8")
    written = []
    for page in every:
        body = render(page, files)
        (out / page.file).write_text(_document(page, groups, body), encoding="utf-8")
        written.append(out / page.file)
    return written


def render(page: Page, files: dict[Path, str]) -> str:
    """One page's Markdown as HTML; markup in the Markdown stays text."""
    text = page.source.read_text(encoding="utf-8")
    if page.section is not None:
        found = re.search(rf"^## {re.escape(page.section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise LookupError(f"{page.source} has no section {page.section!r}")
        text = f"# {page.section}\n{found[1]}"
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(text)
    _name_headings(tokens)
    _frame_tables(tokens)
    for token in tokens:
        if token.children:
            token.children = _linked(token.children, page, files)
    return str(reader.renderer.render(tokens, reader.options, {}))


def anchor(words: str) -> str:
    """The id of a heading, as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")


def _name_headings(tokens: Sequence[Token]) -> None:
    seen: dict[str, int] = {}
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            key = anchor(inline.content)
            seen[key] = seen.get(key, 0) + 1
            token.attrSet("id", key if seen[key] == 1 else f"{key}-{seen[key] - 1}")


def _frame_tables(tokens: list[Token]) -> None:
    """Wide tables and blocks scroll by themselves, also from the keyboard."""
    for token in tokens:
        if token.type == "fence":
            token.info = ""
        if token.type == "th_open":
            token.attrSet("scope", "col")


def _linked(children: list[Token], page: Page, files: dict[Path, str]) -> list[Token]:
    """Links to Markdown become links to its page; links to other files of the repository become plain words."""
    kept: list[Token] = []
    dead = 0
    for token in children:
        if token.type == "link_open":
            href = _href(str(token.attrGet("href") or ""), page, files)
            if href is None:
                dead += 1
                continue
            token.attrSet("href", href)
        elif token.type == "link_close" and dead:
            dead -= 1
            continue
        kept.append(token)
    return kept


def _href(href: str, page: Page, files: dict[Path, str]) -> str | None:
    if re.match(r"[a-z]+:", href) or href.startswith("#"):
        return href
    path, mark, fragment = href.partition("#")
    file = files.get((page.source.parent / path).resolve())
    return None if file is None else f"{file}{mark}{fragment}"


def _document(page: Page, groups: list[tuple[str, list[Page]]], body: str) -> str:
    nav = "".join(
        f"<h2>{escape(group)}</h2><ul>{''.join(_link(one, page) for one in members)}</ul>" for group, members in groups
    )
    framed = body.replace("<pre>", '<pre tabindex="0">').replace("<table>", '<div class="scroll" tabindex="0"><table>')
    # A column without a name has no heading.
    framed = framed.replace("</table>", "</table></div>").replace('<th scope="col"></th>', "<td></td>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(page.name)} · Stallwise</title>\n"
        '<link rel="stylesheet" href="style.css">\n</head>\n<body>\n<div class="stallwise">'
        f'<a class="skip" href="#text">To the text</a><nav aria-label="Pages">{nav}</nav>'
        f'<main id="text">{framed}</main></div>\n</body>\n</html>\n'
    )


def _link(one: Page, here: Page) -> str:
    current = ' aria-current="page"' if one == here else ""
    return f'<li><a href="{one.file}"{current}>{escape(one.name)}</a></li>'


def main() -> None:
    """Build into the folder named, else build/site."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    written = build(ROOT, out)
    sys.stdout.write(f"{len(written)} pages, {out / 'index.html'}\n")


if __name__ == "__main__":
    main()
