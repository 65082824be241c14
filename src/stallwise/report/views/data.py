"""Data commands in the terminal: the cache, its use, a measured object store, a plan for a data set."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stallwise.analysis.object_store import BucketUse, LoaderTotals, WaitTimes
from stallwise.report.format import (
    plural,
    show_bounds,
    show_bytes,
    show_factor,
    show_number,
    show_percent,
    show_rate,
    show_seconds,
    show_usd,
)
from stallwise.report.view import Line, Notes, PartColumn, TablePart, View, facts, number, table, view

if TYPE_CHECKING:
    from stallwise.data.cache.cache import CacheStat
    from stallwise.data.cache.verify import CacheCheck
    from stallwise.data.tools.bench import BenchResult, ListingTimes
    from stallwise.data.tools.plan import CacheAlternative, DataPlan, JobsPlan, MeasuredEpoch
    from stallwise.data.tools.warm import FetchFailure, WarmResult

_MAX_REASONS = 5
_MAX_LOADERS = 32


def draw_warmed(done: "WarmResult", stat: "CacheStat", as_of: str) -> View:
    """What was fetched into a cache, what it cost, and what the cache holds now."""
    return view("", facts(_warmed(done, stat, as_of)))


def _warmed(done: "WarmResult", stat: "CacheStat", as_of: str) -> Iterator[tuple[str, Line]]:
    size = "size not known" if done.bytes is None else show_bytes(done.bytes)
    yield "bucket", f"{done.url}: {done.objects:,} objects, {size}"
    rate = f", {show_rate(done.fetched_bytes / done.seconds)}" if done.fetched and done.seconds > 0 else ""
    fetched = f"{done.fetched:,} objects, {show_bytes(done.fetched_bytes)}, in {show_seconds(done.seconds)}{rate}"
    yield "fetched", fetched if done.fetched else "nothing"
    yield "there before", f"{done.present:,} objects"
    if done.no_room:
        yield "no room", f"{done.no_room:,} objects, {show_bytes(done.no_room_bytes)}: read from the bucket every epoch"
    if done.failed:
        yield "failed", f"{len(done.failed):,} objects"
    if done.left:
        yield "left", f"{done.left:,} objects"
    again = f", {done.retries:,} of them again" if done.retries else ""
    yield "requests", f"{done.requests:,} GET{again}, {done.lists:,} LIST; {show_usd(done.usd)}{as_of}"
    yield "cache", _fill(stat)


def _fill(stat: "CacheStat") -> str:
    return (
        f"{stat.entries:,} entries, {show_bytes(stat.used_bytes)} of {show_bytes(stat.limit_bytes)} "
        f"({show_percent(stat.used_bytes / stat.limit_bytes)}), {stat.policy}"
    )


def failure_reasons(failed: "tuple[FetchFailure, ...]") -> str:
    """The reasons of the first few failures."""
    reasons = "; ".join(failure.reason.rstrip(".") for failure in failed[:_MAX_REASONS])
    return reasons + (f"; and {len(failed) - _MAX_REASONS:,} more" if len(failed) > _MAX_REASONS else "")


def draw_checked(check: "CacheCheck") -> View:
    """What a check of a cache found and removed."""
    return view("", facts(_checked(check)))


def _checked(check: "CacheCheck") -> Iterator[tuple[str, Line]]:
    bad = f"{check.removed:,} bad ones removed" if check.removed else "none bad"
    yield "checksums", f"{check.entries:,} entries read in {show_seconds(check.seconds)}: {bad}"
    for one in check.buckets:
        yield "bucket", f"{one.url}: {one.objects:,} objects, {show_bytes(one.bytes)}, listed now"
        yield "", f"{one.cached:,} in the cache, {one.missing:,} missing ({show_bytes(one.missing_bytes)})"
        if one.changed is None:
            yield "", "changed since it was listed before: not known, there was no older index"
        else:
            yield "", f"since the index before: {one.changed:,} changed, {one.gone:,} gone, {one.new:,} new"
    if check.extra is not None:
        yield "extra", f"{check.extra:,} entries of none of these buckets as they are now"
    yield "cache", _fill(check.stat)


def draw_cache(stat: "CacheStat") -> View:
    """The contents and counters of a cache folder."""
    return view("", facts(_cache(stat)))


def _cache(stat: "CacheStat") -> Iterator[tuple[str, Line]]:
    requests = stat.hits + stat.misses + stat.waited
    yield "cache", _fill(stat)
    yield "asked", f"{requests:,} times since it was made" if requests else "never since it was made"
    if requests:
        yield "hits", f"{stat.hits:,} ({show_percent(stat.hits / requests)})"
        yield "misses", f"{stat.misses:,}, and {stat.waited:,} that another process was fetching already"
    yield "kept", f"{stat.inserted:,} put in, {stat.evictions:,} evicted, {stat.bypassed:,} not let in"
    yield "healed", f"{stat.healed:,} bad entries removed"


def draw_use(use: BucketUse, loaders: tuple[LoaderTotals, ...], epoch_usd: float | None, priced: str) -> View:
    """What a run says about its bucket."""
    return view(
        "",
        facts(_use(use, epoch_usd, priced)),
        _waits_table(use.total),
        _loaders_table(loaders) if len(loaders) > 1 else None,
    )


def _use(use: BucketUse, epoch_usd: float | None, priced: str) -> Iterator[tuple[str, Line]]:
    total = use.total
    if use.store is not None:
        yield "bucket", f"{use.store.url}: {use.store.objects:,} objects, {show_bytes(use.store.bytes)}"
    yield "loaded", f"{total.samples:,} samples in {total.batches:,} batches, {show_bytes(total.data_bytes)}"
    limit = (
        ""
        if not (use.store and use.store.cache_bytes)
        else f"; {use.store.policy}, {show_bytes(use.store.cache_bytes)}"
    )
    hits = "unknown" if total.hit_share is None else f"{total.hits:,} ({show_percent(total.hit_share)})"
    yield "from cache", hits + limit
    again = f", {total.retries:,} of them again" if total.retries else ""
    yield "from store", f"{total.requests:,} GET{again}, {show_bytes(total.fetched_bytes)}"
    cost = f"{show_usd(use.usd)} for this run"
    yield "cost", cost + ("" if epoch_usd is None else f", {show_usd(epoch_usd)} per epoch") + priced
    if use.data_wait_s is not None and use.data_wait_share is not None:
        blame = "" if use.network_share is None else f"; {show_percent(use.network_share)} of loading is the store"
        share = show_percent(use.data_wait_share)
        yield "step waits", f"{show_seconds(use.data_wait_s)} for data, {share} of the step{blame}"


def _waits_table(total: LoaderTotals) -> TablePart:
    meanings = {
        "network": "the store",
        "cache": "reading the node's cache",
        "decode": "the decode function",
        "queue": "its turn, while the batch before was loaded",
    }
    rows = []
    for part, meaning in meanings.items():
        waits: WaitTimes | None = getattr(total, part)
        rows.append((part, *(("unknown",) * 3 if waits is None else _figures(waits)), meaning))
    columns = (
        "a batch waits for",
        number("mean"),
        number("p50", 1),
        number("p95", 1),
        PartColumn("in the process that loads it", wrap=True),
    )
    return table(columns, rows)


def _figures(waits: WaitTimes) -> tuple[str, str, str]:
    return show_seconds(waits.mean_s), show_seconds(waits.p50_s), show_seconds(waits.p95_s)


def _loaders_table(loaders: tuple[LoaderTotals, ...]) -> TablePart:
    names = ("samples", "bytes", "hits", "GETs", "again", "network", "cache", "decode", "queue")
    rows = (
        (
            str(one.rank),
            "itself" if one.worker is None else str(one.worker),
            show_number(one.samples),
            show_bytes(one.data_bytes),
            "unknown" if one.hit_share is None else show_percent(one.hit_share),
            show_number(one.requests),
            show_number(one.retries),
            *(show_seconds(waits.mean_s) for waits in (one.network, one.cache, one.decode)),
            "unknown" if one.queue is None else show_seconds(one.queue.mean_s),
        )
        for one in loaders[:_MAX_LOADERS]
    )
    hidden = len(loaders) - _MAX_LOADERS
    columns = (PartColumn("rank"), PartColumn("worker"), *(number(name, i) for i, name in enumerate(names)))
    return table(columns, rows, note=f"… and {hidden} more" if hidden > 0 else "")


_BINDS = {
    "processor": "this machine's CPUs",
    "link or store": "the link or the store: more requests at a time bring no more",
    "not reached": "nothing yet: it still grew when the measurement ended",
}


def draw_bench(bench: "BenchResult", as_of: str) -> View:
    """The rates of a bucket, measured from this machine."""
    return view("", facts(_bench_facts(bench)), _levels(bench), facts(_meaning(bench, as_of)))


def _bench_facts(bench: "BenchResult") -> Iterator[tuple[str, Line]]:
    yield "bucket", f"{bench.url}: objects of {show_bytes(bench.object_bytes)} on average"
    if bench.listing is not None:
        yield "listing", _listing(bench.listing)
    one = bench.single
    yield "first GET", f"{show_seconds(one.connect_s)}, connecting included"
    first = f"{show_seconds(one.first_byte_p50_s)} (p95 {show_seconds(one.first_byte_p95_s)})"
    yield "one GET", f"{show_seconds(one.whole_p50_s)} (p95 {show_seconds(one.whole_p95_s)}), to its first byte {first}"


def _listing(listing: "ListingTimes") -> str:
    per_page_s = listing.seconds / listing.pages
    sentence = f"{listing.objects:,} names in {show_seconds(listing.seconds)}, {show_seconds(per_page_s)} per 1,000"
    return sentence if listing.whole else f"{sentence}; there are more"


def _levels(bench: "BenchResult") -> TablePart:
    rows = (
        (
            f"{level.concurrency}",
            show_number(level.objects_per_s),
            show_rate(level.bytes_per_s),
            show_seconds(level.p50_s),
            show_seconds(level.p95_s),
            show_seconds(level.cpu_s_per_object),
            show_number(level.cores),
            "best" if level is bench.best else "",
        )
        for level in bench.levels
    )
    columns = (
        number("at a time"), number("objects/s"), number("bytes/s"), number("p50", 1), number("p95", 2),
        number("CPU/object", 4), number("cores", 3), "",
    )  # fmt: skip
    return table(columns, rows)


def _meaning(bench: "BenchResult", as_of: str) -> Iterator[tuple[str, Line]]:
    best = bench.best
    times = best.objects_per_s / bench.levels[0].objects_per_s
    many = "one request" if best.concurrency == 1 else f"{best.concurrency} requests"
    gain = f", {show_factor(times)} as many as one by one" if best.concurrency > 1 else ""
    yield (
        "means",
        (
            f"{show_rate(bench.link_bytes_per_s)} ({show_number(best.objects_per_s)} objects/s) with "
            f"{many} at a time{gain}"
        ),
    )
    yield "limited by", _BINDS[bench.bound]
    failed = f", {bench.failed:,} objects failed" if bench.failed else ""
    tries = show_percent(bench.retries / bench.requests) if bench.retries else "none"
    yield (
        "cost",
        (
            f"{bench.requests:,} GET ({tries} tried again{failed}), {bench.lists:,} LIST, "
            f"{show_bytes(bench.fetched_bytes)}, {show_seconds(bench.seconds)}; {show_usd(bench.usd)}{as_of}"
        ),
    )
    shown = (show_rate(best.bytes_per_s), show_seconds(bench.latency_s))
    link, latency = (quantity.replace(" ", "") for quantity in shown)
    arguments = ["--cache-size", "SIZE", "--store-link", link, "--latency", latency]
    yield "next", " ".join(["stallwise data plan RUN", *arguments])


def draw_plan(plan: "DataPlan") -> View:
    """The plan: the run, alternatives of caches, jobs that share data, and what is assumed."""
    return view(
        "",
        facts(_plan_facts(plan)),
        _alternatives(plan),
        facts(_jobs(plan.jobs)) if plan.jobs is not None else None,
        Notes("assumed", tuple(plan.assumptions)),
    )


def _plan_facts(plan: "DataPlan") -> Iterator[tuple[str, Line]]:
    facts, link = plan.facts, plan.link
    yield "run", facts.run
    yield (
        "dataset",
        (
            f"{facts.samples:,} samples of {show_bytes(facts.sample_bytes)}: {show_bytes(facts.dataset_bytes)}, "
            f"read by {plural(facts.nodes, 'node')}"
        ),
    )
    yield (
        "takes",
        (
            f"{show_number(facts.ready_samples_per_s)} samples/s on a node where data is always there; an epoch of "
            f"{show_seconds(facts.samples / facts.nodes / facts.ready_samples_per_s)}"
        ),
    )
    yield (
        "link",
        (
            f"{show_rate(link.bytes_per_s)}, {show_seconds(link.latency_s)}, {link.concurrency} requests at a time: "
            f"{show_number(plan.objects_per_s)} samples/s"
        ),
    )


def _jobs(plan: "JobsPlan") -> Iterator[tuple[str, Line]]:
    alone, shared = plan.apart, plan.together
    yield (
        f"{plan.jobs} jobs",
        f"each on its own: {show_number(alone.samples_per_s)} samples/s each; an epoch of all reads the data "
        f"{show_number(alone.reads)} times from the bucket",
    )
    yield (
        "",
        f"prepared together (SharedLoader): {show_number(shared.samples_per_s)} samples/s each, "
        f"{show_factor(plan.gain)} as fast; reads it {show_number(shared.reads)} times",
    )


def _alternatives(plan: "DataPlan") -> TablePart:
    columns = (
        PartColumn(""), number("cache", 1), number("misses"), number("wait, 1st", 2), number("wait, then"),
        number("GETs", 3), number(plural(plan.epochs, "epoch")), number("cost"),
    )  # fmt: skip
    measured = [] if plan.measured is None else [_measured(plan.measured)]
    return table(columns, [*measured, *map(_row, plan.alternatives)])


def _measured(one: "MeasuredEpoch") -> tuple[str, ...]:
    wait = "unknown" if one.wait_s is None else show_seconds(one.wait_s)
    return (
        f"measured, {plural(one.nodes, 'node')}",
        "",
        show_percent(one.miss),
        "",
        wait,
        show_number(one.requests),
        "",
        "",
    )


def _row(one: "CacheAlternative") -> tuple[str, ...]:
    """Misses, requests and the second wait are those of an epoch once the cache has settled."""
    return (
        one.name + (", sticky" if one.sticky else ""),
        show_bytes(one.cache_bytes),
        show_percent(one.misses[-1]),
        show_seconds(one.first.wait_s),
        show_bounds(one.last.low_s, one.last.high_s) if one.last.wait_s > 0 else "none",
        show_number(one.requests_last),
        show_seconds(one.epochs_s),
        show_usd(one.usd),
    )
