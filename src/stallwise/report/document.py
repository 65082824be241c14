"""A whole HTML document around an article, and its way to disk. No script, nothing from elsewhere."""

from html import escape
from pathlib import Path

from stallwise.errors import InputError
from stallwise.report.style import BODY_STYLE, STYLE


def document(title: str, article: str, style: str = "") -> str:
    """The `<article>` as a page of its own; `style` is what only this page needs."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{BODY_STYLE}{STYLE}{style}</style>\n</head>\n<body>\n"
        f"<main>{article}</main>\n</body>\n</html>\n"
    )


def write(page: str, path: Path) -> Path:
    """Write the page to `path` and return it."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The page cannot be written to {path} ({error.strerror}). Name another file with --html."
        ) from None
    return path
