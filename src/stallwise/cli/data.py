"""`stallwise data warm|verify|stat|bench|plan`: buckets and the caches of nodes."""

import contextlib
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from stallwise.cli import options
from stallwise.cli.commands import CommandApp
from stallwise.cli.output import Exit, Json, ProgressReporter, answer
from stallwise.errors import InputError, MeasurementError
from stallwise.inputs import read_text

if TYPE_CHECKING:
    from stallwise.data.cache.cache import NodeCache
    from stallwise.data.objects.index import ListedIndex
    from stallwise.data.objects.store import ObjectBucket
    from stallwise.hardware.prices import StorePrices
    from stallwise.model.data.object_store import ObjectStoreLink

# The default: about what a GET from a bucket of the same region takes to its first byte.
_LATENCY_S = 0.03


class EvictionPolicy(enum.StrEnum):
    """What a full cache gives up."""

    NO_EVICT = "no-evict"
    FARTHEST = "farthest"
    LRU = "lru"
    FIFO = "fifo"


class StorePriceList(enum.StrEnum):
    """Stores whose prices are known."""

    S3 = "s3"
    GS = "gs"


class CachePolicy(enum.StrEnum):
    """How a cache is kept: what it gives up when it is full, and whether it is packed."""

    NO_EVICT = "no-evict"
    PACKED = "packed"
    FARTHEST = "farthest"
    LRU = "lru"
    FIFO = "fifo"


Url = Annotated[str, typer.Argument(metavar="URL", help="s3://bucket/prefix, gs://…, az://…, https://…, file:///…")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="Another server with the store's protocol.")]
StoreOption = Annotated[
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
    str | None, typer.Option("--budget", metavar="USD", help="What requests and egress may cost at list prices: 5usd.")
]
Egress = Annotated[
    str | None,
    typer.Option("--egress", metavar="USD", help="Dollars per GB that leaves the region: 0.09. Default: 0."),
]
Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="Time one request may take.")]
EpochSamples = Annotated[
    int | None,
    typer.Option("--epoch-samples", metavar="N", help="Samples of one epoch. Default: as the run recorded."),
]
StoreName = Annotated[
    StorePriceList | None, typer.Option("--store-prices", help="Store whose prices count. Default: as recorded.")
]


@contextlib.contextmanager
def interruptible(sentence: str) -> Iterator[None]:
    """Ctrl-C ends with a sentence and code 130, as of a program that the signal ended."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stallwise: Interrupted. {sentence}", err=True)
        raise typer.Exit(Exit.INTERRUPTED) from None


def bucket_of(url: str, endpoint: str | None, options: list[str] | None, timeout_s: float) -> "ObjectBucket":
    """The bucket; a folder of this machine may be given as it is."""
    from stallwise.data.objects.store import ObjectBucket

    config = {}
    for pair in options or ():
        key, sign, value = pair.partition("=")
        if not (key and sign):
            # The rest of what was given may be a secret.
            raise InputError(f"--option takes KEY=VALUE; {key[:20]!r} has no value.")
        config[key] = value
    return ObjectBucket(url, endpoint, config, timeout_s=timeout_s)


def cache_of(folder: Path, limit: str | None, policy: CachePolicy | None) -> "NodeCache":
    """The cache in the folder, made where there is none and a limit is given."""
    from stallwise.data.cache.cache import NodeCache
    from stallwise.data.cache.files import is_cache
    from stallwise.units import parse_bytes

    existing = NodeCache.existing(folder) if is_cache(folder.expanduser().absolute()) else None
    if limit is None and existing is None:
        raise InputError(f"There is no cache in {folder} yet. Give its size: --cache-size 200GB.")
    limit_bytes = existing.limit_bytes if limit is None and existing else int(parse_bytes(limit or ""))
    return NodeCache(folder, limit_bytes, policy.value if policy else existing.policy if existing else "no-evict")


def index_for(
    bucket: "ObjectBucket", match: str, keys: Path | None, progress: ProgressReporter, *, refresh: bool
) -> "ListedIndex":
    """The bucket's objects: by a kept index, a listing, or a file of names."""
    from stallwise.data.objects.index import ListedIndex, index_of, index_of_names

    if keys is not None:
        return ListedIndex(index_of_names(bucket, names_in(keys)), 0, 0.0)
    return index_of(bucket, match=match, refresh=refresh, progress=lambda count: progress.report("names listed", count))


