"""Names of objects: which of them can be read, and listing a bucket in which some cannot.

obstore reads objects by paths: without empty parts, `.`, `..` and control characters. A key that is none (`a//b`, a
line break in a name) makes its listing of the whole bucket fail. Then the bucket is listed here, by S3's ListObjectsV2
or in the file system, and such names are left out and counted. "Folder markers" are no samples either: empty objects
whose names end in a slash, which the S3 console makes for a folder; obstore shows them without the slash.
"""

import datetime
import hashlib
import hmac
import os
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_plus, urlsplit
from xml.etree import ElementTree as Xml

from stallwise.errors import InputError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from stallwise.data.objects.store import ObjectBucket

Listed = tuple[str, int | None, str | None]
"""Name, size in bytes and version of an object."""
_MOST_PAGE_BYTES = 32 << 20
_MOST_EMPTY = 1000
_MOST_SIZE_BYTES = 1 << 62
_NO_BODY = hashlib.sha256(b"").hexdigest()


@dataclass
class LeftOut:
    """Objects of a bucket that are no samples: folder markers, and names that cannot be asked for."""

    markers: int = 0
    unreadable: int = 0
    example: str = ""
    """The first unreadable name."""

    def is_sample(self, name: str) -> bool:
        """Whether an object can be one, by its raw name; counts it if not."""
        if name.endswith("/") and is_readable(name[:-1]):
            self.markers += 1
            return False
        if not is_readable(name):
            self.example = self.example or name[:200]
            self.unreadable += 1
            return False
        return True


def is_readable(name: str) -> bool:
    """Whether obstore can ask for an object of this name."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        return False
    return not any(ord(character) < 32 or ord(character) == 127 for character in name)


def without_markers(objects: Iterable[Listed], exists: Callable[[str], bool], left_out: LeftOut) -> list[Listed]:
    """Return the objects without folder markers, whose names have lost their slash.

    An empty object that has others "inside" is one; of a thousand other empty ones, those that do not exist as named.
    """
    every = list(objects)
    empty = {name for name, size, _ in every if size == 0}
    if not empty:
        return every
    folders = {name[:at] for name, _, _ in every for at, character in enumerate(name) if character == "/"}
    alone = sorted(empty - folders)[:_MOST_EMPTY]
    markers = (empty & folders) | {name for name in alone if not exists(name)}
    kept = [each for each in every if each[0] not in markers]
    left_out.markers += len(every) - len(kept)
    return kept


def list_raw(bucket: "ObjectBucket", store: "ObjectStore", left_out: LeftOut) -> Iterator[list[Listed]]:
    """List a bucket of which obstore cannot say every name, page by page; the others are counted in `left_out`."""
    scheme = urlsplit(bucket.url).scheme
    if scheme == "file":
        yield from _list_folder(bucket.url, store, left_out)
    elif scheme == "s3":
        for page in _s3_pages(bucket):
            yield [each for each in page if left_out.is_sample(each[0])]
    else:
        raise InputError(
            f"{bucket.shown} holds an object whose name cannot be asked for (an empty part, '.', '..' or a control "
            "character). Rename it, read another prefix, or name the objects: keys=[…]."
        )


def _list_folder(url: str, store: "ObjectStore", left_out: LeftOut) -> Iterator[list[Listed]]:
    import obstore

    root = urllib.parse.unquote(urlsplit(url).path)
    for folder, _, names in os.walk(root, followlinks=True):
        page: list[Listed] = []
        for name in names:
            path = os.fsdecode(Path(folder, name).relative_to(root))
            if left_out.is_sample(path):
                meta = obstore.head(store, path)
                page.append((path, meta["size"], meta["e_tag"]))
        yield page


@dataclass(frozen=True)
class _S3:
    """Where and how a bucket is listed over S3's own protocol."""

    address: str
    prefix: str
    region: str
    key: str | None
    secret: str
    token: str
    timeout_s: float


def _s3_pages(bucket: "ObjectBucket") -> Iterator[list[Listed]]:
    service = _s3(bucket)
    after = ""
    while True:
        query = {"list-type": "2", "max-keys": "1000", "prefix": service.prefix, "encoding-type": "url"}
        page, after = _page(_get(service, query | ({"continuation-token": after} if after else {})), service.prefix)
        yield page
        if not after:
            return


