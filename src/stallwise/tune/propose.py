"""Settings worth a trial, each with the gain that the model predicts and its interval.

A gain is the part of the step that goes away. It is the model's step with the setting over the model's step without, so
a stall that the model does not explain is credited to nobody. The interval holds the gain with the loader's work and
the rest of the step at their bounds.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from stallwise.model.datapath import LoaderWork
from stallwise.tune.buckets import BucketSize, bucket_sizes
from stallwise.tune.facts import Facts
from stallwise.tune.knobs import NONE, Knobs, Loader
from stallwise.tune.queueing import taken_every_s

WORTH_TRYING = 0.05
"""A predicted gain below this is not tried."""
ENOUGH = 1.02
"""Of settings within this factor of the best, the one that needs the fewest workers is taken."""
FARTHER = 1.5
"""A neighbouring number of workers is so many times as large."""
_MOST_WORKERS = 64
_DEPTHS = (4, 8)
_CACHED_EPOCH_S = 12.0
_ITERATIONS = 6


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
    alone: float | None = None
    """The gain over the script's own settings, where `gain` is that on top of other settings of the loader."""


def rebased(one: Proposal, before: float) -> Proposal:
    """The same on top of settings that took `before` off the step.

    Settings of the loader are models of the whole step: what both hide is hidden once. The others save the same
    seconds of a step that is shorter now.
    """
    of_loader = (one.knobs.num_workers, one.knobs.prefetch_factor, one.knobs.lookahead) != (None, None, None)

    def moved(gain: float) -> float:
        return 1 - (1 - gain) / (1 - before) if of_loader else min(1.0, gain / (1 - before))

    alone = one.gain if of_loader else None
    return replace(one, gain=moved(one.gain), low=moved(one.low), high=moved(one.high), alone=alone)


Model = Callable[[float, float], float]
"""Seconds of a step with the loader's work and the rest of the step that many times as long as measured."""


def proposals(facts: Facts) -> tuple[Proposal, ...]:
    """All that are worth a trial, the largest gain first."""
    loader = facts.loader
    found: list[Proposal] = []
    if loader is not None and not loader.iterable and facts.work is not None:
        found += _ahead(facts, loader, facts.work) if loader.bucket and not loader.looks_ahead else []
        found += _workers(facts, loader)
        found += _depths(facts, loader)
        found += persistent(facts)
    if loader is not None:
        found += _pinned(facts, loader)
    found += [_of_buckets(one) for one in bucket_sizes(facts)]
    return tuple(sorted((one for one in found if one.gain >= WORTH_TRYING), key=lambda one: -one.gain))


def gain_of(now: Model, then: Model, facts: Facts) -> tuple[float, float, float]:
    """Gain, lowest and highest."""
    corners = [(work, rest) for work in facts.work_factors for rest in facts.consume_factors]
    gains = [1 - then(*corner) / now(*corner) for corner in corners]
    middle = 1 - then(1.0, 1.0) / now(1.0, 1.0)
    return middle, min(middle, *gains), max(middle, *gains)


# ---- the loader ----------------------------------------------------------------------------------------------------