def names_in(path: Path) -> list[str]:
    """Names, one per line."""
    try:
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The names in {path} cannot be read ({error}).") from None
    if not names:
        raise InputError(f"{path} holds no names: write one per line.")
    return names


def prices_of_url(url: str, egress_usd_per_gb: float | None) -> "StorePrices | None":
    """What the store behind an address charges."""
    from stallwise.data.tools.plan import with_egress
    from stallwise.hardware.prices import store_prices

    return with_egress(store_prices(urlsplit(url).scheme), egress_usd_per_gb)


def prices_of_store(store: str | None, egress_usd_per_gb: float | None) -> "StorePrices | None":
    """What a store charges, by its name."""
    from stallwise.data.tools.plan import with_egress
    from stallwise.hardware.prices import STORE_PRICES

    return with_egress(STORE_PRICES[store] if store else None, egress_usd_per_gb)


def link_of(
    link: str | None, latency: str | None, measured: Path | None, concurrency: int
) -> "tuple[ObjectStoreLink, str]":
    """The link to the bucket, as given or as measured, and where its figures come from."""
    from stallwise.model.data.object_store import ObjectStoreLink
    from stallwise.units import parse_rate, parse_seconds

    bench = _measured(measured) if measured is not None else (None, None)
    rate = bench[0] if link is None else parse_rate(link)
    if rate is None:
        raise InputError(
            "Say how fast a node reaches the bucket: --store-link 10gbit, or --bench with what was measured."
        )
    latency_s = bench[1] if latency is None else parse_seconds(latency)
    source = "its rate as measured" if link is None else f"{link} as given"
    source += ", its latency assumed (--latency)" if latency_s is None else ""
    latency_s = _LATENCY_S if latency_s is None else latency_s
    return ObjectStoreLink(
        latency_s=latency_s, bytes_per_s=rate, concurrency=from_one("--concurrency", concurrency) or 1
    ), source


def _measured(path: Path) -> tuple[float, float]:
    import json

    try:
        bench = json.loads(read_text(path))
        return float(bench["link_bytes_per_s"]), float(bench["latency_s"])
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        raise InputError(f"{path} is not what `stallwise data bench --json` writes.") from None


def from_one(name: str, value: int | None) -> int | None:
    """A whole number from 1, or None."""
    if value is not None and value < 1:
        raise InputError(f"{name} takes a whole number from 1, not {value}.")
    return value


app = CommandApp(help="Buckets: fill and check a node's cache, measure a bucket, and plan cache and link.")


