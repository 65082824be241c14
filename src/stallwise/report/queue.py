"""The queue of a scheduled partition for the terminal."""

import math

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stallwise.report.terminal import table
from stallwise.slurm.snapshot import QueuedJob, Snapshot

_ORDER = ("waiting", "holding", "starting", "running", "warned", "stopping", "ending")
_WORDS = {"holding": "held back", "warned": "told to stop", "ending": "ending"}
_NAME = 24


def draw(found: Snapshot, now_s: float) -> RenderableType:
    """A head line, a table of waiting jobs, a table of the others."""
    waiting = [job for job in found.jobs if job.phase == "waiting"]
    others = [job for job in found.jobs if job.phase != "waiting"]
    head = Text(
        f"{found.partition}: {found.free_gpus} of {found.gpus} GPUs free, {found.other_gpus} not ours · {found.policy}"
    )
    parts: list[RenderableType] = [head]
    if waiting:
        parts += [Text(), _waiting(waiting, now_s)]
    if others:
        parts += [Text(), _others(others, now_s)]
    if not found.jobs:
        parts += [Text("No job waits or runs.", style="dim")]
    return Group(*parts)


def _waiting(jobs: list[QueuedJob], now_s: float) -> Table:
    drawn = table("job", "user", "name", ("GPUs", "right"), ("waits", "right"), "why", ("at most", "right"))
    drawn.columns[5].no_wrap = False
    for job in sorted(jobs, key=lambda job: job.since_s):
        more = "-" if job.until_s is None else show_span(max(0.0, job.until_s - now_s))
        drawn.add_row(
            job.job,
            one_line(job.user),
            one_line(job.name),
            str(job.gpus),
            show_span(now_s - job.since_s),
            Text(job.why),
            more,
        )
    return drawn


def _others(jobs: list[QueuedJob], now_s: float) -> Table:
    drawn = table("job", "user", "name", ("GPUs", "right"), "state", ("for", "right"), "nodes", ("stopped", "right"))
    for job in sorted(jobs, key=lambda job: (_ORDER.index(job.phase), job.since_s)):
        drawn.add_row(
            job.job,
            one_line(job.user),
            one_line(job.name),
            str(job.gpus),
            _WORDS.get(job.phase, job.phase),
            show_span(now_s - job.since_s),
            show_nodes(job.nodes),
            f"{job.stops}×" if job.stops else "",
        )
    return drawn


def show_nodes(nodes: dict[str, int]) -> str:
    """n1:4 n2:2."""
    return " ".join(f"{node}:{gpus}" for node, gpus in nodes.items())


def one_line(text: str) -> Text:
    """A user's text without anything that moves the cursor or colours the terminal, cut where it is long."""
    plain = "".join(letter if letter.isprintable() else "·" for letter in text)
    return Text(plain if len(plain) <= _NAME else plain[: _NAME - 1] + "…")


def show_span(seconds: float) -> str:
    """12 s, 3.5 min, 2.1 h, 4 d."""
    if not math.isfinite(seconds):
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{max(0.0, seconds):.0f} s"
