"""The step of a profiled job with other settings of its loader: one model for the card and for `tune`.

Blocked time overlaps freely, preparation needs a core each. The more cores work at the same time, the slower is each
(`crowded`): preparation is slower than in the run where more cores are busy than there, and so is training that runs on
the cores itself. Every epoch begins with starting the workers, unless they stay alive, and with a batch that nobody
prepared ahead.

A gain compares the model's step with a setting to the model's step without, so a stall that the model does not explain
is credited to no setting.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stallwise.analysis.split import StepMeasurement, loader_workers
from stallwise.model.data.datapath import LoaderWork, taken_every_s
from stallwise.model.statistics.intervals import positive_median
from stallwise.model.step.prediction import Factors
from stallwise.run import phases
from stallwise.run.reader import Run

if TYPE_CHECKING:
    from stallwise.run.table import Table

ENOUGH = 1.02
"""Of settings within this factor of the best, the one that needs the fewest workers is taken."""

_MOST_CORES = 64  # assumed where the number is not known, so that cores do not limit
_WORKER_START_S = 0.03  # of forking a process that has loaded torch, where the script has no workers
_MOST_WORKERS = 64
_STARTS = ("worker_startup", "first_batch")
_ITERATIONS = 6
_UNMEASURED_CROWDING = (1.0, 1.3, 1.6)
"""Where nobody measured how much the cores of a machine slow each other: its range on machines that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSetting:
    """Settings of a loader."""

    num_workers: int
    prefetch_factor: int
    persistent_workers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingFacts:
    """What the step of a job with another loader is worked out from."""

    step_s: float
    """Measured seconds of a step."""
    consume_s: float
    """Seconds of a step whose batches are ready."""
    consume_factors: Factors
    work: LoaderWork | None
    work_factors: Factors
    batches_s: tuple[float, ...]
    """Time a loader worker took for each batch."""
    fetches: float
    """Batches per step."""
    cores: int
    """Cores of a node per rank."""
    threads: int
    """Cores that training itself keeps busy."""
    crowding: float | None
    """Factor on the time of work on a core while all other cores are busy; None: not measured."""
    on_gpu: bool
    worker_start_s: float
    """Seconds that starting one more loader worker takes; they are started one after the other."""
    first_batch_s: float
    """Seconds that the first batch of an epoch takes beyond any other, whatever the number of workers."""
    setting: LoaderSetting
    """The loader as it is."""
    epoch_batches: int | None

    @property
    def epoch_steps(self) -> float | None:
        """Steps of an epoch."""
        return self.epoch_batches / self.fetches if self.epoch_batches else None


