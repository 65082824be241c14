"""axe-core, the usual checker of accessibility, from npm; our own check of contrast where it cannot be had."""

import shutil
import subprocess
import tarfile
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.conftest import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

VERSION = "4.14.0"
# WCAG 2.2 A and AA, and what axe calls best practice.
_RUN = """async () => {
  const found = await axe.run(document, {resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a',
    'wcag21aa', 'wcag22aa', 'best-practice']});
  return found.violations.map((v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160))]);
}"""


@cache
def source() -> str | None:
    """axe.min.js, fetched once into build/; None where neither npm nor its registry is to be had."""
    kept = ROOT / "build" / f"axe-{VERSION}.min.js"
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        return None
    folder = ROOT / "build" / "axe"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([npm, "pack", f"axe-core@{VERSION}"], cwd=folder, check=True, capture_output=True, timeout=60)
        with tarfile.open(folder / f"axe-core-{VERSION}.tgz") as packed:
            member = packed.extractfile("package/axe.min.js")
            assert member is not None
            text = member.read().decode()
    except (subprocess.SubprocessError, OSError, tarfile.TarError, KeyError):
        return None
    kept.write_text(text, encoding="utf-8")
    return text


def violations(page: "Page") -> list[Any] | None:
    """What axe finds wrong; None where axe is not to be had. The page's own policy does not hold for the checker."""
    text = source()
    if text is None:
        return None
    page.evaluate(text)
    found: list[Any] = page.evaluate(_RUN)
    return found
