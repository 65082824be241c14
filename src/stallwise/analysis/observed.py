"""What is left of a step after ablation, attributed to causes: from the windows of the *observe* phase.

Each window says how long the device worked (without one: how long the main thread was inside forward, backward or
optimizer) and what the rest of the time went to. Pooled over the windows and fitted to the time that was measured
without watching, they divide the last rung of the ladder: compute, host, and, where no loader could be ablated, copy
and prep. Watching with torch's profiler makes launches slower and kernels not: what a window is longer than an
unwatched step is taken off the launches first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwise.model.statistics.intervals import median_of_block_means
from stallwise.model.statistics.stalls import Share
from stallwise.run.reader import Run

if TYPE_CHECKING:
    from stallwise.run.table import Table

COMPUTE, COPY, EXCHANGE = "compute", "copy", "exchange"
LOADER, DATA_CODE, ROLLOUT = "loader", "data code", "rollout"
LAUNCH, SYNCHRONISE, ALLOCATE, GC, PYTHON = "launch", "synchronise", "allocate", "gc", "python"

DATA_CAUSES = frozenset({LOADER, DATA_CODE, ROLLOUT})
_WORK = (COMPUTE, COPY, EXCHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCause:
    """What one cause takes of a step, the part of the step that it belongs to, and where in the script most of it is.

    `calls` are calls, or stretches of time, per step; `where` is None where no line stands out.
    """

    cause: str
    part: str
    s: float
    calls: float
    where: str | None


@dataclass(frozen=True, slots=True)
class ObservedWindow:
    """Seconds of one step by (cause, place), the mean over one window."""

    seconds: Mapping[tuple[str, str | None], float]
    calls: Mapping[tuple[str, str | None], float]

    def by_cause(self) -> dict[str, float]:
        """Seconds of one step by cause."""
        totals: dict[str, float] = {}
        for (cause, _), seconds in self.seconds.items():
            totals[cause] = totals.get(cause, 0.0) + seconds
        return totals


def windows_of(rows: "Table") -> list[ObservedWindow]:
    """The windows of all ranks."""
    windows = []
    for _, table in rows.group_by("rank", "window").parts():
        seconds: dict[tuple[str, str | None], float] = {}
        calls: dict[tuple[str, str | None], float] = {}
        for row in table.dicts():
            key = (row["cause"], row["where"])
            seconds[key] = seconds.get(key, 0.0) + max(0.0, row["s"]) / max(1, row["steps"])
            calls[key] = calls.get(key, 0.0) + row["calls"] / max(1, row["steps"])
        if sum(seconds.values()) > 0:
            windows.append(ObservedWindow(seconds, calls))
    return windows


def fit_to_step(seconds: Mapping[str, float], step_s: float, *, on_device: bool) -> dict[str, float]:
    """The seconds of a watched step made to add up to `step_s`, that of an unwatched one; none becomes negative.

    On a device, what the watched step is longer is taken off the launches, then off whatever else the device waited
    for, and only then off its work. Everything else is scaled alike.
    """
    fitted = dict(seconds)
    if on_device:
        excess_s = sum(fitted.values()) - step_s
        waits = [cause for cause in fitted if cause not in _WORK and cause != LAUNCH]
        for group in ([LAUNCH], waits):
            total_s = sum(fitted.get(cause, 0.0) for cause in group)
            taken_s = min(max(0.0, excess_s), total_s)
            for cause in group:
                if cause in fitted and total_s > 0:
                    fitted[cause] *= 1 - taken_s / total_s
            excess_s -= taken_s
    total_s = sum(fitted.values())
    return {cause: s * step_s / total_s for cause, s in fitted.items()} if total_s > 0 else {}


def part_of(cause: str, *, loader_ablated: bool, copy_ablated: bool) -> str:
    """The part of a step that a cause belongs to. What the loader costs is not observed where it was ablated."""
    if cause in (COMPUTE, EXCHANGE) or (cause == COPY and copy_ablated):
        return "compute"
    if cause == COPY:
        return "copy"
    return "prep" if cause in DATA_CAUSES and not loader_ablated else "host"


def observe(
    run: Run, base: Share, *, loader_ablated: bool, copy_ablated: bool
) -> tuple[dict[str, Share], tuple[ObservedCause, ...]]:
    """The parts that the last rung of the ladder divides into, compute among them, and the causes, longest first."""
    windows = windows_of(run.table("observed"))
    if not windows or base.s <= 0:
        return {}, ()
    on_device = any(node.gpus for node in run.manifest.nodes)
    ablated = {"loader_ablated": loader_ablated, "copy_ablated": copy_ablated}
    # Windows in which nothing waited for the host, or for data, are a measurement too.
    watched = (*(("host",) if on_device else ()), *(() if loader_ablated else ("prep",)))
    pooled = _pooled(windows)
    causes = fit_to_step(pooled.by_cause(), base.s, on_device=on_device)
    parts = dict.fromkeys(watched, 0.0) | _by_part(causes, **ablated)
    per_window = [
        _by_part(fit_to_step(window.by_cause(), base.s, on_device=on_device), **ablated) for window in windows
    ]
    shares = {name: _share(name, s, per_window) for name, s in parts.items() if name != "compute"}
    low_s = base.low_s - sum(share.high_s - share.s for share in shares.values())
    high_s = base.high_s + sum(share.s - share.low_s for share in shares.values())
    rest_s = sum(share.s for share in shares.values())
    compute = Share(
        max(0.0, base.s - rest_s),
        min(max(0.0, low_s - rest_s), max(0.0, base.s - rest_s)),
        max(high_s - rest_s, base.s - rest_s, 0.0),
    )
    return shares | {"compute": compute}, _causes(pooled, causes, **ablated)


def _pooled(windows: Sequence[ObservedWindow]) -> ObservedWindow:
    seconds: dict[tuple[str, str | None], float] = {}
    calls: dict[tuple[str, str | None], float] = {}
    for window in windows:
        for key, value in window.seconds.items():
            seconds[key] = seconds.get(key, 0.0) + value / len(windows)
            calls[key] = calls.get(key, 0.0) + window.calls.get(key, 0.0) / len(windows)
    return ObservedWindow(seconds, calls)


def _by_part(causes: Mapping[str, float], *, loader_ablated: bool, copy_ablated: bool) -> dict[str, float]:
    parts: dict[str, float] = {}
    for cause, seconds in causes.items():
        part = part_of(cause, loader_ablated=loader_ablated, copy_ablated=copy_ablated)
        parts[part] = parts.get(part, 0.0) + seconds
    return parts


def _share(part: str, value_s: float, windows: Sequence[Mapping[str, float]]) -> Share:
    interval = median_of_block_means([window.get(part, 0.0) for window in windows])
    return Share(value_s, min(value_s, max(0.0, interval.low)), max(value_s, interval.high), observed=True)


def _causes(
    pooled: ObservedWindow, fitted: Mapping[str, float], *, loader_ablated: bool, copy_ablated: bool
) -> tuple[ObservedCause, ...]:
    """Each cause that is not the device's own work, with the place that holds most of it."""
    totals = pooled.by_cause()
    causes = []
    for cause, s in fitted.items():
        part = part_of(cause, loader_ablated=loader_ablated, copy_ablated=copy_ablated)
        if part == "compute" or s <= 0:
            continue
        places = {where: seconds for (name, where), seconds in pooled.seconds.items() if name == cause and where}
        longest = max(places, key=lambda where: places[where], default=None)
        if longest is not None and places[longest] < 0.25 * totals[cause]:
            longest = None
        calls = sum(count for (name, _), count in pooled.calls.items() if name == cause)
        causes.append(ObservedCause(cause=cause, part=part, s=s, calls=calls, where=longest))
    return tuple(sorted(causes, key=lambda one: -one.s))
