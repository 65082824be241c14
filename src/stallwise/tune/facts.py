"""What a profile says about the job that matters for its settings."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwise.errors import InputError
from stallwise.model.datapath import LoaderWork
from stallwise.model.intervals import median_of_block_means
from stallwise.model.step import Factors
from stallwise.model.whatif import Job
from stallwise.record import plan
from stallwise.record.job import job_of
from stallwise.record.profile import Profile, profile_of
from stallwise.record.split import measure
from stallwise.run.reader import Run
from stallwise.tune.knobs import Loader

if TYPE_CHECKING:
    import polars

# Where nobody knows how many there are, they do not bind.
_MOST_CORES = 64
# Of a worker, where the script has none: forking a process that has loaded torch.
_WORKER_START_S = 0.03
_STARTS = ("worker_startup", "first_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A profiled job and the loader that feeds it."""

    profile: Profile
    loader: Loader | None
    """None where no DataLoader feeds its steps."""
    consume_s: float
    """A step whose batches are there already."""
    consume_factors: Factors
    work: LoaderWork | None
    work_factors: Factors
    batches_s: tuple[float, ...]
    """Time a loader worker took for each batch."""
    fetches: float
    """Batches per step."""
    cores: int
    """Of a node, for each of its ranks."""
    crowding: float
    """How many times as long work takes on a core while all others work too (`record.crowding`)."""
    on_gpu: bool
    worker_start_s: float
    """What a loader worker takes from its start until it prepares its first batch."""
    job: Job | None
    """As `whatif` takes it; None where too little was measured for it."""

    @property
    def step_s(self) -> float:
        """As measured."""
        return self.profile.step_s

    @property
    def epoch_steps(self) -> float | None:
        """Steps of an epoch."""
        return self.loader.length / self.fetches if self.loader and self.loader.length else None


def facts_of(run: Run, loaders: tuple[Loader, ...], crowding: Callable[[int], float] = lambda _: 1.0) -> Facts:
    """Everything that proposals are made from; `crowding` is asked for the cores of a node."""
    profile, found = profile_of(run), measure(run)
    loader = max((one for one in loaders if one.steps), key=lambda one: one.steps, default=None)
    replayed = found.rungs.get(plan.HOST)
    consume = median_of_block_means(list((replayed or found.rungs[plan.AS_IS]).values()))
    on_gpu = plan.DEVICE in found.rungs
    ranks = max(1, profile.world.world_size // profile.world.nnodes)
    cores = min((node.cores for node in profile.nodes if node.cores), default=None)
    batches_s, fetches = _batches(run, found.data.rank if found.data else 0)
    return Facts(
        profile=profile,
        loader=loader,
        consume_s=min(consume.value, profile.step_s),
        consume_factors=_factors(consume.low, consume.value, consume.high),
        work=found.data.work if found.data else None,
        work_factors=_work_factors(profile),
        batches_s=batches_s,
        fetches=fetches,
        cores=max(1, (cores or _MOST_CORES) // ranks),
        crowding=crowding(cores) if cores and loader is not None else 1.0,
        on_gpu=on_gpu,
        worker_start_s=_worker_start_s(run, loader, statistics.fmean(batches_s) if batches_s else 0.0),
        job=_job(run),
    )


def _batches(run: Run, rank: int) -> tuple[tuple[float, ...], float]:
    """How long batches took in as-is steps, in order, and how many there are in a step."""
    import polars as pl

    as_is, of_rank = pl.col("phase") == plan.AS_IS, pl.col("rank") == rank
    made: polars.DataFrame = run.table("batches").filter(as_is & of_rank).sort("start_s")
    kept = run.table("steps").filter(pl.col("kept") & as_is & of_rank)
    samples, per_step = made.get_column("samples").drop_nulls(), kept.get_column("samples").drop_nulls()
    fetches = 1.0
    if len(samples) and len(per_step):
        fetches = max(1.0, float(round(statistics.fmean(per_step) / max(1.0, statistics.fmean(samples)))))
    return tuple(made.get_column("wall_s").to_list()), fetches


def _worker_start_s(run: Run, loader: Loader | None, batch_s: float) -> float:
    """What starting all of them took, and what the first batch took beyond any other, divided among them."""
    import polars as pl

    if loader is None or not loader.num_workers:
        return _WORKER_START_S
    events = run.table("events").filter((pl.col("rank") == 0) & pl.col("duration_s").is_not_null()).sort("start_s")
    times = {kind: events.filter(pl.col("kind") == kind).get_column("duration_s").to_list() for kind in _STARTS}
    if not all(times.values()):
        return _WORKER_START_S
    # After the first epoch, whose first batch waits for other things too (imports, connections).
    startup_s, first_s = (statistics.fmean(found[1:] or found) for found in times.values())
    return (startup_s + max(0.0, first_s - batch_s)) / loader.num_workers


def _job(run: Run) -> Job | None:
    try:
        return job_of(run)
    except InputError:
        return None


def _factors(low: float, value: float, high: float) -> Factors:
    """Bounds as factors; an interval of very few blocks that reaches to infinity or zero counts as double and half."""
    if not value > 0:
        return 1.0, 1.0
    return min(1.0, max(0.5, low / value)), max(1.0, min(2.0, high / value))


def _work_factors(profile: Profile) -> Factors:
    rate = profile.rates.P
    if rate is None or not rate.low > 0:
        return 1.0, 1.0
    return _factors(rate.samples_per_s / rate.high, 1.0, rate.samples_per_s / rate.low)
