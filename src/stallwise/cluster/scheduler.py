"""A policy outside the simulator: tell it what happened, ask what to do. For whoever drives a real cluster.

    scheduler = Scheduler(cluster, policy, speed=speed)
    scheduler.submit(job, now_s)
    for action in scheduler.decide(now_s):
        ...carry it out; `scheduler.lost(job_id, now_s)` where it could not be...
    scheduler.finish(job_id, now_s)

It is the simulator's own moment (`kernels/running.py`) over the same arrays: leases, queues, promotion, admission and
what is remembered of ended jobs are not written twice. Only the ends of jobs are told instead of computed. Time is the
caller's, in seconds from any origin that is not later than the first call.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stallwise.cluster.job import Job, faults
from stallwise.cluster.kernels.state import (
    BUSY,
    DONE,
    MOVE,
    N_ACTS,
    N_HEAP,
    NOW_AT,
    OUTSIDE,
    RUNNING,
    START,
    STOP,
)
from stallwise.cluster.policy import Policy
from stallwise.cluster.rules import Costs, Kinds, book_of, desk_of, rules_of, space_of, tiers
from stallwise.cluster.shapes import tell_speeds
from stallwise.cluster.speed import FullSpeed, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError

_FEW_JOBS = 256
_DOWN = -2
"""Owner of a GPU that nobody may use."""
_WHAT: dict[int, Literal["start", "stop", "move"]] = {int(START): "start", int(STOP): "stop", int(MOVE): "move"}
_NEED_SPEED = 1


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with a job. `gpus` are numbers in the cluster's tree; empty for a stop."""

    what: Literal["start", "stop", "move"]
    job: str
    gpus: tuple[int, ...]


