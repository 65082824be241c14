"""MkDocs hooks: pages from beside docs/, links of the repository, pages outside the navigation, options, run tables.

Pages link to each other as files of the repository, so that they also work where the repository is read. On the site
`evidence/` and some files of the top are pages too; what is no page (a program, a table) becomes plain words.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation, Section
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_OPTIONS = "<!-- options -->"
_RUN_TABLES = "<!-- run tables -->"


def source_of(src_uri: str) -> str:
    """Where a page of the site lies in the repository."""
    return src_uri if src_uri.startswith("evidence/") or src_uri in BESIDE else f"docs/{src_uri}"


def page_of(source: str) -> str | None:
    """The page that a file of the repository becomes; None where it becomes none."""
    if source.startswith("docs/"):
        return source.removeprefix("docs/")
    return source if (source.startswith("evidence/") and source.endswith(".md")) or source in BESIDE else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take evidence/ and some files of the top as pages."""
    for path in [*sorted((ROOT / "evidence").glob("*.md")), *(ROOT / name for name in BESIDE)]:
        if path.exists():
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Put every page that mkdocs.yml does not name under its folder's page, or under "More"."""
    named = {page.file.src_uri for page in nav.pages}
    rest: dict[str, list[Page]] = {}
    for file in files.documentation_pages():
        if file.src_uri not in named:
            page = file.page or Page(None, file, config)
            folder = posixpath.dirname(file.src_uri)
            rest.setdefault(folder if folder in ("decisions", "evidence") else "", []).append(page)
            nav.pages.append(page)
    for folder, pages in rest.items():
        title = {"decisions": "Decisions", "evidence": "Evidence"}.get(folder, "More")
        section = Section(title, list(pages))
        front = next((page for page in nav.pages if page.file.src_uri == f"{folder}/README.md"), None)
        if front is not None:
            siblings = front.parent.children if front.parent else nav.items
            siblings[siblings.index(front)] = section
            section.parent, section.children = front.parent, [front, *pages]
            front.parent = section
        else:
            nav.items.append(section)
        for page in pages:
            page.parent = section
    _chain(nav)
    return nav


def _chain(nav: Navigation) -> None:
    """Order the pages as they are shown, for "next" and "previous"."""
    ordered: list[Page] = []

    def walk(items: list[Any]) -> None:
        for item in items:
            if isinstance(item, Section):
                walk(item.children)
            elif not isinstance(item, Link):
                ordered.append(item)

    walk(nav.items)
    nav.pages = ordered
    for before, page, after in zip([None, *ordered], ordered, [*ordered[1:], None], strict=False):
        page.previous_page, page.next_page = before, after


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links of the repository into links of the site, and options into a list of them."""
    folder = posixpath.dirname(source_of(page.file.src_uri))
    for marker, generated in ((_OPTIONS, _options), (_RUN_TABLES, _run_tables)):
        if marker in markdown:
            markdown = markdown.replace(marker, generated())
    pieces = _FENCE.split(markdown)
    pieces[::2] = [_LINK.sub(lambda match: _linked(match, folder, page.file.src_uri), piece) for piece in pieces[::2]]
    # MkDocs knows one word after a fence.
    return re.sub(r"^```(\w+) [\w ]+$", r"```\1", "".join(pieces), flags=re.MULTILINE)


def _linked(match: re.Match[str], folder: str, src_uri: str) -> str:
    mark, words, href = match.groups()
    if re.match(r"[a-z]+:", href) or href.startswith("#"):
        return match[0]
    path, hash_, fragment = href.partition("#")
    source = posixpath.normpath(posixpath.join(folder, path))
    if source == "README.md":
        source = "docs/index.md"
    if not (ROOT / source).exists():
        return match[0]  # MkDocs warns, and the build fails
    target = page_of(source)
    if target is None or (not mark and not target.endswith(".md")):
        return words
    return f"{mark}[{words}]({posixpath.relpath(target, posixpath.dirname(src_uri) or '.')}{hash_}{fragment})"


def _options() -> str:
    """Every command with its options, as the program declares them."""
    os.environ["COLUMNS"] = "100"
    from stallwise.cli.main import app

    lines: list[str] = []

    def walk(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for key in sorted(command.commands):
                walk(command.commands[key], f"{name} {key}")
            return
        if command.hidden:
            return
        summary = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
        lines.extend([f"## {name}", "", summary, ""])
        rows = [row for parameter in command.params if (row := _row(parameter))]
        if rows:
            lines.extend(["| option | means |", "| --- | --- |", *rows, ""])

    walk(typer.main.get_command(app), "stallwise")
    return "\n".join(lines)


def _run_tables() -> str:
    """Every table of a run record with its columns, as `stallwise.run.schema` declares them."""
    from stallwise.run.schema import TABLES

    lines: list[str] = []
    for name, table in TABLES.items():
        lines += [f"### {name}", "", "| column | type | meaning |", "| --- | --- | --- |"]
        for column, meaning in table.columns.items():
            null = ", *null*" if column in table.nullable else ""
            lines.append(f"| `{column}` | {meaning.dtype}{null} | {meaning.text} |")
        lines.append("")
    return "\n".join(lines)


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    names = ", ".join(f"`{one}`" for one in [*parameter.opts, *parameter.secondary_opts])
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    words = (getattr(parameter, "help", None) or "").replace("|", "\\|").replace("\n", " ")
    return f"| {names} | {words} |"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take what the theme leaves to others from beside the pages."""
    return _complete(output, posixpath.dirname(page.file.dest_uri))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Likewise for pages that no Markdown stands behind (404)."""
    return _complete(output_content, "")


def _complete(html: str, folder: str) -> str:
    # The offline plugin names a script on a server, the logo leads to a folder, the search has no name to be read out.
    own, front = (posixpath.relpath(name, folder or ".") for name in ("site.js", "index.html"))
    html = html.replace("https://unpkg.com/iframe-worker/shim", own)
    html = re.sub(r'<a href="\.\.?" title=', f'<a href="{front}" title=', html)
    return html.replace('data-md-component="search" role', 'data-md-component="search" aria-label="Search" role')
