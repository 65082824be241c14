"""Proposals: settings worth a trial, each with the gain that the model predicts and its interval.

A gain is the fraction of the step that is saved. It compares the model's step with the setting to the model's step
without, so a stall that the model does not explain is credited to no setting. The interval holds the gain with the
loader's work and the rest of the step at their bounds.

**Buckets of DistributedDataParallel.** A run gives one number for how long compute waited for the exchange, and it has
two readings: every byte takes time, or every message does. Larger buckets help only under the second, smaller ones
(more overlap) only under the first. The trial shows which holds; before it, the middle between both is predicted, and
they are the interval.
"""

from dataclasses import dataclass, replace

from stallwise.analysis.job import model_of_job
from stallwise.analysis.loading import best_workers, gain_of, step_model
from stallwise.analysis.prediction import step_s
from stallwise.analysis.target import Target
from stallwise.errors import InputError
from stallwise.model.data.datapath import LoaderWork
from stallwise.model.exchange import merge
from stallwise.model.exchange.overlap import Overlap
from stallwise.model.step.job import MeasuredJob, own_links
from stallwise.sentences import Sentence
from stallwise.tune._facts import JobFacts
from stallwise.tune.knobs import NONE, Knobs, LoaderFacts

_SIZES_MB = (5.0, 10.0, 50.0, 100.0, 200.0)
# Of the waiting, under the second reading; the rest are bytes, which cannot be free.
_START_UP = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSize:
    """A bucket size, and the predicted fraction of the step that it saves."""

    size_mb: float
    now_mb: float
    gain: float
    low: float
    high: float


def bucket_sizes(facts: JobFacts) -> list[BucketSize]:
    """Return the best bucket size of a DDP job that waits for its exchange; otherwise an empty list."""
    job = facts.job
    if job is None or not job.gpus or job.gpus == 1 or job.overlap.scheme != "ddp" or job.exchange is None:
        return []
    try:
        readings = [_gains(job, latency_s) for latency_s in (0.0, _latency_s(job))]
    except InputError:
        return []
    gains = {size: sorted(reading[size] for reading in readings) for size in _SIZES_MB}
    # Of sizes predicted alike the smallest: it holds the least memory.
    size = max(_SIZES_MB, key=lambda one: (round(sum(gains[one]) / 2, 2), -one))
    low, high = gains[size]
    now_mb = job.overlap.bucket_bytes / merge.MIB
    return [BucketSize(size_mb=size, now_mb=now_mb, gain=(low + high) / 2, low=low, high=high)]


def _gains(job: MeasuredJob, latency_s: float) -> dict[float, float]:
    """Gain by bucket size, where a message has the start-up time `latency_s`."""
    model, own = model_of_job(job), own_links(job, latency_s)
    now_s = step_s(model, Target(), own)
    return {size: 1 - step_s(model, Target(overlap=_of_size(job.overlap, size)), own) / now_s for size in _SIZES_MB}


def _latency_s(job: MeasuredJob) -> float:
    """Start-up time per hop if it were nearly all of the exchange: a ring of n ranks has 2(n - 1) hops per message."""
    assert job.exchange is not None  # noqa: S101 - only called then
    gradients = merge.gradients_of(job.trace)
    first, size = job.overlap.first_bucket_bytes, job.overlap.bucket_bytes
    messages = len(merge.ddp_buckets(gradients, first_bytes=first, bucket_bytes=size))
    return _START_UP * job.exchange.s / max(1, messages * 2 * ((job.gpus or 2) - 1))


def _of_size(overlap: Overlap, size_mb: float) -> Overlap:
    size_bytes = round(size_mb * merge.MIB)
    return replace(overlap, bucket_bytes=size_bytes, first_bucket_bytes=size_bytes)


WORTH_TRYING = 0.05
"""A predicted gain below this is not tried."""
FARTHER = 1.5
"""Ratio of neighbouring numbers of workers that are tried."""
_DEPTHS = (4, 8)
_CACHED_EPOCH_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One setting, or several that belong together."""

    knobs: Knobs
    gain: float
    """Predicted fraction of the step that is saved."""
    low: float
    high: float
    because: Sentence
    live: bool = False
    """Whether it can be switched while the job runs."""
    alone: float | None = None
    """The gain over the script's own settings, where `gain` is that on top of other settings of the loader."""