@app.command()
def warm(
    url: Url,
    *,
    cache: Cache,
    limit: Annotated[
        str | None,
        typer.Option("--cache-size", metavar="SIZE", help="Size of the cache: 200GB. Default: as it was last used."),
    ] = None,
    policy: Annotated[CachePolicy | None, typer.Option("--policy", help="Default: no-evict, or as last used.")] = None,
    match: Match = "*",
    keys: Keys = None,
    endpoint: Endpoint = None,
    option: StoreOption = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="List the bucket anew, though its index is kept.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests at a time.")] = 32,
    retries: Annotated[int, typer.Option("--retries", help="Further tries of one request.")] = 5,
    timeout: Timeout = "30s",
    budget: Budget = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Fill a node's cache from a bucket: list it once, fetch what is missing, as far as there is room.

    Ctrl-C at any time: what has arrived stays, and the next time goes on from there. Exit code 0: all of it is there
    that fits. 2: bad input. 3: some objects could not be fetched; stderr names them. 130: interrupted.
    """
    from stallwise.data.tools.plan import in_brackets
    from stallwise.data.tools.warm import CacheWarmer, check_budget, missing_objects
    from stallwise.report.views.data import draw_warmed, failure_reasons

    bucket = bucket_of(url, endpoint, option, options.seconds(timeout, "--timeout"))
    folder = cache_of(cache, limit, policy)
    prices = prices_of_url(url, options.usd(egress))
    with interruptible("What has arrived is in the cache."), ProgressReporter() as progress:
        listed = index_for(bucket, match, keys, progress, refresh=refresh)
        need = missing_objects(
            listed.index, folder, lambda done: progress.report("objects looked up", done, len(listed.index))
        )
        check_budget(need, listed.requests, prices, options.usd(budget))
        work = CacheWarmer(
            bucket,
            listed.index,
            folder,
            need,
            lists=listed.requests,
            concurrency=concurrency,
            retries=retries,
            prices=prices,
            budget_usd=options.usd(budget),
        )
        done = work.run(lambda p: progress.report("objects fetched", p.objects, p.of_objects, p.bytes, p.of_bytes))
    cache_stat = folder.stat()
    answer(
        lambda: {"warmed": done, "cache": cache_stat},
        lambda: draw_warmed(done, cache_stat, in_brackets(prices)),
        as_json=as_json,
    )
    if done.interrupted:
        typer.echo("stallwise: Interrupted; what has arrived is in the cache. Run it again to go on.", err=True)
        raise typer.Exit(Exit.INTERRUPTED)
    if done.failed:
        raise MeasurementError(
            f"{len(done.failed):,} of {done.objects:,} objects could not be fetched: {failure_reasons(done.failed)}. "
            "The others are in the cache. Run it again to try these anew, with --refresh where the bucket has changed."
        )
    if done.stopped_because:
        raise MeasurementError(f"{done.stopped_because} {done.left:,} objects were not fetched.")


@app.command()
def verify(
    cache: Cache,
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="URL", help="Buckets to compare with; they are listed anew.")
    ] = None,
    match: Match = "*",
    endpoint: Endpoint = None,
    option: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Check every entry of a cache by its checksum and remove bad ones; with URLs, compare with what they hold now.

    Exit code 0: checked, whatever was found; a removed entry is fetched again when it is wanted.
    """
    from stallwise.data.cache.cache import NodeCache
    from stallwise.data.cache.verify import check_cache
    from stallwise.report.views.data import draw_checked

    folder = NodeCache.existing(cache)
    buckets = [bucket_of(url, endpoint, option, 30.0) for url in urls or ()]
    with interruptible("The cache is as good as before."), ProgressReporter() as progress:
        check = check_cache(folder, buckets, match=match, progress=progress.report)
    answer(lambda: check, lambda: draw_checked(check), as_json=as_json)