def step_model(facts: Facts, knobs: Knobs, *, blocked: float = 1.0) -> Model:
    """The job with other settings of its loader, reads taking `blocked` times as long.

    Blocked time overlaps freely, preparation needs a core each. The more cores work at the same time, the slower is
    each (`crowded`): preparation is slower than in the run where more cores are busy than there, and so is training
    that runs on the cores itself. Every epoch begins with starting the workers, unless they stay alive, and with a
    batch that nobody prepared ahead.
    """
    loader, work = facts.loader, facts.work
    assert loader is not None  # noqa: S101 - asked only then
    assert work is not None  # noqa: S101 - likewise
    workers = loader.num_workers if knobs.num_workers is None else knobs.num_workers
    depth = knobs.prefetch_factor or loader.prefetch_factor or 2
    whole_s = work.prepare_s + work.blocked_s
    prepared = work.prepare_s / whole_s if whole_s > 0 else 0.0
    start_s = 0.0 if knobs.persistent_workers or loader.persistent_workers else workers * facts.worker_start_s
    then = crowded(facts, facts.step_s, work.prepare_s) if loader.num_workers else 1.0

    def at(work_factor: float, rest_factor: float, now: float) -> float:
        preparing = prepared * now / then
        share = preparing + blocked * (1 - prepared) if whole_s > 0 else 0.0
        times_s = [time_s * share * work_factor for time_s in facts.batches_s]
        consume_s = facts.consume_s * rest_factor * (1.0 if facts.on_gpu else now)
        steady_s = facts.fetches * taken_every_s(times_s, consume_s / facts.fetches, workers, depth)
        if workers == 0 or not times_s:
            return steady_s
        prepare_s = work_factor * work.prepare_s * now / then
        steady_s = max(steady_s, _cores_s(facts, loader, workers, prepare_s, consume_s))
        wait_s = (steady_s - consume_s) / facts.fetches
        first_s = start_s + max(0.0, statistics.fmean(times_s) - wait_s)
        return steady_s + (first_s / facts.epoch_steps if facts.epoch_steps else 0.0)

    def step_s(work_factor: float, rest_factor: float) -> float:
        found_s = at(work_factor, rest_factor, 1.0)
        if workers == 0 or facts.crowding == 1.0:
            return found_s
        # How busy the cores are hangs on how long the step is, and that on how busy they are.
        for _ in range(_ITERATIONS):
            now = crowded(facts, found_s, work.prepare_s / then)
            found_s = (found_s + at(work_factor, rest_factor, now)) / 2
        return found_s

    return step_s


def crowded(facts: Facts, step_s: float, prepare_s: float) -> float:
    """How many times as long work takes with as many cores busy as a step of that length needs, workers beside it.

    Linear between one busy core and all of them. The loop that feeds a GPU keeps one core busy.
    """
    if facts.cores < 2 or facts.loader is None:
        return facts.crowding
    threads = 1 if facts.on_gpu else min(facts.loader.threads, facts.cores)
    busy = min(float(facts.cores), (prepare_s + threads * facts.consume_s) / step_s)
    return 1 + (facts.crowding - 1) * max(0.0, busy - 1) / (facts.cores - 1)


def _cores_s(facts: Facts, loader: Loader, workers: int, prepare_s: float, consume_s: float) -> float:
    """What the cores allow: each prepares for one worker at a time. On a CPU training needs its threads too."""
    prepared_s = prepare_s / min(workers, facts.cores)
    if facts.on_gpu:
        return prepared_s
    threads = min(loader.threads, facts.cores)
    return max(prepared_s, (prepare_s + threads * consume_s) / facts.cores)


def _with(facts: Facts, knobs: Knobs, because: str, *, on: Knobs = NONE, blocked: float = 1.0) -> Proposal:
    """Settings of the loader with the gain that the model gives them on top of those in `on`."""
    gain, low, high = gain_of(step_model(facts, on), step_model(facts, on.with_(knobs), blocked=blocked), facts)
    live = facts.loader is not None and facts.loader.switchable and knobs.persistent_workers is None
    return Proposal(knobs=knobs, gain=gain, low=low, high=high, because=because, live=live)


def with_workers(facts: Facts, count: int) -> Proposal:
    """That many workers."""
    now = facts.loader.num_workers if facts.loader else 0
    because = f"batches are prepared by {count} instead of {now or 'no'} workers"
    found = _with(facts, Knobs(num_workers=count), because)
    if facts.work is None or not facts.work.blocked_s or count <= max(1, now):
        return found
    # Storage may be giving all it can: then so many readers each wait so many times as long.
    full = _with(facts, Knobs(num_workers=count), because, blocked=count / max(1, now))
    return replace(found, low=min(found.low, full.low))