def rebased(one: Proposal, before: float) -> Proposal:
    """Return the proposal on top of settings that saved the fraction `before` of the step.

    Settings of the loader are models of the whole step: what both hide counts once. The others save the same seconds of
    a step that is shorter now.
    """
    of_loader = (one.knobs.num_workers, one.knobs.prefetch_factor, one.knobs.lookahead) != (None, None, None)

    def moved(gain: float) -> float:
        return 1 - (1 - gain) / (1 - before) if of_loader else min(1.0, gain / (1 - before))

    alone = one.gain if of_loader else None
    return replace(one, gain=moved(one.gain), low=moved(one.low), high=moved(one.high), alone=alone)


def proposals(facts: JobFacts) -> tuple[Proposal, ...]:
    """Return all proposals worth a trial, the largest gain first."""
    loader = facts.loader
    candidates: list[Proposal] = []
    if loader is not None and not loader.iterable and facts.work is not None:
        candidates += _ahead(facts, loader, facts.work) if loader.bucket and not loader.looks_ahead else []
        candidates += _workers(facts, loader)
        candidates += _depths(facts, loader)
        candidates += persistent(facts)
    if loader is not None:
        candidates += _pinned(facts, loader)
    candidates += [_of_buckets(one) for one in bucket_sizes(facts)]
    candidates += _fused(facts)
    return tuple(sorted((one for one in candidates if one.gain >= WORTH_TRYING), key=lambda one: -one.gain))


# ---- the loader ----------------------------------------------------------------------------------------------------


def _with(facts: JobFacts, knobs: Knobs, because: Sentence, *, on: Knobs = NONE, blocked: float = 1.0) -> Proposal:
    """Return settings of the loader with the gain that the model predicts on top of those in `on`."""
    now, then = facts.setting_of(on), facts.setting_of(on.with_(knobs))
    gain, low, high = gain_of(step_model(facts, now), step_model(facts, then, blocked=blocked), facts)
    live = facts.loader is not None and facts.loader.switchable and knobs.persistent_workers is None
    return Proposal(knobs=knobs, gain=gain, low=low, high=high, because=because, live=live)


def with_workers(facts: JobFacts, count: int) -> Proposal:
    """Propose `count` loader workers."""
    now = facts.loader.num_workers if facts.loader else 0
    because = Sentence("workers.more", f"batches are prepared by {count} instead of {now or 'no'} workers")
    proposal = _with(facts, Knobs(num_workers=count), because)
    if facts.work is None or not facts.work.blocked_s or count <= max(1, now):
        return proposal
    # Storage may be saturated: then each reader waits longer in proportion to their number.
    full = _with(facts, Knobs(num_workers=count), because, blocked=count / max(1, now))
    return replace(proposal, low=min(proposal.low, full.low))


def _workers(facts: JobFacts, loader: LoaderFacts) -> list[Proposal]:
    """The number of workers that the model finds best, and its neighbours, because the model may be off."""
    best = best_workers(facts)
    most = max(facts.cores, best)
    counts = {best, max(1, round(best / FARTHER)), min(most, round(best * FARTHER))}
    return [with_workers(facts, count) for count in sorted(counts - {loader.num_workers})]


def _depths(facts: JobFacts, loader: LoaderFacts) -> list[Proposal]:
    """A deeper queue, where batches are uneven."""
    now = loader.prefetch_factor or 2
    depth = next((depth for depth in _DEPTHS if depth > now), None)
    if not loader.num_workers or depth is None:
        return []
    because = Sentence("prefetch.deeper", "batches take unevenly long; a deeper queue evens that out")
    return [_with(facts, Knobs(prefetch_factor=depth), because)]


def _ahead(facts: JobFacts, loader: LoaderFacts, work: LoaderWork) -> list[Proposal]:
    """Look-ahead, and a cache where epochs are short: both take the waiting for the store out of a batch.

    Whether the store can deliver faster than it does now is not known before the trial, so the interval begins at none.
    """
    if not work.blocked_s:
        return []
    workers = max(loader.num_workers, best_workers(facts, blocked=0.0))
    more = Knobs(num_workers=workers) if workers != loader.num_workers else Knobs()
    because = Sentence(
        "order.known-ahead",
        "the order of the samples is known ahead, so what comes next is fetched while the job trains",
    )
    ahead = replace(_with(facts, more.with_(Knobs(lookahead=True)), because, blocked=0.0), low=0.0)
    epoch_s = (facts.epoch_steps or 0.0) * facts.step_s
    if not loader.bucket_bytes or loader.cached or not 0 < epoch_s <= _CACHED_EPOCH_S:
        return [ahead]
    because = Sentence(
        "cache.on-disk", "from the second epoch on, samples come from this node's disk instead of the store"
    )
    size_bytes = round(1.2 * loader.bucket_bytes) + 2**20
    # Not credited with more than look-ahead alone: what is hidden already cannot be hidden again.
    knobs = ahead.knobs.with_(Knobs(cache_bytes=size_bytes))
    return [ahead, replace(ahead, knobs=knobs, gain=ahead.gain - 1e-9, because=because, live=False)]


