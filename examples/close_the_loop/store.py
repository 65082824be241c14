"""An object store as slow as a far one: serves a folder over HTTP and waits before every answer.

python examples/close_the_loop/store.py FOLDER --delay 0.1
"""

import argparse
import functools
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FarAway(SimpleHTTPRequestHandler):
    """A folder's files, each after `delay_s`."""

    protocol_version = "HTTP/1.1"
    delay_s = 0.0

    def __init__(self, *arguments: Any, delay_s: float, **named: Any) -> None:
        self.delay_s = delay_s
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        """Wait, then answer."""
        time.sleep(self.delay_s)
        super().do_GET()

    def log_message(self, *arguments: Any) -> None:
        """Nobody reads it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *arguments: Any) -> None:
        """A reader that ends in the middle of an answer is nothing to talk about."""


def main() -> None:
    """Serve until killed; the first line printed is the address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds before every answer")
    options = parser.parse_args()
    handler = functools.partial(FarAway, delay_s=options.delay, directory=options.folder)
    with _Server(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
