"""How `stallwise data` answers: filling, checking and reading caches, and what a run says about its bucket."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from stallwise.record.bucket import BucketUse, Loaded, Waits
from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_number, show_percent, show_rate, show_seconds

if TYPE_CHECKING:
    from stallwise.data.cache import CacheStat
    from stallwise.data.checking import Checked
    from stallwise.data.warming import Failure, Warmed

_MOST_NAMED = 5
_MOST_LOADERS = 32


def show_usd(value: float | None) -> str:
    """Dollars, as many digits as small sums need: 12.50 dollars, 0.0008 dollars."""
    if value is None:
        return "dollars unknown"
    if value == 0:
        return "no dollars"
    if value < 0.005:
        return f"{value:.1g} dollars" if value < 1e-4 else f"{value:.4f} dollars"
    return f"{value:,.2f} dollars"


def rows_of(facts: Iterator[tuple[str, str]]) -> RenderableType:
    """A label and a sentence each, as on the card."""
    rows = labelled()
    for name, sentence in facts:
        rows.add_row(name, Text(sentence))
    return Constrain(rows, WIDTH)


def draw_warmed(done: "Warmed", stat: "CacheStat", as_of: str) -> RenderableType:
    """What `warm` did."""
    return rows_of(_warmed(done, stat, as_of))


def _warmed(done: "Warmed", stat: "CacheStat", as_of: str) -> Iterator[tuple[str, str]]:
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


def named(failed: "tuple[Failure, ...]") -> str:
    """The first few, with their reasons; names may hold anything."""
    said = "; ".join(failure.reason.rstrip(".") for failure in failed[:_MOST_NAMED])
    return said + (f"; and {len(failed) - _MOST_NAMED:,} more" if len(failed) > _MOST_NAMED else "")


def draw_checked(found: "Checked") -> RenderableType:
    """What `verify` found."""
    return rows_of(_checked(found))


def _checked(found: "Checked") -> Iterator[tuple[str, str]]:
    bad = f"{found.removed:,} bad ones removed" if found.removed else "none bad"
    yield "checksums", f"{found.entries:,} entries read in {show_seconds(found.seconds)}: {bad}"
    for one in found.buckets:
        yield "bucket", f"{one.url}: {one.objects:,} objects, {show_bytes(one.bytes)}, listed now"
        yield "", f"{one.cached:,} in the cache, {one.missing:,} missing ({show_bytes(one.missing_bytes)})"
        if one.changed is None:
            yield "", "changed since it was listed before: not known, there was no older index"
        else:
            yield "", f"since the index before: {one.changed:,} changed, {one.gone:,} gone, {one.new:,} new"
    if found.extra is not None:
        yield "extra", f"{found.extra:,} entries of none of these buckets as they are now"
    yield "cache", _fill(found.stat)


def draw_cache(stat: "CacheStat") -> RenderableType:
    """What lies in a cache folder and what happened in it."""
    return rows_of(_cache(stat))


def _cache(stat: "CacheStat") -> Iterator[tuple[str, str]]:
    asked = stat.hits + stat.misses + stat.waited
    yield "cache", _fill(stat)
    yield "asked", f"{asked:,} times since it was made" if asked else "never since it was made"
    if asked:
        yield "hits", f"{stat.hits:,} ({show_percent(stat.hits / asked)})"
        yield "misses", f"{stat.misses:,}, and {stat.waited:,} that another process was fetching already"
    yield "kept", f"{stat.inserted:,} put in, {stat.evictions:,} evicted, {stat.bypassed:,} not let in"
    yield "healed", f"{stat.healed:,} bad entries removed"


def draw_use(use: BucketUse, loaders: tuple[Loaded, ...], epoch_usd: float | None, priced: str) -> RenderableType:
    """What a run says about its bucket."""
    sections: list[RenderableType] = [rows_of(_use(use, epoch_usd, priced)), Text(), _waits_table(use.total)]
    if len(loaders) > 1:
        sections += [Text(), _loaders_table(loaders)]
    return Group(*sections)


def _use(use: BucketUse, epoch_usd: float | None, priced: str) -> Iterator[tuple[str, str]]:
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


def _waits_table(total: Loaded) -> Table:
    made = table(
        "a batch waits for", ("mean", "right"), ("p50", "right"), ("p95", "right"), "  in the process that loads it"
    )
    meanings = {
        "network": "the store",
        "cache": "reading the node's cache",
        "decode": "the decode function",
        "queue": "its turn, while the batch before was loaded",
    }
    for part, meaning in meanings.items():
        waits: Waits | None = getattr(total, part)
        figures = ("unknown",) * 3 if waits is None else _figures(waits)
        made.add_row(part, *figures, f"  {meaning}")
    return made


def _figures(waits: Waits) -> tuple[str, str, str]:
    return show_seconds(waits.mean_s), show_seconds(waits.p50_s), show_seconds(waits.p95_s)


def _loaders_table(loaders: tuple[Loaded, ...]) -> Table:
    heads = ("samples", "bytes", "hits", "GETs", "again", "network", "cache", "decode", "queue")
    made = table("rank", "worker", *[(head, "right") for head in heads])
    for one in loaders[:_MOST_LOADERS]:
        made.add_row(
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
    if len(loaders) > _MOST_LOADERS:
        made.add_row("…", f"{len(loaders) - _MOST_LOADERS} more")
    return made
