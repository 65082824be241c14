"""How `stallwise data plan` answers: today's setting and others, side by side, and what was taken for granted."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stallwise.report.data import rows_of
from stallwise.report.terminal import table
from stallwise.report.text import show_bounds, show_bytes, show_number, show_percent, show_rate, show_seconds

if TYPE_CHECKING:
    from stallwise.data.planning import Alternative, DataPlan, JobsPlan, Measured


def draw_plan(found: "DataPlan") -> RenderableType:
    """The whole answer."""
    return Group(
        rows_of(_facts(found)),
        Text(),
        _alternatives(found),
        Text(),
        *([rows_of(_jobs(found.jobs)), Text()] if found.jobs is not None else []),
        rows_of(("assumed" if number == 0 else "", said) for number, said in enumerate(found.assumptions)),
    )


def _facts(found: "DataPlan") -> Iterator[tuple[str, str]]:
    facts, link = found.facts, found.link
    yield "run", facts.run
    yield (
        "dataset",
        (
            f"{facts.samples:,} samples of {show_bytes(facts.sample_bytes)}: {show_bytes(facts.dataset_bytes)}, "
            f"read by {_nodes(facts.nodes)}"
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
            f"{show_number(found.objects_per_s)} samples/s"
        ),
    )


def _jobs(plan: "JobsPlan") -> Iterator[tuple[str, str]]:
    alone, shared = plan.apart, plan.together
    yield (
        f"{plan.jobs} jobs",
        f"each on its own: {show_number(alone.samples_per_s)} samples/s each; an epoch of all reads the data "
        f"{alone.reads:.2g} times from the bucket",
    )
    yield (
        "",
        f"prepared together (SharedLoader): {show_number(shared.samples_per_s)} samples/s each, {plan.gain:.1f} x; "
        f"reads it {shared.reads:.2g} times",
    )


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count:,} nodes"


def _alternatives(found: "DataPlan") -> Table:
    heads = ("cache", "misses", "wait, 1st", "wait, then", "GETs", f"{found.epochs} epochs", "dollars")
    made = table("", *[(head, "right") for head in heads])
    if found.measured is not None:
        made.add_row(*_measured(found.measured))
    for one in found.alternatives:
        made.add_row(*_row(one))
    return made


def _measured(one: "Measured") -> tuple[str, ...]:
    wait = "unknown" if one.wait_s is None else show_seconds(one.wait_s)
    return f"measured, {_nodes(one.nodes)}", "", show_percent(one.miss), "", wait, show_number(one.requests), "", ""


def _row(one: "Alternative") -> tuple[str, ...]:
    """Misses, requests and the second wait are those of an epoch once the cache has settled."""
    return (
        one.name + (", sticky" if one.sticky else ""),
        show_bytes(one.cache_bytes),
        show_percent(one.misses[-1]),
        show_seconds(one.first.wait_s),
        show_bounds(one.last.low_s, one.last.high_s) if one.last.wait_s > 0 else "none",
        show_number(one.requests_last),
        show_seconds(one.epochs_s),
        "unknown" if one.usd is None else f"{one.usd:,.2f}" if one.usd >= 1 else f"{one.usd:.2g}",
    )
