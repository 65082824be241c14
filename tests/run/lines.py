"""The next line of a program that a test started, with a deadline."""

import subprocess
import threading

import pytest


def line_of(process: "subprocess.Popen[str]", patience_s: float = 200.0) -> str:
    """One line of its output. A program that says nothing for that long is killed, and the test fails."""
    assert process.stdout is not None
    watchdog = threading.Timer(patience_s, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        line: str = process.stdout.readline()
    finally:
        watchdog.cancel()
    if not line:
        pytest.fail(f"the program ended, or said nothing for {patience_s:g} s: {process.args!r}")
    return line