def loading_facts(run: Run, measured: StepMeasurement) -> LoadingFacts:
    """Collect the facts from a run; crowding is not known from it."""
    manifest = run.manifest
    loader, workers = manifest.loader, loader_workers(run)
    replayed = measured.rungs.get(phases.HOST)
    consume = positive_median(list((replayed or measured.rungs[phases.AS_IS]).values()))
    ranks = max(1, manifest.world.world_size // manifest.world.nnodes)
    cores = min((node.cores for node in manifest.nodes if node.cores), default=_MOST_CORES)
    rank_cores = max(1, cores // ranks)
    on_gpu = phases.DEVICE in measured.rungs
    batches_s, fetches = _batches(run, measured.data.rank if measured.data else 0)
    worker_start_s, first_batch_s = _starts_s(run, workers, statistics.fmean(batches_s) if batches_s else 0.0)
    return LoadingFacts(
        step_s=measured.step.value,
        consume_s=min(consume.value, measured.step.value),
        consume_factors=factors_of(consume.low, consume.value, consume.high),
        work=measured.data.work if measured.data else None,
        work_factors=_work_factors(run),
        batches_s=batches_s,
        fetches=fetches,
        cores=rank_cores,
        threads=1 if on_gpu else _threads(run.table("steps"), rank_cores),
        crowding=None,
        on_gpu=on_gpu,
        worker_start_s=worker_start_s,
        first_batch_s=first_batch_s,
        setting=LoaderSetting(num_workers=workers, prefetch_factor=(loader and loader.prefetch_factor) or 2),
        epoch_batches=loader.batches if loader else None,
    )


def _threads(steps: "Table", cores: int) -> int:
    """Cores that training keeps busy: its processor time over its time, while batches are replayed; all if unknown."""
    replayed = steps.filter(steps["kept"].is_true() & steps["phase"].equals(phases.HOST) & ~steps["cpu_s"].null)
    time_s = replayed["duration_s"].sum()
    return max(1, min(cores, round(replayed["cpu_s"].sum() / time_s))) if time_s else cores


def _batches(run: Run, rank: int) -> tuple[tuple[float, ...], float]:
    """Seconds of each batch in as-is steps, in order, and the number of batches per step."""
    batches, steps = run.table("batches"), run.table("steps")
    as_is_batches = batches.filter(batches["phase"].equals(phases.AS_IS) & batches["rank"].equals(rank)).sort("start_s")
    as_is = steps["phase"].equals(phases.AS_IS) & steps["rank"].equals(rank)
    kept = steps.filter(steps["kept"].is_true() & as_is)
    times_s = tuple(as_is_batches["wall_s"].to_list())
    if kept.height and not kept["fetches"].null_count:
        return times_s, max(1.0, kept["fetches"].mean() or 1.0)
    samples, per_step = as_is_batches["samples"].mean(), kept["samples"].mean()
    fetches = 1.0
    if samples is not None and per_step is not None:
        fetches = max(1.0, float(round(per_step / max(1.0, samples))))
    return times_s, fetches


def _starts_s(run: Run, workers: int, batch_s: float) -> tuple[float, float]:
    """Seconds of starting a worker, and what the first batch of an epoch takes beyond any other."""
    if not workers:
        return _WORKER_START_S, 0.0
    events = run.table("events")
    events = events.filter(events["rank"].equals(0) & ~events["duration_s"].null).sort("start_s")
    times = {kind: events.filter(events["kind"].equals(kind))["duration_s"].to_list() for kind in _STARTS}
    if not all(times.values()):
        return _WORKER_START_S, 0.0
    # After the first epoch, whose first batch waits for other things too (imports, connections).
    startup_s, first_s = (statistics.fmean(durations[1:] or durations) for durations in times.values())
    return startup_s / workers, max(0.0, first_s - batch_s)


def factors_of(low: float, value: float, high: float) -> Factors:
    """Bounds as factors; an interval of very few blocks that reaches to infinity or zero counts as double and half."""
    if not value > 0:
        return 1.0, 1.0
    return min(1.0, max(0.5, low / value)), max(1.0, min(2.0, high / value))


def _work_factors(run: Run) -> Factors:
    """Bounds on the time that a batch takes, from its mean in each block."""
    batches = run.table("batches")
    prepared = batches.filter(batches["phase"].equals(phases.AS_IS))
    if not prepared.height:
        return 1.0, 1.0
    blocks = prepared.group_by("block")
    means = [mean_s for mean_s in blocks.mean("wall_s").to_list() if mean_s]
    if not means:
        return 1.0, 1.0
    interval = positive_median(means)
    return factors_of(interval.low, interval.value, interval.high)


Model = Callable[[float, float], float]
"""Seconds of a step, given factors on the loader's work and on the rest of the step."""


def step_model(facts: LoadingFacts, setting: LoaderSetting, *, blocked: float = 1.0) -> Model:
    """Return the model of the job with another setting of its loader, reads taking `blocked` times as long."""
    work, workers = facts.work, setting.num_workers
    assert work is not None  # noqa: S101 - only called then
    whole_s = work.prepare_s + work.blocked_s
    prepared = work.prepare_s / whole_s if whole_s > 0 else 0.0
    start_s = 0.0 if setting.persistent_workers else workers * facts.worker_start_s + facts.first_batch_s
    then = crowded(facts, facts.step_s, work.prepare_s) if facts.setting.num_workers else 1.0

    def at(work_factor: float, rest_factor: float, now: float) -> float:
        preparing = prepared * now / then
        share = preparing + blocked * (1 - prepared) if whole_s > 0 else 0.0
        times_s = [time_s * share * work_factor for time_s in facts.batches_s]
        consume_s = facts.consume_s * rest_factor * (1.0 if facts.on_gpu else now)
        steady_s = facts.fetches * taken_every_s(times_s, consume_s / facts.fetches, workers, setting.prefetch_factor)
        if workers == 0 or not times_s:
            return steady_s
        prepare_s = work_factor * work.prepare_s * now / then
        steady_s = max(steady_s, _cores_s(facts, workers, prepare_s, consume_s))
        wait_s = (steady_s - consume_s) / facts.fetches
        # While the first batch is prepared, so are those of the other workers: they need no wait of their own.
        at_once = max(1.0, min(float(workers), float(facts.epoch_batches or workers)))
        first_s = start_s + max(0.0, statistics.fmean(times_s) - at_once * wait_s)
        return steady_s + (first_s / facts.epoch_steps if facts.epoch_steps else 0.0)

    def step_s(work_factor: float, rest_factor: float) -> float:
        estimate_s = at(work_factor, rest_factor, 1.0)
        if workers == 0 or (facts.crowding or 1.0) == 1.0:
            return estimate_s
        # Fixed point: how busy the cores are depends on the length of the step, and that on how busy they are.
        for _ in range(_ITERATIONS):
            now = crowded(facts, estimate_s, work.prepare_s / then)
            estimate_s = (estimate_s + at(work_factor, rest_factor, now)) / 2
        return estimate_s

    return step_s


def crowded(facts: LoadingFacts, step_s: float, prepare_s: float) -> float:
    """Factor on the time of work with as many cores busy as a step of that length and its workers need.

    Linear between one busy core and all of them. The loop that feeds a GPU keeps one core busy.
    """
    crowding = facts.crowding or 1.0
    if facts.cores < 2:
        return crowding
    busy = min(float(facts.cores), (prepare_s + facts.threads * facts.consume_s) / step_s)
    return 1 + (crowding - 1) * max(0.0, busy - 1) / (facts.cores - 1)


def _cores_s(facts: LoadingFacts, workers: int, prepare_s: float, consume_s: float) -> float:
    """Seconds of a step that the cores allow: each serves one worker at a time.

    On a CPU training needs its threads too.
    """
    prepared_s = prepare_s / min(workers, facts.cores)
    if facts.on_gpu:
        return prepared_s
    return max(prepared_s, (prepare_s + facts.threads * consume_s) / facts.cores)


def gain_of(now: Model, then: Model, facts: LoadingFacts) -> tuple[float, float, float]:
    """Return the gain of `then` over `now` with its lowest and highest value."""
    corners = [(work, rest) for work in facts.work_factors for rest in facts.consume_factors]
    gains = [1 - then(*corner) / now(*corner) for corner in corners]
    middle = 1 - then(1.0, 1.0) / now(1.0, 1.0)
    return middle, min(middle, *gains), max(middle, *gains)


def most_workers(facts: LoadingFacts) -> int:
    """Largest number of workers proposed; those that wait for storage need no core, those that prepare do."""
    return min(_MOST_WORKERS, max(2 * facts.cores, 8))


def best_workers(facts: LoadingFacts, *, blocked: float = 1.0) -> int:
    """The fewest workers within 2 % of the shortest step."""
    counts = range(1, most_workers(facts) + 1)
    steps_s = {n: step_model(facts, replace(facts.setting, num_workers=n), blocked=blocked)(1.0, 1.0) for n in counts}
    best_s = min(steps_s.values())
    return next(n for n, step_s in steps_s.items() if step_s <= ENOUGH * best_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGain:
    """A number of workers with the fraction of the step that it saves, and its bounds."""

    num_workers: int
    gain: float
    low: float
    high: float


def worker_gain(facts: LoadingFacts) -> WorkerGain | None:
    """The best number of workers for the job; None where it has that number or its loader's work is not known.

    Where crowding is not measured, the bounds hold for all of its range.
    """
    if facts.work is None or not facts.batches_s:
        return None
    crowdings = _UNMEASURED_CROWDING if facts.crowding is None else (facts.crowding,)
    cases = [replace(facts, crowding=crowding) for crowding in crowdings]
    middle = cases[len(cases) // 2]
    count = best_workers(middle)
    if count == facts.setting.num_workers:
        return None
    setting = replace(facts.setting, num_workers=count)
    gains = [gain_of(step_model(case, facts.setting), step_model(case, setting), case) for case in cases]
    lows, highs = [gain[1] for gain in gains], [gain[2] for gain in gains]
    return WorkerGain(num_workers=count, gain=gains[len(cases) // 2][0], low=min(lows), high=max(highs))


def cores_used(facts: LoadingFacts) -> float:
    """Fraction of a rank's cores that training and loading keep busy, 0 to 1; NaN where the work is not known."""
    if facts.work is None:
        return math.nan
    busy_s = facts.work.prepare_s + facts.threads * facts.consume_s
    return min(1.0, busy_s / (facts.cores * facts.step_s))
