"""From the samples of all ranks to a link's points and lines, and back from a machine record to costs."""

import math
from collections.abc import Mapping, Sequence

from stallwise.hardware.machine import FitRecord, LineRecord, LinkRecord, PointRecord, Scope
from stallwise.model.collectives import AlphaBeta, Segments
from stallwise.model.intervals import median_of_block_means
from stallwise.model.linkfit import Fit, fit_segments

Samples = dict[int, list[float]]
"""Seconds of one all-reduce by size in bytes, one per round."""


def scopes(node_of: Sequence[int]) -> dict[Scope, list[list[int]]]:
    """The groups of ranks to measure, given the node of each rank; the groups of a scope run at the same time."""
    nodes = [[rank for rank, node in enumerate(node_of) if node == number] for number in sorted(set(node_of))]
    several = [ranks for ranks in nodes if len(ranks) > 1]
    if len(nodes) == 1:
        return {"inside": nodes}
    if not several:
        return {"between": [sorted(ranks[0] for ranks in nodes)]}
    return {
        "inside": several,
        "between": [sorted(ranks[0] for ranks in nodes)],
        "all": [list(range(len(node_of)))],
    }


def link_record(members: Sequence[Samples], *, scope: Scope, ranks: int, nodes: int, backend: str) -> LinkRecord:
    """Points and fit of one link; a sample took as long as on its slowest rank."""
    slowest = {size: [max(times) for times in zip(*(m[size] for m in members), strict=True)] for size in members[0]}
    points = tuple(_point(size, times) for size, times in sorted(slowest.items()))
    fit = fit_segments([(point.size_bytes, point.time_s) for point in points], [_error(point) for point in points])
    return LinkRecord(scope=scope, ranks=ranks, nodes=nodes, backend=backend, points=points, fit=_fit_record(fit))


def _point(size_bytes: int, times_s: Sequence[float]) -> PointRecord:
    found = median_of_block_means(times_s)
    return PointRecord(
        size_bytes=size_bytes,
        time_s=found.value,
        low_s=found.low if math.isfinite(found.low) else None,
        high_s=found.high if math.isfinite(found.high) else None,
        repeats=len(times_s),
    )


def _error(point: PointRecord) -> float:
    """Relative standard error from the width of the interval; without one, as vague as a point can be."""
    if point.low_s is None or point.high_s is None:
        return 1.0
    return (point.high_s - point.low_s) / (2 * 1.96 * point.time_s)


def _fit_record(fit: Fit) -> FitRecord:
    cost = fit.cost
    return FitRecord(
        small=LineRecord(latency_s=cost.small.latency_s, s_per_byte=cost.small.s_per_byte),
        large=LineRecord(latency_s=cost.large.latency_s, s_per_byte=cost.large.s_per_byte),
        break_bytes=cost.break_bytes,
        low=min(1.0, fit.low),
        high=max(1.0, fit.high),
    )


def cost_of(link: LinkRecord) -> Segments:
    """What a message on the link as measured costs: `cost_of(link).time_s(bytes)`. Other rank counts: `rescale`."""
    fit = link.fit
    return Segments(
        AlphaBeta(fit.small.latency_s, fit.small.s_per_byte),
        AlphaBeta(fit.large.latency_s, fit.large.s_per_byte),
        fit.break_bytes,
    )


def residuals(link: LinkRecord) -> Mapping[int, float]:
    """Measured over fitted, less 1, by size."""
    cost = cost_of(link)
    return {point.size_bytes: point.time_s / cost.time_s(point.size_bytes) - 1 for point in link.points}
