"""A measured job as the model takes it: one GPU's trace, its exchange, its loader, and the links it was measured on.

**Own links.** The rate with which the model's exchange is as long as the measured one. Where a run had several ranks,
its profile says how long compute waited for the exchange. That is one number per tier, so one number per link can be
found: the time per byte, start-up times being part of it unless they are given. A step never falls when a byte takes
longer, so bisection finds it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange.collectives import Algorithm
from stallwise.model.exchange.fabric import Fabric, KnownLink, algorithms_of, link_of_rate
from stallwise.model.exchange.overlap import Overlap, plan
from stallwise.model.statistics.stalls import Share
from stallwise.model.step.iteration import iteration_graph
from stallwise.model.step.paths import steady_state
from stallwise.model.step.prediction import Factors, alone
from stallwise.sentences import Sentence
from stallwise.units import show_rate, show_seconds
from stallwise.workload.layers import LayerTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """A measured job as the model takes it. Times in seconds, of one GPU."""

    name: str
    trace: LayerTrace
    """One forward and backward pass on one GPU, without reading."""
    overlap: Overlap
    gpus: int | None
    """None: the trace holds its own exchange times, and not among how many GPUs they were measured."""
    gpus_per_node: int = 1
    step: Share | None = None
    """As measured; None where only layers are known."""
    samples: float | None = None
    """Number per GPU and step."""
    compute_factors: Factors | None = None
    """Bounds of compute, as factors; None: not known."""
    inside: Share | None = None
    """Exchange among the GPUs of a node that compute did not hide."""
    between: Share | None = None
    """The same between nodes."""
    backend: str | None = None
    element_bytes: float | None = None
    """Bytes of one element of a gradient as it is exchanged; 4 is fp32."""
    work: LoaderWork | None = None
    """Work of one GPU's loader for a step; None where no loader was recorded."""
    cold_blocked_s: float | None = None
    """Time blocked when every file comes from storage, where that was measured."""
    data_factors: Factors = (1.0, 1.0)
    cores_per_node: int | None = None
    assumptions: tuple[Sentence, ...] = ()

    @property
    def exchange(self) -> Share | None:
        """All exchange that compute did not hide."""
        shares = [share for share in (self.inside, self.between) if share is not None]
        if not shares:
            return None
        return Share(sum(s.s for s in shares), sum(s.low_s for s in shares), sum(s.high_s for s in shares))

    @property
    def passes_s(self) -> float:
        """Forward and backward of all passes of a step, in seconds."""
        return self.overlap.accumulate * (self.trace.forward_s + self.trace.backward_s)


_CLOSE = 1e-4
_DOUBLINGS = 60
_FAR = 1000.0  # ratio of a bound to the value where only the bound is known


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLinks:
    """The links a run was measured on; `caveat` says why they hold for the run's own set-up only."""

    inside: KnownLink | None = None
    between: KnownLink | None = None
    caveat: Sentence | None = None
    merged: bool = False
    """One link stands for both, because exchange inside and between nodes was not measured separately."""
    notes: tuple[Sentence, ...] = ()


def own_links(job: MeasuredJob, latency_s: float = 0.0) -> OwnLinks:
    """Fit the links with which the model's exchange equals the measured one; none for a run of one process."""
    if job.gpus is None or job.gpus == 1 or job.exchange is None:
        return OwnLinks()
    if not job.trace.gradient_bytes:
        raise InputError(f"No gradient is exchanged in {job.trace.source}, so its links cannot be determined.")
    inside_ranks = min(job.gpus, job.gpus_per_node)
    if job.gpus <= job.gpus_per_node:
        fit = _calibrated(job, job.exchange, job.gpus, latency_s)
        return OwnLinks(inside=fit.link, caveat=fit.caveat, notes=fit.notes)
    all_ranks = _calibrated(job, job.exchange, job.gpus, latency_s)
    if inside_ranks == 1:
        return OwnLinks(between=all_ranks.link, caveat=all_ranks.caveat, notes=all_ranks.notes)
    if job.inside is None:
        note = Sentence(
            "links.not-told-apart",
            "Exchange inside and between nodes was not told apart; one link, the slower, stands for both.",
        )
        return OwnLinks(
            inside=all_ranks.link,
            between=all_ranks.link,
            caveat=all_ranks.caveat,
            merged=True,
            notes=(*all_ranks.notes, note),
        )
    inside = _calibrated(job, job.inside, inside_ranks, latency_s)
    return OwnLinks(
        inside=inside.link,
        between=all_ranks.link,
        caveat=all_ranks.caveat or inside.caveat,
        notes=(*inside.notes, *all_ranks.notes),
    )


