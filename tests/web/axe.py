"""axe-core, the usual checker of accessibility; `make system` installs it. Our own check of contrast needs nothing."""

from functools import cache
from typing import TYPE_CHECKING, Any

from tests.system import axe_file

if TYPE_CHECKING:
    from playwright.sync_api import Page

FILE = axe_file()
# WCAG 2.2 A and AA, and what axe calls best practice.
_RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a',
    'wcag21aa', 'wcag22aa', 'best-practice']});
  return found.violations.map((v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160))]);
}"""


@cache
def source() -> str | None:
    """axe.min.js where `make system` puts it; None where it was not asked to."""
    return FILE.read_text(encoding="utf-8") if FILE.exists() else None


def violations(page: "Page") -> list[Any] | None:
    """What axe finds wrong; None where axe is not to be had. The page's own policy does not hold for the checker."""
    text = source()
    if text is None:
        return None
    page.evaluate(text)
    found: list[Any] = page.evaluate(_RUN)
    return found
