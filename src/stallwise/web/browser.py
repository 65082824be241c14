"""Opens the page in a browser without showing the token in the list of processes.

`python -m stallwise.web.browser`, a process of its own: reads the address from its input, writes a file that only the
user may read and that leads there, and gives the browser that file's name. The file goes after a minute, or as soon as
the input ends, which it does when the server is gone, however it went. A terminal that closes, or a signal to the
whole group, reaches this process too: it goes on to where the input ends, and removes the file.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import webbrowser
from html import escape
from pathlib import Path

_KEPT_S = 60.0


def open_in_browser(address: str) -> "subprocess.Popen[bytes]":
    """Start the process; the file lives as long as the returned process is kept."""
    opener = subprocess.Popen([sys.executable, "-m", "stallwise.web.browser"], stdin=subprocess.PIPE)
    assert opener.stdin is not None  # noqa: S101 - stdin is a pipe
    opener.stdin.write(address.encode() + b"\n")
    opener.stdin.flush()
    return opener


def redirect_page(address: str) -> str:
    """A page that goes to another at once."""
    target = escape(address)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Stallwise</title>'
        f'<meta http-equiv="refresh" content="0; url={target}"></head>\n'
        f'<body><p><a href="{target}">Go to Stallwise</a></p></body>\n</html>\n'
    )


def main() -> None:
    """Read the address from stdin and lead the browser to it."""
    for ending in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(ending, lambda *_: None)  # not SIG_IGN: the browser would inherit that
    address = os.read(0, 4096).decode().strip()
    if not address:
        return
    # Made readable and writable by the user alone, and removed on the way out.
    with tempfile.NamedTemporaryFile("w", prefix="stallwise-ui-", suffix=".html", encoding="utf-8") as file:
        file.write(redirect_page(address))
        file.flush()
        if webbrowser.open(Path(file.name).as_uri()):
            select.select([0], [], [], _KEPT_S)
        else:
            sys.stderr.write("No browser was found; open the address above in one.\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
