"""`stallwise data warm|verify|stat|bench|plan`: buckets and the caches of nodes."""

from pathlib import Path
from typing import Annotated

import typer

from stallwise.cli.data_input import (
    INTERRUPTED,
    Budget,
    Cache,
    Egress,
    Endpoint,
    Kept,
    Keys,
    Match,
    Option,
    Policy,
    Timeout,
    Url,
    bucket_of,
    cache_of,
    from_one,
    index_for,
    interruptible,
    link_of,
    names_in,
    prices_of_store,
    prices_of_url,
)
from stallwise.cli.output import Json, answer
from stallwise.cli.progress import Teller
from stallwise.errors import InputError, StallwiseError

app = typer.Typer(
    help="Buckets: fill and check a node's cache, measure a bucket, and plan cache and link.", no_args_is_help=True
)


@app.command()
def warm(
    url: Url,
    cache: Cache,
    limit: Annotated[
        str | None, typer.Option("--limit", help="Size of the cache: 200GB. Default: as it was last used.")
    ] = None,
    policy: Annotated[Kept | None, typer.Option("--policy", help="Default: no-evict, or as last used.")] = None,
    match: Match = "*",
    keys: Keys = None,
    endpoint: Endpoint = None,
    option: Option = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="List the bucket anew, though its index is kept.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests at a time.")] = 32,
    retries: Annotated[int, typer.Option("--retries", help="Further tries of one request.")] = 5,
    timeout_s: Timeout = 30.0,
    budget: Budget = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Fill a node's cache from a bucket: list it once, fetch what is missing, as far as there is room.

    Ctrl-C at any time: what has arrived stays, and the next time goes on from there. Exit code 0: all of it is there
    that fits. 2: some objects could not be fetched, and a sentence names them. 130: interrupted.
    """
    from stallwise.data.pricing import in_brackets
    from stallwise.data.warming import Warming, check_budget, need_of
    from stallwise.report.data import draw_warmed, named

    bucket = bucket_of(url, endpoint, option, timeout_s)
    folder = cache_of(cache, limit, policy)
    prices = prices_of_url(url, egress)
    with interruptible("What has arrived is in the cache."), Teller() as teller:
        listed = index_for(bucket, match, keys, teller, refresh=refresh)
        need = need_of(listed.index, folder, lambda done: teller.tell("objects looked up", done, len(listed.index)))
        check_budget(need, listed.requests, prices, budget)
        work = Warming(
            bucket,
            listed.index,
            folder,
            need,
            lists=listed.requests,
            concurrency=concurrency,
            retries=retries,
            prices=prices,
            budget_usd=budget,
        )
        done = work.run(lambda p: teller.tell("objects fetched", p.objects, p.of_objects, p.bytes, p.of_bytes))
    found = folder.stat()
    answer(
        lambda: {"warmed": done, "cache": found},
        lambda: draw_warmed(done, found, in_brackets(prices)),
        as_json=as_json,
    )
    if done.interrupted:
        typer.echo("stallwise: Interrupted; what has arrived is in the cache. Run it again to go on.", err=True)
        raise typer.Exit(INTERRUPTED)
    if done.failed:
        raise StallwiseError(
            f"{len(done.failed):,} of {done.objects:,} objects could not be fetched: {named(done.failed)}. "
            "The others are in the cache. Run it again to try these anew, with --refresh where the bucket has changed."
        )
    if done.stopped_because:
        raise StallwiseError(f"{done.stopped_because} {done.left:,} objects were not fetched.")


@app.command()
def verify(
    cache: Cache,
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="[URL]...", help="Buckets to compare with; they are listed anew.")
    ] = None,
    match: Match = "*",
    endpoint: Endpoint = None,
    option: Option = None,
    as_json: Json = False,
) -> None:
    """Check every entry of a cache by its checksum and remove bad ones; with URLs, compare with what they hold now.

    Exit code 0: checked, whatever was found; a removed entry is fetched again when it is wanted.
    """
    from stallwise.data.cache import NodeCache
    from stallwise.data.checking import check
    from stallwise.report.data import draw_checked

    folder = NodeCache.existing(cache)
    buckets = [bucket_of(url, endpoint, option, 30.0) for url in urls or ()]
    with interruptible("The cache is as good as before."), Teller() as teller:
        found = check(folder, buckets, match=match, progress=teller.tell)
    answer(lambda: found, lambda: draw_checked(found), as_json=as_json)


@app.command()
def stat(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="The folder of a run.")] = None,
    cache: Annotated[Path | None, typer.Option("--cache", metavar="FOLDER", help="A cache instead of a run.")] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Samples of the dataset, for an epoch's cost.")
    ] = None,
    store: Annotated[str | None, typer.Option("--store", help="Whose prices: s3 or gs. Default: as recorded.")] = None,
    egress: Egress = None,
    gauges: Annotated[
        Path | None, typer.Option("--gauges", metavar="FILE", help="With --cache: write Prometheus' text format there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a run's batches waited for and what its requests cost; or what lies in a cache and happened in it."""
    from stallwise.report.data import draw_cache, draw_use

    if cache is not None and run is None:
        from stallwise.data.cache import NodeCache

        opened_cache = NodeCache.existing(cache)
        if gauges is not None:
            from stallwise.data.gauges import write_gauges

            write_gauges(gauges, cache=opened_cache)
        found = opened_cache.stat()
        answer(lambda: found, lambda: draw_cache(found), as_json=as_json)
        return
    if run is None or cache is not None:
        raise InputError("Name one of the two: a run's folder, or --cache FOLDER.")
    if gauges is not None:
        raise InputError("--gauges goes with --cache: a run is over, and Prometheus reads what is going on.")
    from stallwise.data.pricing import price_use
    from stallwise.record.bucket import bucket_use_of, loaders_of
    from stallwise.run.reader import Run

    opened = Run.open(run)
    use, loaders = bucket_use_of(opened), loaders_of(opened)
    if use is None:
        raise InputError(
            f"The run at {run} loaded nothing from a bucket (its table `loads` is empty). "
            "Profile a job whose data is a BucketDataset."
        )
    priced = price_use(use, prices_of_store(store, egress), samples)
    answer(
        lambda: {"use": priced.use, "loaders": loaders, "epoch_usd": priced.epoch_usd, "prices": priced.source},
        lambda: draw_use(priced.use, loaders, priced.epoch_usd, f" ({priced.source})" if priced.source else ""),
        as_json=as_json,
    )