def _pinned(facts: JobFacts, loader: LoaderFacts) -> list[Proposal]:
    """Batches copied from pinned memory need not pass through the driver's buffer; a thread of the loader does that
    beside the training instead.

    That thread moves a batch about as fast as the driver did, so the step is max(step - copy, copy): where the copy is
    most of the step, pinning only moves it. How much of the copy a script lets overlap is not known before the trial:
    the interval is none to all of it.
    """
    copy = facts.profile.split.copy
    if not facts.on_gpu or loader.pin_memory or copy is None:
        return []
    part = copy.s / facts.step_s
    because = Sentence(
        "memory.pinned",
        "batches are copied to the GPU from pinned memory, beside the compute where the copy is non_blocking",
    )
    gain = min(part, 1 - part)
    return [
        Proposal(knobs=Knobs(pin_memory=True), gain=gain, low=0.0, high=part, because=because, live=loader.switchable)
    ]


def persistent(facts: JobFacts, on: Knobs = NONE) -> list[Proposal]:
    """Workers that outlive the epoch, where that changes no sample.

    A loader whose workers stay draws no seed for the second epoch, so a shuffle from the same generator comes out
    another one; and a dataset that is told the epoch has told it to workers that are not asked again.
    """
    loader = facts.loader
    if loader is None or loader.persistent_workers or not (on.num_workers or loader.num_workers):
        return []
    if loader.iterable or facts.work is None:
        return []
    if not loader.fixed_order or loader.changes:
        return []
    because = Sentence("workers.kept", "workers are not started anew for every epoch")
    return [_with(facts, Knobs(persistent_workers=True), because, on=on)]


# ---- the computation -----------------------------------------------------------------------------------------------

# Of the host's time in an optimizer step. What one kernel for all parameters leaves of it is not known before a trial.
_SAVED_BY_FUSING = 0.5
_UNKNOWN_GAIN = (0.1, -0.3, 0.5)
"""Predicted gain of compiling, with its bounds, where the job's kernels are not known."""


def _fused(facts: JobFacts) -> list[Proposal]:
    """One kernel for the update of all parameters: fewer launches on a GPU, fewer passes over memory on processors.

    On a GPU that only shortens a step in which the device waits for the host.
    """
    optimizer, host = facts.optimizer, facts.profile.split.host
    if optimizer is None or not optimizer.is_fusable:
        return []
    most_s = optimizer.step_s if not facts.on_gpu else min(optimizer.step_s, host.s if host is not None else 0.0)
    most = min(1.0, most_s / facts.step_s)
    because = Sentence(
        "optimizer.fused", f"{optimizer.kind} updates all parameters at once instead of one after the other"
    )
    return [
        Proposal(knobs=Knobs(fused_optimizer=True), gain=_SAVED_BY_FUSING * most, low=0.0, high=most, because=because)
    ]


def compiled(facts: JobFacts) -> Proposal:
    """The model compiled, with what its kernels say that saves."""
    remedy = facts.profile.verdict.next_step
    gain, low, high = (
        (float(remedy.facts[name] or 0.0) for name in ("gain", "low", "high"))
        if remedy.code == "remedy.compile"
        else _UNKNOWN_GAIN
    )
    because = Sentence("model.compiled", "the model is compiled, which fuses kernels and launches fewer")
    return Proposal(knobs=Knobs(compile=True), gain=gain, low=low, high=high, because=because)


# ---- the exchange --------------------------------------------------------------------------------------------------


def _of_buckets(one: BucketSize) -> Proposal:
    because = Sentence(
        "buckets.other-size", f"gradients travel in pieces of {one.size_mb:g} MiB instead of {one.now_mb:g} MiB"
    )
    return Proposal(knobs=Knobs(bucket_cap_mb=one.size_mb), gain=one.gain, low=one.low, high=one.high, because=because)