def s_per_byte_for(stall_of: Callable[[float], float], stall_s: float, start: float) -> float:
    """Find the time per byte at which `stall_of` it is `stall_s`, to one part in ten thousand; 0 where none is needed.

    `start` is a first guess, from which on the upper end is doubled.
    """
    if stall_s <= stall_of(0.0):
        return 0.0
    low, high = 0.0, start
    for _ in range(_DOUBLINGS):
        if stall_of(high) >= stall_s:
            break
        low, high = high, 2 * high
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stall_of(middle) < stall_s else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calibrated:
    link: KnownLink
    caveat: Sentence | None = None
    notes: tuple[Sentence, ...] = ()


def _calibrated(job: MeasuredJob, stall: Share, ranks: int, latency_s: float) -> _Calibrated:
    stall_of = _exposed(job, ranks, latency_s)
    bounded = math.isfinite(stall.high_s)
    start = (stall.high_s if bounded else stall.s) / job.trace.gradient_bytes

    def find(stall_s: float) -> float:
        return s_per_byte_for(stall_of, stall_s, start)

    source = f"to the exchange measured on {ranks} ranks"
    if not bounded:
        caveat = Sentence(
            "links.one-block",
            f"The exchange among the run's {ranks} ranks was measured in one block, whose spread is not known.",
            ranks=ranks,
        )
        return _Calibrated(link=_link(find(stall.s), latency_s, source, 1.0, 1.0), caveat=caveat)
    middle, high = find(stall.s), find(stall.high_s)
    if not stall.distinguishable:
        caveat = Sentence(
            "links.below-noise",
            f"The exchange among the run's {ranks} ranks is not distinguishable from zero (at most "
            f"{show_seconds(stall.high_s)}), so of their link only a lower bound is known: {_rate(high)}.",
            ranks=ranks,
            high_s=stall.high_s,
        )
        middle = middle or high / _FAR
        return _Calibrated(link=_link(middle, latency_s, source, 0.0, high / middle if middle else 1.0), caveat=caveat)
    starts = f"start-up times are taken as {show_seconds(latency_s)}" if latency_s else "start-up times are part of it"
    note = Sentence(
        "links.fitted",
        f"The rate of the link among {ranks} ranks, {_rate(middle)}, is the one with which the model's exchange is as "
        f"long as the measured one; {starts}.",
        ranks=ranks,
    )
    notes = (note, WAITING) if _waits(middle, job, ranks) else (note,)
    low = find(stall.low_s)
    factors = (low / middle, high / middle) if middle else (1.0, 1.0)
    return _Calibrated(link=_link(middle, latency_s, source, *factors), notes=notes)


_SLOWEST_INSIDE = 100e6  # bytes/s: a tenth of one PCIe 3 lane, or of loopback between two processes
WAITING = Sentence(
    "links.implausible",
    "No link inside a machine is that slow: most of this exchange is waiting, for a core or for the other ranks, so "
    "that fewer bytes or a faster link may not shorten it as predicted.",
)
"""Said of an exchange inside a machine whose fitted rate cannot be that of a link."""


def _waits(s_per_byte: float, job: MeasuredJob, ranks: int) -> bool:
    """Whether a rate fitted among the ranks of one machine is that of waiting rather than that of a link."""
    return ranks <= job.gpus_per_node and s_per_byte > 1 / _SLOWEST_INSIDE


def _rate(s_per_byte: float) -> str:
    if s_per_byte <= 0:
        return "any"
    return show_rate(1 / s_per_byte)


def _exposed(job: MeasuredJob, ranks: int, latency_s: float) -> Callable[[float], float]:
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
