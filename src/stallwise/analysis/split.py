"""A run's answer to the question where the time goes: the step split into compute and stalls.

1. Per phase and block, the mean over kept steps; per block, over ranks: their mean where the exchange keeps them in
   step, and the slowest rank's where there is none.
2. The ladder of phases becomes stalls that are never negative and add up to the step (`model.stalls`).
3. The data stall is divided into fetch and prep by what the loader did for its batches (`model.datapath`).
4. What is left on the last rung is divided by what was observed in windows of its own (`observed`).

Laws: parts are non-negative and add up to the step, and no interval of a step reaches zero.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, median, median_high
from typing import TYPE_CHECKING, Any

import numpy as np

from stallwise.analysis.observed import ObservedCause, observe
from stallwise.errors import RunError
from stallwise.model.data.datapath import LoaderWork, fetch_fraction
from stallwise.model.statistics.intervals import Interval, positive_median
from stallwise.model.statistics.stalls import (
    Share,
    drawn_stalls,
    ladder_shares,
    observed_draws,
    resampled_medians,
    split_share,
)
from stallwise.run import phases
from stallwise.run.manifest import WorldRecord
from stallwise.run.reader import Run

if TYPE_CHECKING:
    import numpy.typing as npt

    from stallwise.run.table import Table

# Below this the account of a worker's time (timer ticks, pipes) cannot tell fetch from prep.
_ACCOUNT_RESOLUTION = 0.03

# The rung below all phases, where the script exchanges something itself.
_OWN_COLLECTIVES = "own collectives"

STALLS = ("host", "copy", "interconnect", "network", "prep", "fetch")
"""The parts of a step other than compute."""

_TOTALLED = ("samples", "wall_s", "blocked_s", "cpu_s", "read_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Parts of a step, in seconds. None: absent in this job (no second node, no GPU), or not measured."""

    compute: Share
    host: Share | None = None
    copy: Share | None = None
    interconnect: Share | None = None
    network: Share | None = None
    prep: Share | None = None
    fetch: Share | None = None

    @property
    def not_ablated(self) -> Share:
        """What is left of a step when everything that can be ablated is: compute with the parts that were observed."""
        shares = [self.compute, *(share for share in self.stalls().values() if share.observed)]
        return Share(sum(s.s for s in shares), sum(s.low_s for s in shares), sum(s.high_s for s in shares))

    def stalls(self) -> dict[str, Share]:
        """The stalls that were measured, largest first."""
        named = {name: getattr(self, name) for name in STALLS}
        measured = {name: share for name, share in named.items() if share is not None}
        return dict(sorted(measured.items(), key=lambda item: -item[1].s))

    @property
    def unassigned_s(self) -> float:
        """Time of stalls whose intervals reach zero: it is in the step, but no stall can be held responsible for it."""
        return sum(share.s for share in self.stalls().values() if not share.distinguishable)


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
class StepMeasurement:
    """Everything that follows from the phases of a run."""

    step: Interval
    split: Split
    skew: Skew | None
    data: DataPath | None
    cold: DataPath | None
    cold_step: Interval | None
    data_wait_s: float | None  # part of an as-is step that the slowest-fed rank waits for its batches
    rungs: dict[str, dict[int, float]]
    observed: tuple[ObservedCause, ...] = ()
    """What the step waits for by cause, longest first; empty where no window was recorded."""
    on_device: bool = False
    stall_draws: "Mapping[str, npt.NDArray[np.float64]]" = field(default_factory=dict, compare=False)
    """Seconds of each stall and of the skew, resampled from the rounds; empty for fewer than two rounds."""


