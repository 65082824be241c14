"""The best buckets of a job, for the terminal and as JSON: how many, how large, and what they save."""

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from stallwise.buckets.best import Best
from stallwise.buckets.plan import Bucket
from stallwise.report.card import WIDTH, labelled
from stallwise.report.terminal import table
from stallwise.report.text import show_bytes, show_percent, show_seconds

_MOST = 20


def draw(best: Best) -> RenderableType:
    """What the plan saves, then its buckets in the order they are sent."""
    rows = labelled()
    rows.add_row("best buckets", Text(_headline(best), style="bold"))
    if not best.worthwhile:
        rows.add_row("", Text("No other buckets save 1 % of a step: the plan is what the job has now.", style="dim"))
    for sentence in _traced(best):
        rows.add_row("", Text(sentence, style="dim"))
    drawn = table(("bucket", "right"), ("bytes", "right"), ("parameters", "right"), "from … to")
    for number, bucket in enumerate(best.plan.buckets[:_MOST]):
        drawn.add_row(f"{number + 1}", show_bytes(bucket.bytes), f"{len(bucket.parameters):,}", _span(bucket))
    if len(best.plan.buckets) > _MOST:
        drawn.add_row("…", "", "", f"{len(best.plan.buckets) - _MOST} more in the file")
    return Constrain(Group(rows, drawn), WIDTH)


def _headline(best: Best) -> str:
    planned, own = best.planned.step_s, best.own.step_s
    now = f"{best.own_buckets} as they are: {show_seconds(own)}"
    return (
        f"{len(best.plan.buckets)} buckets: {show_seconds(planned)}; {now}; {show_percent(best.gain)} of a step saved"
    )


def _traced(best: Best) -> list[str]:
    """What a plan from a trace lacks."""
    if best.plan.named:
        return []
    said = ["A trace has no names of parameters: torch 2.13 or newer carries the plan out by its bytes."]
    if best.whole_buckets:
        said.append("It has no shapes either (record_shapes=True): buckets could be joined, not cut.")
    return said


def _span(bucket: Bucket) -> str:
    first, last = bucket.parameters[0], bucket.parameters[-1]
    return first if first == last else f"{first} … {last}"


def document(best: Best) -> dict[str, Any]:
    """Plain values; `plan` is what the file holds."""
    return {
        "planned_s": best.planned.step_s,
        "own_s": best.own.step_s,
        "own_buckets": best.own_buckets,
        "gain": best.gain,
        "worthwhile": best.worthwhile,
        "plan": msgspec.to_builtins(best.plan),
    }