def _s3(bucket: "ObjectBucket") -> _S3:
    name, prefix = urlsplit(bucket.url).netloc.rpartition("@")[2], urlsplit(bucket.url).path.strip("/")
    given = [*((key, value) for key, value in os.environ.items() if key.startswith("AWS_")), *bucket.options.items()]
    settings = {key.lower().removeprefix("aws_"): str(value) for key, value in given if value is not None}
    region = settings.get("region") or settings.get("default_region") or "us-east-1"
    endpoint = bucket.endpoint or bucket.server()
    is_unsigned = settings.get("skip_signature", "").lower() == "true"
    if not is_unsigned and not (settings.get("access_key_id") and settings.get("secret_access_key")):
        raise InputError(
            f"{bucket.shown} holds an object whose name cannot be asked for (an empty part, '.', '..' or a control "
            "character). To list it without that, keys are needed: AWS_ACCESS_KEY_ID …, or the bucket's options."
        )
    address = f"{endpoint.rstrip('/')}/{name}" if endpoint else f"https://{name}.s3.{region}.amazonaws.com"
    return _S3(
        address=address,
        prefix=f"{prefix}/" if prefix else "",
        region=region,
        key=None if is_unsigned else settings["access_key_id"],
        secret=settings.get("secret_access_key", ""),
        token=settings.get("session_token") or settings.get("token", ""),
        timeout_s=bucket.timeout_s,
    )


def _get(service: _S3, query: Mapping[str, str]) -> bytes:
    parts = urlsplit(service.address)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme}:// is no address of an S3 service")
    path = quote(parts.path or "/", safe="/~")
    text = "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(query.items()))
    headers = _signed(service, parts.netloc.rpartition("@")[2], path, text)
    request = urllib.request.Request(f"{parts.scheme}://{parts.netloc}{path}?{text}", headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=service.timeout_s) as reply:  # noqa: S310
        body: bytes = reply.read(_MOST_PAGE_BYTES + 1)
    if len(body) > _MOST_PAGE_BYTES:
        raise ValueError("its listing is too long")
    return body


def _signed(service: _S3, host: str, path: str, query: str) -> dict[str, str]:
    """Return the headers of a GET, signed by AWS Signature Version 4."""
    if service.key is None:
        return {}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"x-amz-content-sha256": _NO_BODY, "x-amz-date": now}
    if service.token:
        headers["x-amz-security-token"] = service.token
    named = {"host": host, **headers}
    signed = ";".join(sorted(named))
    lines = "".join(f"{name}:{named[name]}\n" for name in sorted(named))
    whole = hashlib.sha256(f"GET\n{path}\n{query}\n{lines}\n{signed}\n{_NO_BODY}".encode()).hexdigest()
    scope = f"{now[:8]}/{service.region}/s3/aws4_request"
    key = f"AWS4{service.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{whole}".encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={service.key}/{scope}, SignedHeaders={signed}, Signature={signature}"
    return {**headers, "authorization": credential}


def _page(body: bytes, prefix: str) -> tuple[list[Listed], str]:
    """Return the objects of a reply, by their names under the prefix, and the token of the next page."""
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body or b"\0" in body[:1000]:  # UTF-16 would hide them
        raise ValueError("its listing has declarations")
    root = Xml.fromstring(body)  # noqa: S314 - without declarations there are no entities to expand
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    is_encoded = root.findtext("EncodingType") == "url"
    objects: list[Listed] = []
    for each in root.findall("Contents"):
        key = each.findtext("Key") or ""
        key = unquote_plus(key) if is_encoded else key
        if key.startswith(prefix) and key != prefix:
            objects.append((key[len(prefix) :], _size(each.findtext("Size") or "0"), each.findtext("ETag")))
    more = root.findtext("IsTruncated") == "true"
    return objects, (root.findtext("NextContinuationToken") or "") if more else ""


def _size(text: str) -> int:
    size = int(text)
    if not 0 <= size <= _MOST_SIZE_BYTES:
        raise ValueError("its listing has an object of an impossible size")
    return size