def measure(run: Run) -> StepMeasurement:
    """The split of a run; a `RunError` where it has no complete phase."""
    steps = run.table("steps")
    world = run.manifest.world
    rungs = {phase: _rung(steps, phase) for phase in phases.LADDER}
    rungs = {phase: blocks for phase, blocks in rungs.items() if blocks}
    if phases.AS_IS not in rungs:
        counted = sum(phase.steps for phase in run.manifest.phases)
        if counted and not len(steps["rank"]):
            raise RunError(
                f"The run at {run.path} counts {counted:,} steps, but its table of steps is missing or cannot be read. "
                "Copy the whole folder again."
            )
        raise RunError(
            f"The run at {run.path} has no complete block of steps. Profile the job longer, or make its loop longer."
        )
    announced = {phase.name for phase in run.manifest.phases} & set(phases.LADDER)
    if announced - rungs.keys():
        raise RunError(
            f"The run at {run.path} ended before every phase was measured once. Give the script more steps or epochs."
        )
    ladder = rungs | _without_own_collectives(steps, run.table("collectives"), rungs)
    stalls, compute = ladder_shares(list(ladder.values()))
    between = dict(zip(list(ladder)[1:], stalls, strict=True))
    data = _data_path(run, steps, phases.AS_IS)
    step = compute.s + sum(stall.s for stall in stalls)
    cold = _rung(steps, phases.COLD)
    ablated = _split(compute, between, rungs, data, world)
    parts, observed = observe(
        run, ablated.compute, loader_ablated=ablated.prep is not None, copy_ablated=ablated.copy is not None
    )
    split = replace(ablated, **parts)
    return StepMeasurement(
        step=_around(step, positive_median(list(rungs[phases.AS_IS].values()))),
        split=split,
        stall_draws=_stall_draws(ladder, ablated, steps, world) | observed_draws(split.stalls()),
        skew=_skew(steps, world),
        data=data,
        cold=_data_path(run, steps, phases.COLD) if cold else None,
        cold_step=positive_median(list(cold.values())) if cold else None,
        data_wait_s=_data_wait_s(steps),
        rungs=rungs,
        observed=observed,
        on_device=any(node.gpus for node in run.manifest.nodes),
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
    exchange = _both(between.get(phases.ALONE), between.get(_OWN_COLLECTIVES))
    prep, fetch = _prep_and_fetch(between.get(phases.HOST), rungs, data)
    return Split(
        compute=compute,
        copy=between.get(phases.DEVICE),
        interconnect=exchange if not many_nodes or phases.NODE in between else None,
        network=between.get(phases.NODE) if phases.NODE in between else (exchange if many_nodes else None),
        prep=prep,
        fetch=fetch,
    )


def _stall_draws(
    ladder: dict[str, dict[int, float]], split: Split, steps: "Table", world: WorldRecord
) -> "dict[str, npt.NDArray[np.float64]]":
    """Draws of every stall of the split, from the draws between the rungs of the ladder, and of the skew."""
    drawn = drawn_stalls(list(ladder.values()))
    if drawn is None:
        return {}
    between = dict(zip(list(ladder)[1:], drawn, strict=True))
    exchange = [between[name] for name in (phases.ALONE, _OWN_COLLECTIVES) if name in between]
    rest = "interconnect" if split.interconnect is not None else "network"
    draws = {"copy": [between.get(phases.DEVICE)], "network": [between.get(phases.NODE)]}
    draws[rest] = [*draws.get(rest, []), *exchange]
    sums = {name: sum(one for one in parts if one is not None) for name, parts in draws.items()}
    stalls = {name: value for name, value in sums.items() if not isinstance(value, int)}
    data = between.get(phases.HOST)
    if data is not None and split.prep is not None:
        fetch_s = split.fetch.s if split.fetch is not None else 0.0
        whole_s = split.prep.s + fetch_s
        fraction = fetch_s / whole_s if whole_s else 0.0
        stalls["prep"] = data * (1 - fraction)
        if split.fetch is not None:
            stalls["fetch"] = data * fraction
    skew = _skew_draws(steps, world)
    return stalls if skew is None else stalls | {"skew": skew}


def _skew_draws(steps: "Table", world: WorldRecord) -> "npt.NDArray[np.float64] | None":
    """Draws of what the slowest rank computes longer than the mean, over blocks that every rank completed."""
    of_rank = _rank_blocks(steps, phases.ALONE)
    if world.world_size < 2 or not of_rank.height:
        return None
    slowest = _slowest(of_rank)
    blocks: dict[int, dict[int, float]] = {}
    for block, rank, duration_s in of_rank.select("block", "rank", "duration_s").rows():
        blocks.setdefault(block, {})[rank] = duration_s
    ranks = max(len(times) for times in blocks.values())
    beyond = [times[slowest] - fmean(times.values()) for times in blocks.values() if len(times) == ranks]
    drawn = resampled_medians(np.array([beyond]))
    return None if drawn is None else np.maximum(0.0, drawn[0])


def _both(one: Share | None, other: Share | None) -> Share | None:
    if one is None or other is None:
        return one or other
    return Share(one.s + other.s, one.low_s + other.low_s, one.high_s + other.high_s)


def _without_own_collectives(
    steps: "Table", collectives: "Table", rungs: dict[str, dict[int, float]]
) -> dict[str, dict[int, float]]:
    """One more rung where the script calls collectives itself: the last one less what compute waited for them.

    They cannot be taken away, only timed. A rank that comes early waits for the others too; the rank that comes
    last waits for the transfer alone, so per step the shortest wait over the ranks counts.
    """
    last, blocks = list(rungs.items())[-1]
    if not collectives.height:
        return {}
    calls = collectives.group_by("rank", "step")
    waited_s = {(rank, step): wait_s for rank, step, wait_s in calls.with_columns(s=calls.sum("waited_s")).rows()}
    shortest_s: dict[tuple[int, int], float] = {}
    for rank, step, block in _kept(steps, last).select("rank", "step", "block").rows():
        wait_s = waited_s.get((rank, step), 0.0)
        shortest_s[block, step] = min(wait_s, shortest_s.get((block, step), wait_s))
    by_block: dict[int, list[float]] = {}
    for (block, _), wait_s in shortest_s.items():
        by_block.setdefault(block, []).append(wait_s)
    of_block = {block: fmean(waits) for block, waits in by_block.items()}
    if not any(of_block.values()):
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
    consume_s = median(rungs[phases.HOST].values())
    fraction = fetch_fraction(data.work, consume_s)
    fetch, prep = split_share(stall, fraction)
    return _loosened(prep, stall), _loosened(fetch, stall)


def _loosened(share: Share, whole: Share) -> Share:
    give = _ACCOUNT_RESOLUTION * whole.s
    return Share(share.s, max(0.0, share.low_s - give), share.high_s + give)


def _rung(steps: "Table", phase: str) -> dict[int, float]:
    """Block -> mean step of the job in that phase."""
    of_rank = _rank_blocks(steps, phase)
    if not of_rank.height:
        return {}
    of_rank = of_rank.filter(_mostly_kept(of_rank["kept_steps"].values))
    # A block that some rank did not finish is no measurement of the job.
    blocks = of_rank.group_by("block")
    whole = blocks.keys.filter(blocks.size().equals(of_rank["rank"].n_unique()))
    of_rank = of_rank.filter(of_rank["block"].is_in(whole["block"].to_list()))
    if not of_rank.height:
        return {}
    if phase == phases.ALONE:
        of_rank = of_rank.filter(of_rank["rank"].equals(_slowest(of_rank)))
    blocks = of_rank.group_by("block")
    return dict(blocks.with_columns(s=blocks.mean("duration_s")).sort("block").rows())


def _rank_blocks(steps: "Table", phase: str) -> "Table":
    groups = _kept(steps, phase).group_by("block", "rank")
    return groups.with_columns(duration_s=groups.mean("duration_s"), kept_steps=groups.size())


def _mostly_kept(counts: "npt.NDArray[Any]") -> "npt.NDArray[np.bool_]":
    """Blocks with at least half as many steps as usual: loaders deliver in bursts, and what is left of one is luck."""
    return np.asarray(2 * counts >= np.median(counts))


def _kept(steps: "Table", phase: str) -> "Table":
    return steps.filter(steps["kept"].is_true() & steps["phase"].equals(phase))


def _slowest(of_rank: "Table") -> int:
    ranks = of_rank.group_by("rank")
    medians = ranks.with_columns(duration_s=ranks.median("duration_s")).sort("duration_s", "rank")
    return int(medians["rank"].values[-1])


def _skew(steps: "Table", world: WorldRecord) -> Skew | None:
    of_rank = _rank_blocks(steps, phases.ALONE)
    if world.world_size < 2 or not of_rank.height:
        return None
    ranks = of_rank.group_by("rank")
    rank = _slowest(of_rank)
    times: dict[int, float] = dict(ranks.with_columns(s=ranks.median("duration_s")).rows())
    return Skew(rank=rank, s=max(0.0, times[rank] - sum(times.values()) / len(times)))


def _data_wait_s(steps: "Table") -> float | None:
    longest_s: float | None = _kept(steps, phases.AS_IS).group_by("rank").mean("data_wait_s").max()
    return longest_s


def _data_path(run: Run, steps: "Table", phase: str) -> DataPath | None:
    """What loading the batches of one step costs, on the rank that waits longest for them.

    Where the batches came from a bucket, the process that loaded them knows how long it waited for the store; else it
    is told from outside, by the time in which it neither worked nor was ready to.
    """
    kept, batches = _kept(steps, phase), run.table("batches")
    workers = loader_workers(run)
    ranks = kept.group_by("rank")
    prepared = batches.filter(batches["phase"].equals(phase) & ~batches["cpu_s"].null)
    waits = ranks.with_columns(wait_s=ranks.mean("data_wait_s")).sort("wait_s")
    if not waits.height or not prepared.height:
        return None
    rank = int(waits["rank"].values[-1])
    prepared, kept = prepared.filter(prepared["rank"].equals(rank)), kept.filter(kept["rank"].equals(rank))
    totals = {name: float(prepared[name].sum()) for name in _TOTALLED}
    batches_per_step = _batches_per_step(kept, prepared)
    if not prepared.height or not batches_per_step:
        return None
    loaded = totals["samples"]
    samples = _samples_of(kept, prepared.height, batches_per_step) or loaded
    scale = batches_per_step / prepared.height
    wall, blocked = totals["wall_s"], totals["blocked_s"]
    loads = run.table("loads")
    loads = loads.filter(loads["phase"].equals(phase) & loads["rank"].equals(rank))
    if loads.height:
        waited_s = float(loads["network_s"].sum()) / float(loads["samples"].sum())
        blocked = min(wall, waited_s * loaded)
    return DataPath(
        rank=rank,
        work=LoaderWork(prepare_s=(wall - blocked) * scale, blocked_s=blocked * scale, workers=workers),
        cpu_s_per_sample=totals["cpu_s"] / samples if samples else 0.0,
        read_bytes_per_sample=totals["read_bytes"] / samples if samples else 0.0,
        samples=int(samples),
    )


def loader_workers(run: Run) -> int:
    """Loader workers of a rank as the loader is set up; of older records, as many as were started or seen."""
    if run.manifest.loader is not None:
        return run.manifest.loader.num_workers
    events, batches = run.table("events"), run.table("batches")
    details: Iterable[str | None] = events.filter(events["kind"].equals("worker_startup"))["detail"].to_list()
    started = [int(match[0]) for detail in details if detail and (match := re.match(r"\d+", detail))]
    seen: dict[int, set[int]] = {}
    for rank, worker in batches.filter(~batches["worker"].null).select("rank", "worker").rows():
        seen.setdefault(rank, set()).add(worker)
    return max([*map(len, seen.values()), *([median_high(started)] if started else [])], default=0)


def _batches_per_step(kept: "Table", prepared: "Table") -> float | None:
    """Batches of a step on one rank: as counted, or in older records by the samples of both."""
    if not kept["fetches"].null_count:
        return kept["fetches"].mean()
    per_step, per_batch = kept["samples"].mean(), prepared["samples"].mean()
    return per_step / per_batch if per_step and per_batch else None


def _samples_of(kept: "Table", batches: int, batches_per_step: float) -> float | None:
    """Samples in so many batches, as the training counts them: a batch of the loader may be a single item of it."""
    per_step = None if kept["samples"].null_count else kept["samples"].mean()
    return batches * per_step / batches_per_step if per_step else None