@app.command()
def bench(
    url: Url,
    keys: Keys = None,
    endpoint: Endpoint = None,
    option: Option = None,
    max_time_s: Annotated[float, typer.Option("--max-time", help="Seconds to measure at most.")] = 30.0,
    most: Annotated[int, typer.Option("--most", help="Requests at a time to try at most.")] = 256,
    timeout_s: Timeout = 30.0,
    budget: Budget = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Measure a bucket from here: listing, one GET, and what 1, 2, 4, … requests at a time bring."""
    from stallwise.data.benching import Benching
    from stallwise.data.pricing import in_brackets
    from stallwise.report.data_bench import draw_bench

    prices = prices_of_url(url, egress)
    with interruptible("Nothing was written."), Teller() as teller:
        found = Benching(
            bucket_of(url, endpoint, option, timeout_s),
            names=None if keys is None else names_in(keys),
            prices=prices,
            max_s=max_time_s,
            budget_usd=budget,
            most=most,
            progress=lambda level: teller.tell("requests at a time", level),
        ).run()
    answer(lambda: found, lambda: draw_bench(found, in_brackets(prices)), as_json=as_json)


@app.command()
def plan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    cache: Annotated[str, typer.Option("--cache", metavar="SIZE", help="Cache of each node: 200GB.")],
    link: Annotated[str | None, typer.Option("--link", help="Rate of a node's way to the bucket: 10gbit.")] = None,
    latency: Annotated[str | None, typer.Option("--latency", help="What a GET takes beside its bytes: 30ms.")] = None,
    measured: Annotated[
        Path | None, typer.Option("--bench", metavar="FILE", help="Link and latency from `data bench --json`.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Requests of a node at a time.")] = 64,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Default: as the run had.")] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs of the job.")] = 10,
    policy: Annotated[Policy, typer.Option("--policy", help="What a full cache gives up.")] = Policy.NO_EVICT,
    samples: Annotated[int | None, typer.Option("--samples", help="Samples of the dataset.")] = None,
    sample_size: Annotated[str | None, typer.Option("--sample-size", help="Bytes of one object: 110KB.")] = None,
    store: Annotated[str | None, typer.Option("--store", help="Whose prices: s3 or gs. Default: as recorded.")] = None,
    peer_link: Annotated[
        str | None,
        typer.Option("--peer-link", help="Rate between nodes that share caches: 25gbit. Default: as --link."),
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Jobs of a search on a node, over the same data.")] = None,
    egress: Egress = None,
    as_json: Json = False,
) -> None:
    """Predict data wait, misses and dollars for a cache and a link, beside no cache, half and all of the data.

    What the run does not say (how many samples, how large) is asked for by name.
    """
    from stallwise.data.planning import Asked, plan_of
    from stallwise.report.data_plan import draw_plan
    from stallwise.run.reader import Run
    from stallwise.units import parse_bytes, parse_rate

    way, source = link_of(link, latency, measured, concurrency)
    asked = Asked(
        cache_bytes=parse_bytes(cache),
        link=way,
        link_from=source,
        nodes=from_one("--nodes", nodes),
        epochs=from_one("--epochs", epochs) or 1,
        policy=policy.value,
        samples=from_one("--samples", samples),
        sample_bytes=None if sample_size is None else parse_bytes(sample_size),
        prices=prices_of_store(store, egress),
        peer_bytes_per_s=None if peer_link is None else parse_rate(peer_link),
        jobs=from_one("--jobs", jobs),
    )
    found = plan_of(Run.open(run), asked)
    answer(lambda: found, lambda: draw_plan(found), as_json=as_json)
