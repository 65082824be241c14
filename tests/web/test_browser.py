"""The browser is given a file that only the user may read; the token is in nobody's arguments, and nothing is left."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pytest

from stallwise.web.browser import redirect_page
from tests.conftest import needs
from tests.run.lines import line_of
from tests.web.conftest import PATIENCE_MS, Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Stands in for a browser: writes down what it was given, and what it finds there. It ends well also when the whole
# group is signalled in its last moment; otherwise the opener would look for another browser.
_BROWSER = """#!/bin/sh
trap '' HUP TERM
echo "$@" >"$SEEN/arguments.new"
path=${1#file://}
stat -c %a "$path" >"$SEEN/mode"
cp "$path" "$SEEN/page"
mv "$SEEN/arguments.new" "$SEEN/arguments"
"""


def _until(there: Path, patience_s: float = 200.0) -> str:
    end = time.monotonic() + patience_s
    while not there.exists():
        assert time.monotonic() < end, f"no {there.name}"
        time.sleep(0.02)
    return there.read_text()


def _until_empty(folder: Path, patience_s: float = 200.0) -> None:
    end = time.monotonic() + patience_s
    while left := list(folder.iterdir()):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.02)


def _default_signals() -> None:
    """A test run under nohup or in the background of a shell ignores some signals, and its children inherit that."""
    for ending in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, signal.SIG_DFL)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    needs("uvicorn")
    folder = tmp_path / "seen"
    for name in ("seen", "temp", "runs"):
        (tmp_path / name).mkdir()
    browser = tmp_path / "browser"
    browser.write_text(_BROWSER)
    browser.chmod(0o755)
    return folder


def _started(seen: Path) -> "subprocess.Popen[str]":
    top = seen.parent
    environment = {**os.environ, "BROWSER": str(top / "browser"), "SEEN": str(seen), "TMPDIR": str(top / "temp")}
    command = [sys.executable, "-m", "stallwise", "ui", str(top / "runs")]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True, preexec_fn=_default_signals
    )


def _gone(server: "subprocess.Popen[str]") -> None:
    server.kill()
    server.wait(60)
    if server.stdout is not None:
        server.stdout.close()


@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM])
def test_nothing_is_left_when_the_whole_group_is_ended(seen: Path, ending: signal.Signals) -> None:
    server = _started(seen)
    try:
        _until(seen / "arguments")
        os.killpg(server.pid, ending)
        server.wait(200)
        _until_empty(seen.parent / "temp")
    finally:
        _gone(server)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_token_is_in_a_private_file_that_goes_with_the_server(seen: Path, ending: signal.Signals) -> None:
    server = _started(seen)
    try:
        given = _until(seen / "arguments").strip()
        address = line_of(server).split()[-1]
        token = address.rpartition("=")[2]
        assert len(token) > 40
        assert token not in given
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert token.encode() not in process.read_bytes()
            except OSError:
                continue
        assert (seen / "mode").read_text().strip() == "600"
        assert token in (seen / "page").read_text()
        file = Path(unquote(urlparse(given).path))
        assert file.parent == seen.parent / "temp"
        assert stat.S_ISREG(file.stat().st_mode)
        server.send_signal(ending)
        server.wait(200)
        _until_empty(seen.parent / "temp")
        assert list((seen.parent / "runs").iterdir()) == [], "nothing is written where the runs are"
    finally:
        _gone(server)


def test_the_file_leads_a_browser_to_the_page(browser: "Browser", served: Served, tmp_path: Path) -> None:
    file = tmp_path / "there.html"
    file.write_text(redirect_page(served.address))
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(file.as_uri())
    page.wait_for_selector("table.list")
    assert page.url.startswith(served.base)
    assert served.token not in page.url
    context.close()


def test_another_port_of_this_host_gets_no_cookie(browser: "Browser", served: Served) -> None:
    """Browsers send the cookies of 127.0.0.1 to all of its ports: here another user's server."""
    cookies: list[str] = []

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("cookie", ""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(served.address)
        page.wait_for_selector("table.list")
        assert [cookie["value"] for cookie in context.cookies(served.base + "/")] == [served.token]
        for path in ("", "?token=x", "api/runs"):
            page.goto(f"http://127.0.0.1:{server.server_port}/{path}")
        context.close()
        server.shutdown()
    assert cookies
    assert not any(cookies)


def test_no_browser_is_a_sentence(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "BROWSER": "", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "stallwise.web.browser"],
        input="http://127.0.0.1:1/?token=x\n", text=True, capture_output=True, env=environment, check=True, timeout=250,
    )  # fmt: skip
    assert "No browser" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_servers_keep_apart(tmp_path: Path) -> None:
    needs("uvicorn")
    with serving(tmp_path) as one, serving(tmp_path) as other:
        assert one.token != other.token
        assert other.get("/api/runs", token=one.token).status == 403