def most_workers(facts: Facts) -> int:
    """More are never proposed: those that wait for storage need no core, those that prepare do."""
    return min(_MOST_WORKERS, max(2 * facts.cores, 8))


def _best_workers(facts: Facts, *, blocked: float = 1.0) -> int:
    """The fewest workers within 2 % of the best number there is."""
    counts = range(1, most_workers(facts) + 1)
    steps_s = {n: step_model(facts, Knobs(num_workers=n), blocked=blocked)(1.0, 1.0) for n in counts}
    best_s = min(steps_s.values())
    return next(n for n, step_s in steps_s.items() if step_s <= ENOUGH * best_s)


def _workers(facts: Facts, loader: Loader) -> list[Proposal]:
    """The number the model finds best, and its neighbours: it may be off by as much."""
    best = _best_workers(facts)
    most = max(facts.cores, best)
    counts = {best, max(1, round(best / FARTHER)), min(most, round(best * FARTHER))}
    return [with_workers(facts, count) for count in sorted(counts - {loader.num_workers})]


def _depths(facts: Facts, loader: Loader) -> list[Proposal]:
    """A deeper queue, where batches are uneven and the loader keeps up on average."""
    now = loader.prefetch_factor or 2
    depth = next((depth for depth in _DEPTHS if depth > now), None)
    if not loader.num_workers or depth is None:
        return []
    because = "batches take unevenly long; a deeper queue evens that out"
    return [_with(facts, Knobs(prefetch_factor=depth), because)]


def _ahead(facts: Facts, loader: Loader, work: LoaderWork) -> list[Proposal]:
    """Look-ahead, and a cache where epochs are short: both take the waiting for the store out of a batch.

    Whether the store can deliver faster than it does now is not known before the trial, so the interval begins at none.
    """
    if not work.blocked_s:
        return []
    workers = max(loader.num_workers, _best_workers(facts, blocked=0.0))
    more = Knobs(num_workers=workers) if workers != loader.num_workers else Knobs()
    because = "the order of the samples is known ahead, so what comes next is fetched while the job trains"
    ahead = replace(_with(facts, more.with_(Knobs(lookahead=True)), because, blocked=0.0), low=0.0)
    epoch_s = (facts.epoch_steps or 0.0) * facts.step_s
    if not loader.bucket_bytes or loader.cached or not 0 < epoch_s <= _CACHED_EPOCH_S:
        return [ahead]
    because = "from the second epoch on, samples come from this node's disk instead of the store"
    size_bytes = round(1.2 * loader.bucket_bytes) + 2**20
    # Not credited with more than look-ahead alone: what is hidden already cannot be hidden again.
    knobs = ahead.knobs.with_(Knobs(cache_bytes=size_bytes))
    return [ahead, replace(ahead, knobs=knobs, gain=ahead.gain - 1e-9, because=because, live=False)]


def _pinned(facts: Facts, loader: Loader) -> list[Proposal]:
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
    because = "batches are copied to the GPU from pinned memory, beside the compute where the copy is non_blocking"
    gain = min(part, 1 - part)
    return [
        Proposal(knobs=Knobs(pin_memory=True), gain=gain, low=0.0, high=part, because=because, live=loader.switchable)
    ]


def persistent(facts: Facts, on: Knobs = NONE) -> list[Proposal]:
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
    because = "workers are not started anew for every epoch"
    return [_with(facts, Knobs(persistent_workers=True), because, on=on)]


# ---- the exchange --------------------------------------------------------------------------------------------------


def _of_buckets(one: BucketSize) -> Proposal:
    because = f"gradients travel in pieces of {one.size_mb:g} MiB instead of {one.now_mb:g} MiB"
    return Proposal(knobs=Knobs(bucket_cap_mb=one.size_mb), gain=one.gain, low=one.low, high=one.high, because=because)