@app.command()
def stat(
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="The folder of a run.")] = None,
    cache: Annotated[Path | None, typer.Option("--cache", metavar="FOLDER", help="A cache instead of a run.")] = None,
    epoch_samples: EpochSamples = None,
    store: StoreName = None,
    egress: Egress = None,
    gauges: Annotated[
        Path | None, typer.Option("--gauges", metavar="FILE", help="With --cache: write Prometheus' text format there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a run's batches waited for and what its requests cost; or what lies in a cache and happened in it."""
    from stallwise.report.views.data import draw_cache, draw_use

    if cache is not None and run is None:
        from stallwise.data.cache.cache import NodeCache

        opened_cache = NodeCache.existing(cache)
        if gauges is not None:
            from stallwise.data.tools.metrics import write_gauges

            write_gauges(gauges, cache=opened_cache)
        cache_stat = opened_cache.stat()
        answer(lambda: cache_stat, lambda: draw_cache(cache_stat), as_json=as_json)
        return
    if run is None or cache is not None:
        raise InputError("Name one of the two: a run's folder, or --cache FOLDER.")
    if gauges is not None:
        raise InputError("--gauges goes with --cache: a run is over, and Prometheus reads what is going on.")
    from stallwise.analysis.object_store import bucket_use_of, loaders_of
    from stallwise.data.tools.plan import price_use
    from stallwise.run.reader import Run

    opened = Run.open(run)
    use, loaders = bucket_use_of(opened), loaders_of(opened)
    if use is None:
        raise InputError(
            f"The run at {run} loaded nothing from a bucket (its table `loads` is empty). "
            "Profile a job whose data is a BucketDataset."
        )
    priced = price_use(
        use, prices_of_store(store, options.usd(egress)), epoch_samples or opened.manifest.counts.epoch_samples
    )
    answer(
        lambda: {"use": priced.use, "loaders": loaders, "epoch_usd": priced.epoch_usd, "prices": priced.source},
        lambda: draw_use(priced.use, loaders, priced.epoch_usd, f" ({priced.source})" if priced.source else ""),
        as_json=as_json,
    )


@app.command()
def bench(
    url: Url,
    *,
    keys: Keys = None,
    endpoint: Endpoint = None,
    option: StoreOption = None,
    max_time: Annotated[str, typer.Option("--max-time", metavar="TIME", help="Time to measure at most.")] = "30s",
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", help="Largest number of requests at a time to try.")
    ] = 256,
    timeout: Timeout = "30s",
    budget: Budget = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Measure a bucket from here: listing, one GET, and what 1, 2, 4, … requests at a time bring."""
    from stallwise.data.tools.bench import StoreBenchmark
    from stallwise.data.tools.plan import in_brackets
    from stallwise.report.views.data import draw_bench

    prices = prices_of_url(url, options.usd(egress))
    with interruptible("Nothing was written."), ProgressReporter() as progress:
        result = StoreBenchmark(
            bucket_of(url, endpoint, option, options.seconds(timeout, "--timeout")),
            names=None if keys is None else names_in(keys),
            prices=prices,
            max_s=options.seconds(max_time, "--max-time"),
            budget_usd=options.usd(budget),
            most=max_concurrency,
            progress=lambda level: progress.report("requests at a time", level),
        ).run()
    answer(lambda: result, lambda: draw_bench(result, in_brackets(prices)), as_json=as_json)


@app.command()
def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    *,
    cache_size: Annotated[
        str, typer.Option("--cache-size", metavar="SIZE", help="Size of the cache of each node: 200GB.")
    ],
    store_link: Annotated[
        str | None,
        typer.Option("--store-link", metavar="RATE", help="Rate between a node and the bucket: 10gbit."),
    ] = None,
    latency: Annotated[
        str | None, typer.Option("--latency", metavar="TIME", help="Time a GET takes beside its bytes: 30ms.")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--bench", metavar="FILE", help="Link and latency from `data bench --json`.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests of a node at a time.")] = 64,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Default: as the run had.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs of the job.")] = 10,
    policy: Annotated[
        EvictionPolicy, typer.Option("--policy", help="What a full cache gives up.")
    ] = EvictionPolicy.NO_EVICT,
    epoch_samples: EpochSamples = None,
    sample_size: Annotated[
        str | None, typer.Option("--sample-size", metavar="SIZE", help="Size of one object: 110KB.")
    ] = None,
    store: StoreName = None,
    peer_link: Annotated[
        str | None,
        typer.Option(
            "--peer-link",
            metavar="RATE",
            help="Rate between nodes that share caches: 25gbit. Default: as --store-link.",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Jobs of a search on a node, over the same data.")] = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Predict data wait, misses and dollars for a cache and a link, beside no cache, half and all of the data.

    What the run does not say (how many samples, how large) is reported by name.
    """
    from stallwise.data.tools.plan import DataPlanRequest, data_plan_of
    from stallwise.report.views.data import draw_plan
    from stallwise.run.reader import Run
    from stallwise.units import parse_bytes, parse_rate

    opened = Run.open(run)
    way, source = link_of(store_link, latency, measured, concurrency)
    request = DataPlanRequest(
        cache_bytes=parse_bytes(cache_size),
        link=way,
        link_from=source,
        nodes=from_one("--nodes", nodes),
        epochs=from_one("--epochs", epochs) or 1,
        policy=policy.value,
        samples=from_one("--epoch-samples", epoch_samples) or opened.manifest.counts.epoch_samples,
        sample_bytes=None if sample_size is None else parse_bytes(sample_size),
        prices=prices_of_store(store, options.usd(egress)),
        peer_bytes_per_s=None if peer_link is None else parse_rate(peer_link),
        jobs=from_one("--jobs", jobs),
    )
    data_plan = data_plan_of(opened, request)
    answer(lambda: data_plan, lambda: draw_plan(data_plan), as_json=as_json)
