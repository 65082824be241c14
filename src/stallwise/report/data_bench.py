"""How `stallwise data bench` answers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stallwise.report.data import rows_of, show_usd
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_number, show_percent, show_rate, show_seconds

if TYPE_CHECKING:
    from stallwise.data.benching import Bench, Listing

_BINDS = {
    "processor": "this machine's processor",
    "link or store": "the link or the store: more requests at a time bring no more",
    "not reached": "nothing yet: it still grew when the measurement ended",
}


def draw_bench(found: "Bench", as_of: str) -> RenderableType:
    """The bucket from here, in a table."""
    return Group(
        rows_of(_facts(found)),
        Text(),
        _levels(found),
        Text(),
        rows_of(_meaning(found, as_of)),
    )


def _facts(found: "Bench") -> Iterator[tuple[str, str]]:
    yield "bucket", f"{found.url}: objects of {show_bytes(found.object_bytes)} on average"
    if found.listing is not None:
        yield "listing", _listing(found.listing)
    one = found.single
    yield "first GET", f"{show_seconds(one.connect_s)}, connecting included"
    yield (
        "one GET",
        (
            f"{show_seconds(one.whole_p50_s)} (p95 {show_seconds(one.whole_p95_s)}), to its first byte "
            f"{show_seconds(one.first_byte_p50_s)} (p95 {show_seconds(one.first_byte_p95_s)})"
        ),
    )


def _listing(listing: "Listing") -> str:
    per_page_s = listing.seconds / listing.pages
    said = f"{listing.objects:,} names in {show_seconds(listing.seconds)}, {show_seconds(per_page_s)} per 1,000"
    return said if listing.whole else f"{said}; there are more"


def _levels(found: "Bench") -> Table:
    heads = ("at a time", "objects/s", "bytes/s", "p50", "p95", "CPU/object", "cores")
    made = table(*[(head, "right") for head in heads], "")
    for level in found.levels:
        made.add_row(
            f"{level.concurrency}",
            show_number(level.objects_per_s),
            show_rate(level.bytes_per_s),
            show_seconds(level.p50_s),
            show_seconds(level.p95_s),
            show_seconds(level.cpu_s_per_object),
            f"{level.cores:.2f}",
            "best" if level is found.best else "",
        )
    return made


def _meaning(found: "Bench", as_of: str) -> Iterator[tuple[str, str]]:
    best = found.best
    times = best.objects_per_s / found.levels[0].objects_per_s
    many = "one request" if best.concurrency == 1 else f"{best.concurrency} requests"
    gain = f", {show_number(times)} × as many as one by one" if best.concurrency > 1 else ""
    yield (
        "means",
        (
            f"{show_rate(found.link_bytes_per_s)} ({show_number(best.objects_per_s)} objects/s) with "
            f"{many} at a time{gain}"
        ),
    )
    yield "binds", _BINDS[found.bound]
    failed = f", {found.failed:,} objects failed" if found.failed else ""
    tries = show_percent(found.retries / found.requests) if found.retries else "none"
    yield (
        "cost",
        (
            f"{found.requests:,} GET ({tries} tried again{failed}), {found.lists:,} LIST, "
            f"{show_bytes(found.fetched_bytes)}, {show_seconds(found.seconds)}; {show_usd(found.usd)}{as_of}"
        ),
    )
    shown = (show_rate(best.bytes_per_s), show_seconds(found.latency_s))
    shown = (show_rate(best.bytes_per_s), show_seconds(found.latency_s))
    link, latency = (quantity.replace(" ", "") for quantity in shown)
    yield "next", f"stallwise data plan RUN --cache SIZE --link {link} --latency {latency}"
