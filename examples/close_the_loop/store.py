"""An object store as slow as a far one: serves a folder over HTTP and waits before every answer.

python examples/close_the_loop/store.py FOLDER --delay 0.1

It does no more than it must, because it runs on the cores of the training that it slows down: Python's own HTTP server
takes more of them than decoding the images.
"""

import argparse
import socketserver
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class FarAway(socketserver.StreamRequestHandler):
    """Files by their names, each after `delay_s`."""

    disable_nagle_algorithm = True
    delay_s = 0.0
    files: dict[str, bytes] = {}  # noqa: RUF012 - of the one store that this program is

    def handle(self) -> None:
        """Requests of one connection, until it is closed."""
        while line := self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            time.sleep(self.delay_s)
            method, path, *_ = line.decode("latin-1").split()
            data = self.files.get(unquote(path).strip("/"))
            said = "404 Not Found" if data is None else "200 OK"
            data = data or b""
            head = (
                f"HTTP/1.1 {said}\r\nContent-Length: {len(data)}\r\nLast-Modified: {formatdate(0, usegmt=True)}\r\n\r\n"
            )
            self.wfile.write(head.encode() + (data if method == "GET" else b""))


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *arguments: Any) -> None:
        """A reader that ends in the middle of an answer is nothing to talk about."""


def main() -> None:
    """Serve until killed; the first line printed is the address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds before every answer")
    options = parser.parse_args()
    FarAway.delay_s = options.delay
    FarAway.files = {path.name: path.read_bytes() for path in options.folder.iterdir() if path.is_file()}
    with _Server(("127.0.0.1", 0), FarAway) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
