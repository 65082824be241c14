"""Settings worth a trial, each with the gain that the model predicts and its interval.

A gain is the part of the step that goes away. It is the model's step with the setting over the model's step without, so
a stall that the model does not explain is credited to nobody. The interval holds the gain with the loader's work and
the rest of the step at their bounds.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from stallwise.errors import InputError
from stallwise.model.calibrate import own_links
from stallwise.model.overlap import Overlap
from stallwise.model.whatif import Change, what_if
from stallwise.record.setup import own_fabric
from stallwise.tune.facts import Facts
from stallwise.tune.knobs import Knobs
from stallwise.tune.queueing import taken_every_s

WORTH_TRYING = 0.05
"""A predicted gain below this is not tried."""
ENOUGH = 1.02
"""Of settings within this factor of the best, the one that needs the fewest workers is taken."""
_MOST_WORKERS = 64
_DEPTHS = (4, 8)
_BUCKETS_MB = (5.0, 10.0, 50.0, 100.0, 200.0)
_CACHED_EPOCH_S = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One setting, or several that belong together."""

    knobs: Knobs
    gain: float
    """Predicted part of the step that goes away."""
    low: float
    high: float
    because: str
    live: bool = False
    """It can be switched while the job runs."""
    epochs: bool = False
    """It shows over whole epochs only, not in steady steps."""


def proposals(facts: Facts) -> tuple[Proposal, ...]:
    """All that are worth a trial, the largest gain first."""
    loader = facts.loader
    found: list[Proposal] = []
    if loader is not None and not loader.iterable and facts.work is not None:
        found += _ahead(facts) if loader.bucket and not loader.looks_ahead else []
        found += _workers(facts)
        found += _depths(facts)
    if loader is not None:
        found += _pinned(facts)
        found += _persistent(facts)
    found += _buckets(facts)
    return tuple(sorted((one for one in found if one.gain >= WORTH_TRYING), key=lambda one: -one.gain))


Model = Callable[[float, float], float]
"""Seconds of a step with the loader's work and the rest of the step that many times as long as measured."""


def gain_of(now: Model, then: Model, facts: Facts) -> tuple[float, float, float]:
    """Gain, lowest and highest."""
    corners = [(work, rest) for work in facts.work_factors for rest in facts.consume_factors]
    gains = [1 - then(*corner) / now(*corner) for corner in corners]
    middle = 1 - then(1.0, 1.0) / now(1.0, 1.0)
    return middle, min(middle, *gains), max(middle, *gains)


def step_model(facts: Facts, workers: int, depth: int | None, *, blocked: float = 1.0) -> Model:
    """The loader with other settings, reads taking `blocked` times as long.

    Blocked time overlaps freely, preparation needs a core each.
    """
    work = facts.work
    assert work is not None  # noqa: S101 - asked only then
    whole_s = work.prepare_s + work.blocked_s
    share = (work.prepare_s + blocked * work.blocked_s) / whole_s if whole_s > 0 else 0.0

    def step_s(work_factor: float, rest_factor: float) -> float:
        times_s = [time_s * share * work_factor for time_s in facts.batches_s]
        consume_s = facts.consume_s * rest_factor
        every_s = facts.fetches * taken_every_s(times_s, consume_s / facts.fetches, workers, depth or 2)
        if workers == 0:
            return every_s
        return max(every_s, _cores_s(facts, workers, work_factor * work.prepare_s, consume_s))

    return step_s


def _cores_s(facts: Facts, workers: int, prepare_s: float, consume_s: float) -> float:
    """What the cores allow: each prepares for one worker at a time. On a CPU training needs its threads too."""
    prepared_s = prepare_s / min(workers, facts.cores)
    if facts.on_gpu or facts.loader is None:
        return prepared_s
    threads = min(facts.loader.threads, facts.cores)
    return max(prepared_s, (prepare_s + threads * consume_s) / facts.cores)


def now_model(facts: Facts) -> Model:
    """The loader as it is."""
    assert facts.loader is not None  # noqa: S101 - asked only then
    return step_model(facts, facts.loader.num_workers, facts.loader.prefetch_factor)


def best_workers(facts: Facts, *, blocked: float = 1.0) -> int:
    """The fewest workers within 2 % of the best number there is."""
    depth = facts.loader.prefetch_factor if facts.loader else None
    most = min(_MOST_WORKERS, max(2 * facts.cores, 8))
    steps_s = {n: step_model(facts, n, depth, blocked=blocked)(1.0, 1.0) for n in range(1, most + 1)}
    best_s = min(steps_s.values())
    return next(n for n, step_s in steps_s.items() if step_s <= ENOUGH * best_s)


def _workers(facts: Facts) -> list[Proposal]:
    """The number the model finds best, and its neighbours: it may be off by as much."""
    loader = facts.loader
    assert loader is not None  # noqa: S101 - asked only then
    best = best_workers(facts)
    most = max(facts.cores, best)
    counts = sorted({best, max(1, round(best / 1.5)), min(most, round(best * 1.5))} - {loader.num_workers})
    found = []
    for count in counts:
        gain, low, high = gain_of(now_model(facts), step_model(facts, count, loader.prefetch_factor), facts)
        because = f"batches are prepared by {count} instead of {loader.num_workers or 'no'} workers"
        found.append(
            Proposal(
                knobs=Knobs(num_workers=count), gain=gain, low=low, high=high, because=because, live=loader.switchable
            )
        )
    return found


