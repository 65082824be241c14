"""Jobs through a cluster under a policy, event by event."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.cluster import job as jobs_module
from stallwise.cluster.job import Job
from stallwise.cluster.kernels.state import N_DONE, N_EVENTS, N_SERIES, Desk, Record, Rows, Space
from stallwise.cluster.outcome import Floats, Outcome, Series
from stallwise.cluster.policy import Policy
from stallwise.cluster.rules import Costs, Kinds, book_of, desk_of, kinds_of, rules_of, space_of
from stallwise.cluster.shapes import tell_speeds
from stallwise.cluster.speed import FullSpeed, Speed, on_its_kind
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

__all__ = ["Costs", "View", "simulate"]

_FINISHED, _NEED_SPEED, _NEED_ROOM, _PAUSE, _STUCK = range(5)
_EVENTS_BETWEEN_PROGRESS = 5_000


@dataclass(frozen=True, slots=True)
class View:
    """The simulation between two events, for those who check it. Arrays are the live ones: look, do not touch."""

    time_s: float
    owner: npt.NDArray[np.int64]
    """Job on each GPU, -1 where it is free. Numbers are places in the order of arrival."""
    book: Rows
    space: Space
    jobs: tuple[Job, ...]

    def gpus_of(self, job: int) -> npt.NDArray[np.int64]:
        """What a running job holds."""
        start = int(self.book["offset"][job])
        return self.space.held[start : start + int(self.book["gang"][job])]


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    *,
    speed: Speed | None = None,
    costs: Costs | None = None,
    contention: bool = False,
    seed: int = 0,
    watch: Callable[[View], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    series: bool = True,
) -> Outcome:
    """Run every job to its end. The same arguments give the same outcome to the last bit.

    `contention` slows jobs that use the same link out of a machine or rack. `watch` sees every event and is slow.
    """
    jobs_module.check(jobs, cluster.gpus)
    model: Speed = speed if speed is not None else FullSpeed()
    if policy.rounds is not None:
        from stallwise.cluster.rounds.simulator import simulate_rounds

        return simulate_rounds(
            jobs, cluster, policy.name, policy.rounds, model, costs or Costs(), contention, seed, progress
        )
    _one_kind(cluster, policy)
    model = on_its_kind(model, cluster)
    turn = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    ordered = tuple(jobs[index] for index in turn)
    kinds = kinds_of(ordered, model)
    book = book_of(ordered, policy, model, kinds)
    run = _Run(
        jobs=ordered,
        cluster=cluster,
        speed=model,
        kinds=kinds,
        rules=rules_of(policy, costs or Costs(), cluster, model, contention=contention),
        book=book,
        space=space_of(cluster, int(book["gang"].sum())),
        desk=desk_of(book, cluster, policy, model, kinds, seed=seed, series=series),
    )
    run.to_the_end(watch, progress)
    return run.outcome(jobs, turn, policy.name)


def _one_kind(cluster: Cluster, policy: Policy) -> None:
    if len(set(cluster.kinds)) > 1:
        raise InputError(
            f"{policy.name} takes all GPUs to be alike, but the cluster has {', '.join(dict.fromkeys(cluster.kinds))}. "
            "Take a policy that knows kinds of GPUs (gavel, themis, sia), or a cluster of one kind."
        )


@dataclass(slots=True)
class _Run:
    """One simulation under way; Python's half of it."""

    jobs: tuple[Job, ...]
    cluster: Cluster
    speed: Speed
    kinds: Kinds
    rules: Record
    book: Rows
    space: Space
    desk: Desk

    def to_the_end(self, watch: Callable[[View], None] | None, progress: Callable[[int, int], None] | None) -> None:
        from stallwise.cluster.kernels.running import run

        steps = 1 if watch is not None else _EVENTS_BETWEEN_PROGRESS if progress is not None else 1 << 62
        answer = _PAUSE
        while answer != _FINISHED:
            # A watcher sees the event that needed a speed before the next one happens.
            most = 0 if watch is not None and answer == _NEED_SPEED else steps
            answer = run(self.rules, self.book, self.space, self.desk, most)
            if answer == _NEED_SPEED:
                self.desk = tell_speeds(
                    self.cluster, self.speed, self.jobs, self.rules, self.book, self.space, self.desk
                )
            elif answer == _NEED_ROOM:
                self.desk = _roomier(self.desk)
            elif answer == _STUCK:
                raise StallwiseError(
                    f"The policy starts no waiting job although the cluster is idle at {self.desk.clock[0]:.0f} s. "
                    "Its patience or placement rules can never be met on this cluster."
                )
            if watch is not None and answer != _NEED_SPEED:
                watch(View(float(self.desk.clock[0]), self.space.owner, self.book, self.space, self.jobs))
            if progress is not None:
                progress(int(self.desk.tally[N_DONE]), len(self.jobs))

    def outcome(self, jobs: Sequence[Job], turn: list[int], policy: str) -> Outcome:
        back = np.argsort(np.array(turn), kind="stable")
        book = self.book
        rows = self.desk.series[: self.desk.tally[N_SERIES]]
        run_s, over_s = book["ran"][back], book["over"][back]
        # A shrunk job runs longer on fewer GPUs: what it lost is counted in seconds of its whole gang.
        held_s = run_s - (book["thin"] / book["full"])[back]
        shrunk = bool(self.rules["deflate"] < 1)
        return Outcome(
            jobs=tuple(jobs),
            policy=policy,
            cluster_gpus=self.cluster.gpus,
            first_start_s=book["first"][back],
            finish_s=book["finish"][back],
            run_s=run_s,
            comm_s=_without_noise(held_s - over_s - book["work"][back], held_s if shrunk else None),
            overhead_s=over_s,
            preemptions=book["stops"][back].astype(np.int64),
            migrations=book["moves"][back].astype(np.int64),
            widest=book["widest"][back].astype(np.int64),
            series=Series.of(rows),
            events=int(self.desk.tally[N_EVENTS]),
            held_gpu_s=held_s * book["full"][back] if shrunk else None,
            deflations=book["shrinks"][back].astype(np.int64) if shrunk else None,
        )


def _without_noise(lost_s: Floats, held_s: Floats | None) -> Floats:
    """Time lost; of jobs that changed their gangs not what many sums leave of nothing."""
    if held_s is not None:
        lost_s = np.where(lost_s > 1e-9 * held_s, lost_s, 0.0)
    return np.maximum(0.0, lost_s)


def _roomier(desk: Desk) -> Desk:
    """Twice the room for the series, or for events, whichever is nearly full."""
    if desk.tally[N_SERIES] >= len(desk.series):
        return desk._replace(series=np.concatenate([desk.series, np.zeros_like(desk.series)]))
    return desk._replace(
        heap_time=np.concatenate([desk.heap_time, np.zeros_like(desk.heap_time)]),
        heap_what=np.concatenate([desk.heap_what, np.zeros_like(desk.heap_what)]),
    )
