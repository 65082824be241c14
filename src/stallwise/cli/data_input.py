"""What `stallwise data` takes: its options, and the buckets, caches, links and prices they name."""

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from stallwise.cli.progress import Teller
from stallwise.errors import InputError

if TYPE_CHECKING:
    from stallwise.data.cache import NodeCache
    from stallwise.data.listing import Listed
    from stallwise.data.store import Bucket
    from stallwise.hardware.object_store import StorePrices
    from stallwise.model.bucket import Link

INTERRUPTED = 130

# Where nobody says: about what a GET from a bucket of the same region takes to its first byte.
_LATENCY_S = 0.03


class Policy(enum.StrEnum):
    """What a full cache gives up."""

    NO_EVICT = "no-evict"
    FARTHEST = "farthest"
    LRU = "lru"
    FIFO = "fifo"


class Kept(enum.StrEnum):
    """How a cache is kept: what it gives up when it is full, and whether it is packed."""

    NO_EVICT = "no-evict"
    PACKED = "packed"
    FARTHEST = "farthest"
    LRU = "lru"
    FIFO = "fifo"


Url = Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, gs://…, az://…, https://…, file:///…")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="Another server that speaks the store's language.")]
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="KEY=VALUE",
        help="obstore's setting for the store. Credentials are better left to the environment (AWS_ACCESS_KEY_ID …): "
        "others can see command lines.",
    ),
]
Match = Annotated[str, typer.Option("--match", help='Only objects whose name matches: "*.jpg".')]
Keys = Annotated[
    Path | None, typer.Option("--keys", help="File with one name per line, for stores that cannot list (HTTP).")
]
Cache = Annotated[Path, typer.Option("--cache", metavar="FOLDER", help="Folder of the node's cache.")]
Budget = Annotated[
    float | None, typer.Option("--budget", metavar="USD", help="Dollars for requests and egress, at list prices.")
]
Egress = Annotated[
    float | None, typer.Option("--egress", metavar="USD", help="Dollars per GB that leaves the region. Default: 0.")
]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds one request may take.")]


@contextlib.contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Ctrl-C ends with a sentence and code 130, as of a program that the signal ended."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stallwise: Interrupted. {sentence}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def bucket_of(url: str, endpoint: str | None, options: list[str] | None, timeout_s: float) -> "Bucket":
    """The bucket; a folder of this machine may be given as it is."""
    from stallwise.data.store import Bucket

    config = {}
    for pair in options or ():
        key, sign, value = pair.partition("=")
        if not (key and sign):
            # The rest of what was given may be a secret.
            raise InputError(f"--option takes KEY=VALUE; {key[:20]!r} has no value.")
        config[key] = value
    return Bucket(url, endpoint, config, timeout_s=timeout_s)


def cache_of(folder: Path, limit: str | None, policy: Kept | None) -> "NodeCache":
    """The cache in the folder, made where there is none and a limit is given."""
    from stallwise.data.cache import NodeCache
    from stallwise.data.folder import is_cache
    from stallwise.units import parse_bytes

    known = NodeCache.existing(folder) if is_cache(folder.expanduser().absolute()) else None
    if limit is None and known is None:
        raise InputError(f"There is no cache in {folder} yet. Give its size: --limit 200GB.")
    limit_bytes = known.limit_bytes if limit is None and known else int(parse_bytes(limit or ""))
    return NodeCache(folder, limit_bytes, policy.value if policy else known.policy if known else "no-evict")


def index_for(bucket: "Bucket", match: str, keys: Path | None, teller: Teller, *, refresh: bool) -> "Listed":
    """The bucket's objects: by a kept index, a listing, or a file of names."""
    from stallwise.data.listing import Listed, index_of, named

    if keys is not None:
        return Listed(named(bucket, names_in(keys)), 0, 0.0)
    return index_of(bucket, match=match, refresh=refresh, progress=lambda seen: teller.tell("names listed", seen))


def names_in(path: Path) -> list[str]:
    """Names, one per line."""
    try:
        names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The names in {path} cannot be read ({error}).") from None
    if not names:
        raise InputError(f"{path} holds no names: write one per line.")
    return names


def prices_of_url(url: str, egress_usd_per_gb: float | None) -> "StorePrices | None":
    """What the store behind an address charges."""
    from stallwise.data.pricing import with_egress
    from stallwise.hardware.object_store import prices_of

    return with_egress(prices_of(urlsplit(url).scheme), egress_usd_per_gb)


def prices_of_store(store: str | None, egress_usd_per_gb: float | None) -> "StorePrices | None":
    """What a store charges, by its name."""
    from stallwise.data.pricing import with_egress
    from stallwise.hardware.object_store import LISTED

    if store is not None and store not in LISTED:
        raise InputError(f"Prices are known for {' and '.join(LISTED)}, not for {store!r}.")
    return with_egress(LISTED[store] if store else None, egress_usd_per_gb)


def link_of(link: str | None, latency: str | None, measured: Path | None, concurrency: int) -> "tuple[Link, str]":
    """The way to the bucket, as given or as measured, and where it comes from."""
    from stallwise.model.bucket import Link
    from stallwise.units import parse_rate, parse_seconds

    known = _measured(measured) if measured is not None else (None, None)
    rate = known[0] if link is None else parse_rate(link)
    if rate is None:
        raise InputError("Say how fast a node reaches the bucket: --link 10gbit, or --bench with what was measured.")
    latency_s = known[1] if latency is None else parse_seconds(latency)
    source = "its rate as measured" if link is None else f"{link} as given"
    source += ", its latency assumed (--latency)" if latency_s is None else ""
    latency_s = _LATENCY_S if latency_s is None else latency_s
    return Link(latency_s=latency_s, bytes_per_s=rate, concurrency=from_one("--concurrency", concurrency) or 1), source


def _measured(path: Path) -> tuple[float, float]:
    import json

    try:
        found = json.loads(path.read_text())
        return float(found["link_bytes_per_s"]), float(found["latency_s"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not what `stallwise data bench --json` writes.") from None


def from_one(name: str, value: int | None) -> int | None:
    """A count that was given, if it is one."""
    if value is not None and value < 1:
        raise InputError(f"{name} takes a whole number from 1, not {value}.")
    return value