def _depths(facts: Facts) -> list[Proposal]:
    """A deeper queue, where batches are uneven and the loader keeps up on average."""
    loader = facts.loader
    assert loader is not None  # noqa: S101 - asked only then
    if not loader.num_workers:
        return []
    found = []
    for depth in _DEPTHS:
        if depth <= (loader.prefetch_factor or 2):
            continue
        gain, low, high = gain_of(now_model(facts), step_model(facts, loader.num_workers, depth), facts)
        because = "batches take unevenly long; a deeper queue evens that out"
        found.append(
            Proposal(
                knobs=Knobs(prefetch_factor=depth), gain=gain, low=low, high=high, because=because,
                live=loader.switchable,
            )
        )  # fmt: skip
    return found[:1]


def _ahead(facts: Facts) -> list[Proposal]:
    """Look-ahead, and a cache where epochs are short: both take the waiting for the store out of a batch.

    Whether the store can deliver faster than it does now is not known before the trial, so the interval begins at none.
    """
    loader, work = facts.loader, facts.work
    assert loader is not None  # noqa: S101 - asked only then
    assert work is not None  # noqa: S101 - likewise
    if not work.blocked_s:
        return []
    workers = max(loader.num_workers, best_workers(facts, blocked=0.0))
    more = Knobs(num_workers=workers) if workers != loader.num_workers else Knobs()
    then = step_model(facts, workers, loader.prefetch_factor, blocked=0.0)
    gain, _, high = gain_of(now_model(facts), then, facts)
    because = "the order of the samples is known ahead, so what comes next is fetched while the job trains"
    knobs, live = more.with_(Knobs(lookahead=True)), loader.switchable
    found = [Proposal(knobs=knobs, gain=gain, low=0.0, high=high, because=because, live=live)]
    epoch_s = (loader.length or 0) / facts.fetches * facts.step_s
    if loader.bucket_bytes and not loader.cached and 0 < epoch_s <= _CACHED_EPOCH_S:
        because = "from the second epoch on, samples come from this node's disk instead of the store"
        knobs = more.with_(Knobs(lookahead=True, cache_bytes=round(1.2 * loader.bucket_bytes) + 2**20))
        # Not credited with more than look-ahead alone: what is hidden already cannot be hidden again.
        found.append(Proposal(knobs=knobs, gain=gain - 1e-9, low=0.0, high=high, because=because))
    return found


def _pinned(facts: Facts) -> list[Proposal]:
    """Pageable copies go through a pinned buffer of the driver's, at about half the speed; how much of that shows is
    not known, so half the stall is predicted, and none to all of it is the interval."""
    loader, copy = facts.loader, facts.profile.split.copy
    assert loader is not None  # noqa: S101 - asked only then
    if not facts.on_gpu or loader.pin_memory or copy is None:
        return []
    part = copy.s / facts.step_s
    because = "batches are copied to the GPU from pinned memory, beside the compute where the copy is non_blocking"
    knobs = Knobs(pin_memory=True)
    return [Proposal(knobs=knobs, gain=part / 2, low=0.0, high=part, because=because, live=loader.switchable)]


def _persistent(facts: Facts) -> list[Proposal]:
    """Workers that outlive the epoch: what starting an epoch costs, over an epoch."""
    loader = facts.loader
    assert loader is not None  # noqa: S101 - asked only then
    start_s, length = facts.epoch_start_s, loader.length
    if not loader.num_workers or loader.persistent_workers or loader.changes or not start_s or not length:
        return []
    epoch_s = length / facts.fetches * facts.step_s + start_s
    # The first batch still has to be prepared; only the starting goes away.
    first_s = min(start_s, max(facts.batches_s, default=0.0))
    gain = (start_s - first_s) / epoch_s
    because = "workers are not started anew for every epoch"
    return [
        Proposal(
            knobs=Knobs(persistent_workers=True), gain=gain, low=0.0, high=start_s / epoch_s, because=because,
            epochs=True,
        )
    ]  # fmt: skip


def _buckets(facts: Facts) -> list[Proposal]:
    """DDP's buckets at the size with the shortest predicted step."""
    job = facts.job
    if job is None or not job.gpus or job.gpus == 1 or job.overlap.scheme != "ddp" or job.exchange is None:
        return []
    try:
        fabric = own_fabric(job, own_links(job))
        now = what_if(job, Change(), fabric, job.gpus)
        answers = {size: what_if(job, _bucket(job.overlap, size), fabric, job.gpus) for size in _BUCKETS_MB}
    except InputError:
        return []
    size = min(answers, key=lambda one: answers[one].step_s)
    then = answers[size]
    gain = 1 - then.step_s / now.step_s
    low, high = 1 - then.high_s / now.high_s, 1 - then.low_s / now.low_s
    because = f"gradients travel in pieces of {size:g} MiB instead of {job.overlap.bucket_bytes / 2**20:g} MiB"
    knobs = Knobs(bucket_cap_mb=size)
    return [Proposal(knobs=knobs, gain=gain, low=min(low, gain), high=max(high, gain), because=because)]


def _bucket(overlap: Overlap, size_mb: float) -> Change:
    size_bytes = round(size_mb * 2**20)
    return Change(overlap=replace(overlap, bucket_bytes=size_bytes, first_bucket_bytes=size_bytes))