class Scheduler:
    """One cluster under one policy, in real time."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        speed: Speed | None = None,
        costs: Costs | None = None,
        contention: bool = False,
        seed: int = 0,
    ) -> None:
        if policy.rounds is not None:
            raise InputError(
                f"{policy.name} computes allocations in rounds, which only `stallwise simulate` does. Choose a policy "
                "that decides at every event, such as patient or tiresias."
            )
        if policy.shrinking is not None:
            raise InputError(
                f"{policy.name} shrinks running jobs, which only the simulator can do. Leave out deflate=."
            )
        self.cluster, self.policy, self.seed = cluster, policy, seed
        self.speed: Speed = speed if speed is not None else FullSpeed()
        self.rules = rules_of(policy, costs or Costs(), cluster, self.speed, contention=contention, live=True)
        self.jobs: list[Job] = []
        self.number: dict[str, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._sizes: dict[int, int] = {}
        self._slots = 0
        first = [Job(id="", arrival_s=0.0, gpus=1, work_s=1.0)] * _FEW_JOBS
        kinds = Kinds(np.zeros(_FEW_JOBS, dtype=np.int64), ())
        self.book = book_of(first, policy, FullSpeed(), Kinds(kinds.of, (first[0],)))
        self.book["arrival"] = np.inf  # rows nobody came for yet
        self.space = space_of(cluster, 4 * cluster.gpus)
        self.desk = desk_of(self.book, cluster, policy, self.speed, kinds, seed=seed, series=False)

    def _make_room(self, gang: int) -> None:
        """Twice as much of whatever is full: rows of jobs, places in gangs."""
        rows = len(self.book)
        if len(self.jobs) == rows:
            more = np.zeros_like(self.book)
            more["arrival"] = np.inf
            self.book = np.concatenate([self.book, more])
            self._double("order", "acts", "need", "victims")
        while self._slots + gang > len(self.space.held):
            self.space = self.space._replace(held=np.concatenate([self.space.held, self.space.held]))

    def _double(self, *names: str) -> None:
        arrays = {name: np.concatenate([getattr(self.desk, name)] * 2) for name in names}
        self.desk = self.desk._replace(**arrays)

    def _enter_kind(self, job: Job) -> int:
        """The number of its kind; a new one is profiled once."""
        key = (self.speed.kind(job), job.gpus)
        if key not in self._kinds:
            row = tiers(self.cluster, self.speed, Kinds(np.zeros(1, dtype=np.int64), (job,)), self.policy)
            tier = np.concatenate([self.desk.tier, row]) if self._kinds else row
            self.desk = self.desk._replace(tier=tier)
            self._kinds[key] = len(self._kinds)
        return self._kinds[key]

    def _enter_size(self, gang: int) -> int:
        """The number of its window of past waits."""
        if gang not in self._sizes:
            if self._sizes:
                wide = {
                    name: np.concatenate(
                        [getattr(self.desk, name), np.zeros_like(getattr(self.desk, name)[:, :1])], axis=1
                    )
                    for name in ("wait", "wait_time", "waits", "queued")
                }
                self.desk = self.desk._replace(**wide)
            self._sizes[gang] = len(self._sizes)
            self.desk.queued[1, self._sizes[gang]] = gang
        return self._sizes[gang]

    def submit(self, job: Job, now_s: float, *, admitted: bool = False) -> None:
        """A job came. Its `work_s` may be a guess: only clairvoyant policies look at it.

        The next `decide` lets it into the queue if admission allows; `admitted` says that it was in already, for a
        scheduler that begins in the middle.
        """
        from stallwise.cluster.kernels.happening import admit

        found = faults(job, self.cluster.gpus)
        if job.id in self.number:
            found.append(f"a job {job.id!r} was submitted before")
        if found:
            raise InputError(f"The job cannot be scheduled: {'; '.join(found)}.")
        self._make_room(job.gpus)
        row = book_of([job], self.policy, self.speed, Kinds(np.zeros(1, dtype=np.int64), (job,)))
        index, book = len(self.jobs), self.book
        book[index] = row[0]
        book["arrival"][index], book["asked"][index] = now_s, now_s
        book["kind"][index], book["size"][index] = self._enter_kind(job), self._enter_size(job.gpus)
        book["offset"][index] = self._slots
        self._slots += job.gpus
        self.jobs.append(job)
        self.number[job.id] = index
        if admitted:
            admit(book, self.desk, index)

    def resume(self, job_id: str) -> None:
        """Plan what time brings to a job whose row was written by hand (`resume.py`): the ends of its lease and queue.

        Call it after its lease, queue and times are in the book.
        """
        from stallwise.cluster.kernels.running import resume

        resume(self.rules, self.book, self.desk, self._index(job_id))

    def finish(self, job_id: str, now_s: float) -> None:
        """A job ended by itself, or is not wanted any more; its GPUs are free."""
        from stallwise.cluster.kernels.happening import end

        index = self._index(job_id)
        if self.book["state"][index] != DONE:  # else told twice
            end(self.rules, self.book, self.space, self.desk, index, float(now_s))

    def lost(self, job_id: str, now_s: float) -> None:
        """A running job has no GPUs any more although nobody decided so (a failed node, a start that failed)."""
        from stallwise.cluster.kernels.happening import lose

        index = self._index(job_id)
        if self.book["state"][index] == RUNNING:
            lose(self.rules, self.book, self.space, self.desk, index, float(now_s))

    def set_down(self, gpus: tuple[int, ...], *, down: bool) -> None:
        """GPUs nobody may use, or may again. Those of running jobs are not touched: call `lost` first."""
        from stallwise.cluster.kernels.space import recount

        for gpu in gpus:
            if down and self.space.owner[gpu] == -1:
                self.space.owner[gpu] = _DOWN
                recount(self.space, gpu, -1, -1)
            elif not down and self.space.owner[gpu] == _DOWN:
                self.space.owner[gpu] = -1
                recount(self.space, gpu, 1, 1)

    def decide(self, now_s: float) -> list[Action]:
        """Who stops, starts and moves now. Stops come before the starts that need their GPUs."""
        from stallwise.cluster.kernels.running import run

        while self.desk.tally[N_HEAP] + 4 * len(self.jobs) + 64 > len(self.desk.heap_time):
            self._double("heap_time", "heap_what")
        self.desk.clock[NOW_AT] = now_s
        moments = 1
        while run(self.rules, self.book, self.space, self.desk, moments) == _NEED_SPEED:
            self.desk = tell_speeds(self.cluster, self.speed, self.jobs, self.rules, self.book, self.space, self.desk)
            moments = 0  # it has passed; only speeds were missing
        return self._actions()

    def _actions(self) -> list[Action]:
        """The log as actions. A job stopped and started in one pass has both, in order."""
        out = []
        for what, index in self.desk.acts[: self.desk.tally[N_ACTS]]:
            gpus = () if what == STOP else self.gpus_of(self.jobs[index].id)
            out.append(Action(_WHAT[int(what)], self.jobs[index].id, gpus))
        return out

    def next_s(self) -> float:
        """When to ask again if nothing else happens: a lease, a queue or somebody's patience ends; may be never."""
        from stallwise.cluster.kernels.running import coming

        return float(coming(self.book, self.desk))

    def waits_outside(self, job_id: str) -> bool:
        """Whether a job was submitted and not yet let into the queue."""
        return bool(self.book["state"][self._index(job_id)] == OUTSIDE)

    def gpus_of(self, job_id: str) -> tuple[int, ...]:
        """What a job holds; empty where it does not run."""
        index = self._index(job_id)
        if self.book["state"][index] != RUNNING:
            return ()
        start = int(self.book["offset"][index])
        return tuple(int(gpu) for gpu in self.space.held[start : start + int(self.book["gang"][index])])

    @property
    def busy_gpus(self) -> int:
        """GPUs in use."""
        return int(self.desk.tally[BUSY])

    def _index(self, job_id: str) -> int:
        if job_id not in self.number:
            raise InputError(f"No job {job_id!r} was submitted to this scheduler.")
        return self.number[job_id]
