"""A stand-in for S3 that holds any key, also those that a real server under test would not take."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 3


class StandInS3(http.server.BaseHTTPRequestHandler):
    """ListObjectsV2, HEAD and GET of one bucket, called `bucket`."""

    objects: Mapping[str, bytes] = {}
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query, keep_blank_values=True))
        if "list-type" in query:
            self._answer(200, self._page(query))
            return
        data = self.objects.get(unquote(address.path).removeprefix("/bucket/"))
        self._answer(404 if data is None else 200, data or b"", data)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def _answer(self, status: int, body: bytes, data: bytes | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if data is not None:
            self.send_header("ETag", _tag(data))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _page(self, query: Mapping[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > after]
        is_encoded = query.get("encoding-type") == "url"
        rows = "".join(
            f"<Contents><Key>{quote(key) if is_encoded else _text(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<ETag>{escape(_tag(self.objects[key]))}</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys[:PAGE]
        )
        more = f"<NextContinuationToken>{_text(keys[PAGE - 1])}</NextContinuationToken>" if len(keys) > PAGE else ""
        kind = "<EncodingType>url</EncodingType>" if is_encoded else ""
        return (
            f"<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{rows}{kind}{more}"
            f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated></ListBucketResult>"
        ).encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _text(key: str) -> str:
    return "".join(f"&#{ord(c)};" if ord(c) < 32 else escape(c) for c in key)


@contextlib.contextmanager
def stand_in(objects: Mapping[str, bytes]) -> Iterator[str]:
    """Serve a bucket with these objects; its endpoint."""
    handler = type("Handler", (StandInS3,), {"objects": objects})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(10)
