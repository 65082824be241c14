"""The links of a run from the run itself: the rate with which the model's exchange is as long as the measured one.

Where a run had several ranks, its profile says how long compute waited for the exchange. That is one number per tier,
so one number per link can be found: the time per byte, start-up times being part of it unless they are given. A step
never falls when a byte takes longer, so bisection finds it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.collectives import Algorithm
from stallwise.model.fabric import Fabric, KnownLink, algorithms_of, link_of_rate
from stallwise.model.iteration import iteration_graph
from stallwise.model.overlap import plan
from stallwise.model.paths import steady_state
from stallwise.model.stalls import Share
from stallwise.model.step import alone
from stallwise.model.whatif import Job
from stallwise.units import GB, MB

_CLOSE = 1e-4
_DOUBLINGS = 60
_FAR = 1000.0  # a bound so many times the value stands for: any value below it


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLinks:
    """The links a run was measured on; `vague` says why they are good for the run's own set-up only."""

    inside: KnownLink | None = None
    between: KnownLink | None = None
    vague: str | None = None
    merged: bool = False
    """One link stands for both, because exchange inside and between nodes was not told apart."""
    said: tuple[str, ...] = ()


def own_links(job: Job, latency_s: float = 0.0) -> OwnLinks:
    """Links with which the model's exchange equals the measured one; none for a run of one process."""
    if job.gpus is None or job.gpus == 1 or job.exchange is None:
        return OwnLinks()
    if not job.trace.gradient_bytes:
        raise InputError(f"No gradient is exchanged in {job.trace.source}, so its links cannot be told.")
    inside_ranks = min(job.gpus, job.gpus_per_node)
    if job.gpus <= job.gpus_per_node:
        found = _calibrated(job, job.exchange, job.gpus, latency_s)
        return OwnLinks(inside=found.link, vague=found.vague, said=found.said)
    all_ranks = _calibrated(job, job.exchange, job.gpus, latency_s)
    if inside_ranks == 1:
        return OwnLinks(between=all_ranks.link, vague=all_ranks.vague, said=all_ranks.said)
    if job.inside is None:
        said = "Exchange inside and between nodes was not told apart; one link, the slower, stands for both."
        return OwnLinks(
            inside=all_ranks.link,
            between=all_ranks.link,
            vague=all_ranks.vague,
            merged=True,
            said=(*all_ranks.said, said),
        )
    inside = _calibrated(job, job.inside, inside_ranks, latency_s)
    return OwnLinks(
        inside=inside.link,
        between=all_ranks.link,
        vague=all_ranks.vague or inside.vague,
        said=(*inside.said, *all_ranks.said),
    )


def s_per_byte_for(stall_of: Callable[[float], float], wanted_s: float, start: float) -> float:
    """The time per byte at which `stall_of` it is `wanted_s`, to one part in ten thousand; 0 where none is needed.

    `start` is a first guess, from which on the upper end is doubled.
    """
    if wanted_s <= stall_of(0.0):
        return 0.0
    low, high = 0.0, start
    for _ in range(_DOUBLINGS):
        if stall_of(high) >= wanted_s:
            break
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stall_of(middle) < wanted_s else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calibrated:
    link: KnownLink
    vague: str | None = None
    said: tuple[str, ...] = ()


def _calibrated(job: Job, stall: Share, ranks: int, latency_s: float) -> _Calibrated:
    stall_of = _exposed(job, ranks, latency_s)
    bounded = math.isfinite(stall.high_s)
    start = (stall.high_s if bounded else stall.s) / job.trace.gradient_bytes

    def find(wanted_s: float) -> float:
        return s_per_byte_for(stall_of, wanted_s, start)

    source = f"to the exchange measured on {ranks} ranks"
    if not bounded:
        vague = f"The exchange among the run's {ranks} ranks was measured in one block, whose spread is not known."
        return _Calibrated(link=_link(find(stall.s), latency_s, source, 1.0, 1.0), vague=vague)
    middle, high = find(stall.s), find(stall.high_s)
    if not stall.distinguishable:
        vague = (
            f"The exchange among the run's {ranks} ranks is not distinguishable from zero (at most "
            f"{stall.high_s * 1e3:.3g} ms), so of their link only a lower bound is known: {_rate(high)}."
        )
        middle = middle or high / _FAR
        return _Calibrated(link=_link(middle, latency_s, source, 0.0, high / middle if middle else 1.0), vague=vague)
    starts = f"start-up times are taken as {latency_s * 1e6:.3g} µs" if latency_s else "start-up times are part of it"
    said = (
        f"The rate of the link among {ranks} ranks, {_rate(middle)}, is the one with which the model's exchange is as "
        f"long as the measured one; {starts}."
    )
    low = find(stall.low_s)
    factors = (low / middle, high / middle) if middle else (1.0, 1.0)
    return _Calibrated(link=_link(middle, latency_s, source, *factors), said=(said,))


def _rate(s_per_byte: float) -> str:
    if s_per_byte <= 0:
        return "any"
    rate = 1 / s_per_byte
    return f"{rate / GB:.3g} GB/s" if rate >= GB else f"{rate / MB:.3g} MB/s"


def _exposed(job: Job, ranks: int, latency_s: float) -> Callable[[float], float]:
    """Exchange that compute does not hide, by the time per byte; data and copies do not take part."""
    trace = replace(job.trace, read_s=0.0, copy_s=0.0)
    algorithms = algorithms_of(job.backend)
    compute_s = steady_state(iteration_graph(trace, plan(trace, alone, job.overlap))).period_s

    def stall(s_per_byte: float) -> float:
        prices = _fabric(_link(s_per_byte, latency_s, "", 1.0, 1.0), ranks, algorithms).prices(ranks)
        return steady_state(iteration_graph(trace, plan(trace, prices, job.overlap))).period_s - compute_s

    return stall


def _fabric(link: KnownLink, ranks: int, algorithms: tuple[Algorithm, ...]) -> Fabric:
    return Fabric(gpus_per_node=ranks, inside=link, algorithms=algorithms)


def _link(s_per_byte: float, latency_s: float, source: str, low: float, high: float) -> KnownLink:
    rate = 1 / s_per_byte if s_per_byte > 0 else float("inf")
    return link_of_rate(rate, latency_s, "fitted", source, low=low, high=high)
