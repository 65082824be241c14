"""The queue of a scheduled partition."""

import math

from stallwise.report.format import plural, show_seconds
from stallwise.report.view import Paragraph, PartColumn, TablePart, View, number, table, view
from stallwise.slurm.snapshot import QueuedJob, QueueSnapshot

_ORDER = ("waiting", "holding", "starting", "running", "warned", "stopping", "ending")
_WORDS = {"holding": "held back", "warned": "told to stop", "ending": "ending"}
_NAME = 24


def draw_queue(snapshot: QueueSnapshot, now_s: float) -> View:
    """A head line, a table of waiting jobs, a table of the others."""
    waiting = [job for job in snapshot.jobs if job.phase == "waiting"]
    others = [job for job in snapshot.jobs if job.phase != "waiting"]
    gpus = f"{snapshot.free_gpus} of {plural(snapshot.gpus, 'GPU')} free, {snapshot.other_gpus} not ours"
    return view(
        "",
        Paragraph(f"{snapshot.partition}: {gpus} · {snapshot.policy}"),
        _waiting(waiting, now_s) if waiting else None,
        _others(others, now_s) if others else None,
        None if snapshot.jobs else Paragraph("No job waits or runs.", "dim"),
    )


def _waiting(jobs: list[QueuedJob], now_s: float) -> TablePart:
    columns = (
        "job",
        PartColumn("user", priority=2),
        PartColumn("name", priority=1),
        number("GPUs"),
        number("waits"),
        PartColumn("why", wrap=True),
        number("at most", 3),
    )
    rows = (
        (
            job.job,
            job.user,
            shortened(job.name),
            str(job.gpus),
            show_span(now_s - job.since_s),
            job.why or "",
            "-" if job.until_s is None else show_span(max(0.0, job.until_s - now_s)),
        )
        for job in sorted(jobs, key=lambda job: job.since_s)
    )
    return table(columns, rows)


def _others(jobs: list[QueuedJob], now_s: float) -> TablePart:
    columns = (
        "job",
        PartColumn("user", priority=2),
        PartColumn("name", priority=1),
        number("GPUs"),
        "state",
        number("for"),
        PartColumn("nodes", wrap=True),
        number("stopped", 3),
    )
    rows = (
        (
            job.job,
            job.user,
            shortened(job.name),
            str(job.gpus),
            _WORDS.get(job.phase, job.phase),
            show_span(now_s - job.since_s),
            show_nodes(job.nodes),
            f"{job.stops}×" if job.stops else "",
        )
        for job in sorted(jobs, key=lambda job: (_ORDER.index(job.phase), job.since_s))
    )
    return table(columns, rows)


def show_nodes(nodes: dict[str, int]) -> str:
    """Nodes with the GPUs on each: n1:4 n2:2."""
    return " ".join(f"{node}:{gpus}" for node, gpus in nodes.items())


def shortened(text: str) -> str:
    """A user's text, cut where it is long."""
    return text if len(text) <= _NAME else text[: _NAME - 1] + "…"


def show_span(seconds: float) -> str:
    """A time, or that there is none; what has just begun is 0 s."""
    return show_seconds(round(max(0.0, seconds))) if math.isfinite(seconds) else "-"
