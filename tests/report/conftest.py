"""A real profile and a real browser, shared by the tests that look at pages and timelines."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ROOT, lacks
from tests.record.jobs import TRAIN, Profiled
from tests.system import require_packages

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Debian's own Chromium: Playwright's download is neither needed nor wanted.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


PATIENCE_MS = 150_000
"""For anything that Chromium does: half a minute, as Playwright has it, is not enough where six workers start."""


def pictures() -> Path:
    """Where screenshots are left for people to look at."""
    folder = ROOT / "build" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a small job with two processes, really profiled."""
    if importlib.util.find_spec("torch") is None:
        lacks("torch")
    folder = tmp_path_factory.mktemp("profiled")
    job = Profiled(folder, "--nproc-per-node", "2", "--max-time", "3s", TRAIN, "--workers", "1")
    return job.ended(0).run


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Chromium without a window. For one module only: Playwright's event loop would be in the way of others."""
    if not shutil.which("chromium"):
        require_packages("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacks("playwright (pip install playwright)")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS, timeout=PATIENCE_MS)
        yield launched
        launched.close()
