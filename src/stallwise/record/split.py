"""A run's answer to the question where the time goes: the step split into compute and stalls.

1. Per phase and block, the mean over kept steps; per block, over ranks: their mean where the exchange keeps them in
   step, and the slowest rank's where there is none.
2. The ladder of phases becomes stalls that are never negative and add up to the step (`model.stalls`).
3. The data stall is divided into fetch and prep by what the loader did for its batches (`model.datapath`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stallwise.errors import RunError
from stallwise.model.datapath import LoaderWork, fetch_part
from stallwise.model.intervals import Interval, median_of_block_means
from stallwise.model.stalls import Share, ladder_shares, split_share
from stallwise.record import plan
from stallwise.run.manifest import WorldRecord
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import polars

# Below this the account of a worker's time (timer ticks, pipes) cannot tell fetch from prep.
_ACCOUNT_RESOLUTION = 0.03

# The rung below all phases, where the script exchanges something itself.
_OWN_COLLECTIVES = "own collectives"

_TOTALLED = ("samples", "wall_s", "blocked_s", "cpu_s", "read_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Parts of a step, in seconds. None: absent in this job (no second node, no GPU), or not measured."""

    compute: Share
    copy: Share | None = None
    interconnect: Share | None = None
    network: Share | None = None
    prep: Share | None = None
    fetch: Share | None = None

    def stalls(self) -> dict[str, Share]:
        """The stalls that were measured, largest first."""
        named = {name: getattr(self, name) for name in ("copy", "interconnect", "network", "prep", "fetch")}
        found = {name: share for name, share in named.items() if share is not None}
        return dict(sorted(found.items(), key=lambda item: -item[1].s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """How far the slowest rank's compute lies above the mean of all: part of compute, made by one rank."""

    rank: int
    s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPath:
    """The loader of the rank that waits longest for data."""

    rank: int
    work: LoaderWork
    cpu_s_per_sample: float
    read_bytes_per_sample: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Everything that follows from the phases of a run."""

    step: Interval
    split: Split
    skew: Skew | None
    data: DataPath | None
    cold: DataPath | None
    cold_step: Interval | None
    data_wait_s: float | None  # part of an as-is step that the slowest-fed rank waits for its batches
    rungs: dict[str, dict[int, float]]


def measure(run: Run) -> Measured:
    """The split of a run; a `RunError` where it has no complete phase."""
    steps = run.table("steps")
    world = run.manifest.world
    rungs = {phase: _rung(steps, phase) for phase in plan.LADDER}
    rungs = {phase: blocks for phase, blocks in rungs.items() if blocks}
    if plan.AS_IS not in rungs:
        raise RunError(
            f"The run at {run.path} has no complete block of steps. Profile the job longer, or make its loop longer."
        )
    announced = {phase.name for phase in run.manifest.phases} & set(plan.LADDER)
    if announced - rungs.keys():
        raise RunError(
            f"The run at {run.path} ended before every phase was measured once. Give the script more steps or epochs."
        )
    ladder = rungs | _without_own_collectives(steps, run.table("collectives"), rungs)
    stalls, compute = ladder_shares(list(ladder.values()))
    between = dict(zip(list(ladder)[1:], stalls, strict=True))
    data = _data_path(run, steps, plan.AS_IS)
    step = compute.s + sum(stall.s for stall in stalls)
    cold = _rung(steps, plan.COLD)
    return Measured(
        step=_around(step, median_of_block_means(list(rungs[plan.AS_IS].values()))),
        split=_split(compute, between, rungs, data, world),
        skew=_skew(steps, world),
        data=data,
        cold=_data_path(run, steps, plan.COLD) if cold else None,
        cold_step=median_of_block_means(list(cold.values())) if cold else None,
        data_wait_s=_data_wait_s(steps),
        rungs=rungs,
    )


def _around(value: float, interval: Interval) -> Interval:
    """The fitted value may lie a little off the median; its interval is stretched to hold it."""
    return Interval(value, min(value, interval.low), max(value, interval.high), interval.method, interval.blocks)


def _split(
    compute: Share,
    between: dict[str, Share],
    rungs: dict[str, dict[int, float]],
    data: DataPath | None,
    world: WorldRecord,
) -> Split:
    many_nodes = world.nnodes > 1
    exchange = _both(between.get(plan.ALONE), between.get(_OWN_COLLECTIVES))
    prep, fetch = _prep_and_fetch(between.get(plan.HOST), rungs, data)
    return Split(
        compute=compute,
        copy=between.get(plan.DEVICE),
        interconnect=exchange if not many_nodes or plan.NODE in between else None,
        network=between.get(plan.NODE) if plan.NODE in between else (exchange if many_nodes else None),
        prep=prep,
        fetch=fetch,
    )


def _both(one: Share | None, other: Share | None) -> Share | None:
    if one is None or other is None:
        return one or other
    return Share(one.s + other.s, one.low_s + other.low_s, one.high_s + other.high_s)


def _without_own_collectives(
    steps: "polars.DataFrame", collectives: "polars.DataFrame", rungs: dict[str, dict[int, float]]
) -> dict[str, dict[int, float]]:
    """One more rung where the script calls collectives itself: the last one less what compute waited for them.

    They cannot be taken away, only timed. A rank that comes early waits for the others too; the rank that comes
    last waits for the transfer alone, so per step the shortest wait over the ranks counts.
    """
    import polars as pl

    last, blocks = list(rungs.items())[-1]
    kept = steps.filter(pl.col("kept") & (pl.col("phase") == last)).select("rank", "step", "block")
    called = collectives.group_by("rank", "step").agg(pl.col("waited_s").sum())
    waits = kept.join(called, on=["rank", "step"], how="left").with_columns(pl.col("waited_s").fill_null(0.0))
    of_step = waits.group_by("block", "step").agg(pl.col("waited_s").min())
    of_block = dict(of_step.group_by("block").agg(pl.col("waited_s").mean()).iter_rows())
    if not collectives.height or not any(of_block.values()):
        return {}
    return {_OWN_COLLECTIVES: {block: max(0.0, time - of_block.get(block, 0.0)) for block, time in blocks.items()}}


def _prep_and_fetch(
    stall: Share | None, rungs: dict[str, dict[int, float]], data: DataPath | None
) -> tuple[Share | None, Share | None]:
    if stall is None:
        return None, None
    if data is None:
        # Batches came from somewhere we could not look into (an iterable of the script's own).
        return stall, None
    consume_s = median_of_block_means(list(rungs[plan.HOST].values())).value
    part = fetch_part(data.work, consume_s)
    fetch, prep = split_share(stall, part)
    return _loosened(prep, stall), _loosened(fetch, stall)


def _loosened(share: Share, whole: Share) -> Share:
    give = _ACCOUNT_RESOLUTION * whole.s
    return Share(share.s, max(0.0, share.low_s - give), share.high_s + give)


def _rung(steps: "polars.DataFrame", phase: str) -> dict[int, float]:
    """Block -> mean step of the job in that phase."""
    import polars as pl

    of_rank = _rank_blocks(steps, phase)
    if not of_rank.height:
        return {}
    # A block that some rank did not finish is no measurement of the job.
    whole = of_rank.group_by("block").len().filter(pl.col("len") == of_rank.get_column("rank").n_unique())
    of_rank = of_rank.join(whole.select("block"), on="block", how="semi")
    if phase == plan.ALONE:
        slowest = _slowest(of_rank)
        of_rank = of_rank.filter(pl.col("rank") == slowest)
    blocks = of_rank.group_by("block").agg(pl.col("duration_s").mean()).sort("block")
    return dict(zip(blocks.get_column("block").to_list(), blocks.get_column("duration_s").to_list(), strict=True))


def _rank_blocks(steps: "polars.DataFrame", phase: str) -> "polars.DataFrame":
    import polars as pl

    kept = steps.filter(pl.col("kept") & (pl.col("phase") == phase))
    return kept.group_by("block", "rank").agg(pl.col("duration_s").mean())


def _slowest(of_rank: "polars.DataFrame") -> int:
    import polars as pl

    medians = of_rank.group_by("rank").agg(pl.col("duration_s").median()).sort("duration_s", "rank")
    return int(medians.get_column("rank")[-1])


def _skew(steps: "polars.DataFrame", world: WorldRecord) -> Skew | None:
    import polars as pl

    of_rank = _rank_blocks(steps, plan.ALONE)
    if world.world_size < 2 or not of_rank.height:
        return None
    medians = of_rank.group_by("rank").agg(pl.col("duration_s").median())
    rank = _slowest(of_rank)
    times = dict(medians.iter_rows())
    return Skew(rank=rank, s=max(0.0, times[rank] - sum(times.values()) / len(times)))


def _data_wait_s(steps: "polars.DataFrame") -> float | None:
    import polars as pl

    kept = steps.filter(pl.col("kept") & (pl.col("phase") == plan.AS_IS) & pl.col("data_wait_s").is_not_null())
    waits = kept.group_by("rank").agg(pl.col("data_wait_s").mean()).get_column("data_wait_s").to_list()
    return max(waits, default=None)


def _data_path(run: Run, steps: "polars.DataFrame", phase: str) -> DataPath | None:
    """What loading the batches of one step costs, on the rank that waits longest for them.

    Where the batches came from a bucket, the process that loaded them knows how long it waited for the store; else it
    is told from outside, by the time in which it neither worked nor was ready to.
    """
    import polars as pl

    kept = steps.filter(pl.col("kept") & (pl.col("phase") == phase) & pl.col("samples").is_not_null())
    made = run.table("batches").filter((pl.col("phase") == phase) & pl.col("cpu_s").is_not_null())
    waits = kept.group_by("rank").agg(pl.col("data_wait_s").mean(), pl.col("samples").mean()).sort("data_wait_s")
    if not waits.height or not made.height:
        return None
    rank, samples_per_step = waits.row(-1)[0], waits.row(-1)[2]
    made = made.filter(pl.col("rank") == rank)
    totals = {name: float(made.get_column(name).sum()) for name in _TOTALLED}
    samples = totals["samples"]
    if not samples or not samples_per_step:
        return None
    scale = samples_per_step / samples
    wall, blocked = totals["wall_s"], totals["blocked_s"]
    loads = run.table("loads").filter((pl.col("phase") == phase) & (pl.col("rank") == rank))
    if loads.height:
        waited_s = float(loads.get_column("network_s").sum()) / float(loads.get_column("samples").sum())
        blocked = min(wall, waited_s * samples)
    workers = made.get_column("worker").drop_nulls().n_unique()
    return DataPath(
        rank=rank,
        work=LoaderWork(prepare_s=(wall - blocked) * scale, blocked_s=blocked * scale, workers=workers),
        cpu_s_per_sample=totals["cpu_s"] / samples,
        read_bytes_per_sample=totals["read_bytes"] / samples,
        samples=int(samples),
    )
