"""The browser is given a file that only the user may read; the token is in nobody's arguments, and nothing is left."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

import pytest

from stallwise.web.opener import leading_to
from tests.web.conftest import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Stands in for a browser: writes down what it was given, and what it finds there.
_BROWSER = """#!/bin/sh
echo "$@" >"$SEEN/arguments.new"
path=${1#file://}
stat -c %a "$path" >"$SEEN/mode"
cp "$path" "$SEEN/page"
mv "$SEEN/arguments.new" "$SEEN/arguments"
"""


def _until(there: Path, patience_s: float = 20.0) -> str:
    end = time.monotonic() + patience_s
    while not there.exists():
        assert time.monotonic() < end, f"no {there.name}"
        time.sleep(0.02)
    return there.read_text()


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    pytest.importorskip("uvicorn")
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
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


@pytest.mark.parametrize("ending", [signal.SIGHUP, signal.SIGTERM])
def test_nothing_is_left_when_the_whole_group_is_ended(seen: Path, ending: signal.Signals) -> None:
    server = _started(seen)
    try:
        _until(seen / "arguments")
        os.killpg(server.pid, ending)
        server.wait(20)
        end = time.monotonic() + 10
        while list((seen.parent / "temp").iterdir()):
            assert time.monotonic() < end, "the file is still there"
            time.sleep(0.02)
    finally:
        server.kill()
        server.wait(10)
        if server.stdout is not None:
            server.stdout.close()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_token_is_in_a_private_file_that_goes_with_the_server(seen: Path, ending: signal.Signals) -> None:
    server = _started(seen)
    try:
        given = _until(seen / "arguments").strip()
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
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
        server.wait(20)
        end = time.monotonic() + 10
        while list((seen.parent / "temp").iterdir()):
            assert time.monotonic() < end, "the file is still there"
            time.sleep(0.02)
        assert list((seen.parent / "runs").iterdir()) == [], "nothing is written where the runs are"
    finally:
        server.kill()
        server.wait(10)
        if server.stdout is not None:
            server.stdout.close()


def test_the_file_leads_a_browser_to_the_page(browser: "Browser", served: Served, tmp_path: Path) -> None:
    file = tmp_path / "there.html"
    file.write_text(leading_to(served.address))
    context = browser.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("table.list")
    assert page.url.startswith(served.base)
    assert served.token not in page.url
    context.close()


def test_no_browser_is_a_sentence(tmp_path: Path) -> None:
    environment = {"PATH": "/nowhere", "BROWSER": "", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "stallwise.web.opener"],
        input="http://127.0.0.1:1/?token=x\n", text=True, capture_output=True, env=environment, check=True, timeout=30,
    )  # fmt: skip
    assert "No browser" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_two_servers_keep_apart(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with serving(tmp_path) as one, serving(tmp_path) as other:
        assert one.token != other.token
        assert other.get("/api/runs", token=one.token).status == 403
