"""A policy outside the simulator: tell it what happened, ask what to do. For whoever drives a real cluster.

    scheduler = Scheduler(cluster, policy, speed=speed)
    scheduler.submit(job, now_s)
    for action in scheduler.decide(now_s):
        ...carry it out; `scheduler.lost(job_id, now_s)` where it could not be...
    scheduler.finish(job_id, now_s)

Decisions are those of the simulator: the same compiled pass (`kernels/deciding.py`) over the same arrays. Time is the
caller's, in seconds from any origin that is not later than the first call.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stallwise.cluster.job import Job, faults
from stallwise.cluster.kernels.state import (
    BUSY,
    DEMAND,
    DONE,
    MOVE,
    N_ACTS,
    N_EXPIRED,
    N_FRESH,
    N_ORDER,
    RUNNING,
    SEQ,
    START,
    STOP,
    WAITING,
)
from stallwise.cluster.policy import Policy
from stallwise.cluster.rules import Costs, Kinds, book_of, desk_of, rules_of, space_of, tiers
from stallwise.cluster.speed import FullSpeed, Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError

_FEW_JOBS = 256
_DOWN = -2
"""Owner of a GPU that nobody may use."""
_WHAT: dict[int, Literal["start", "stop", "move"]] = {START: "start", STOP: "stop", MOVE: "move"}


@dataclass(frozen=True, slots=True)
class Action:
    """What to do with a job. `gpus` are numbers in the cluster's tree; empty for a stop."""

    what: Literal["start", "stop", "move"]
    job: str
    gpus: tuple[int, ...]


class Scheduler:
    """One cluster under one policy, in real time."""

    def __init__(
        self, cluster: Cluster, policy: Policy, *, speed: Speed | None = None, costs: Costs | None = None, seed: int = 0
    ) -> None:
        self.cluster, self.policy, self.seed = cluster, policy, seed
        self.speed: Speed = speed if speed is not None else FullSpeed()
        self.rules = rules_of(policy, costs or Costs(), cluster, self.speed, contention=False)
        self.jobs: list[Job] = []
        self.number: dict[str, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._sizes: dict[int, int] = {}
        self._slots = 0
        first = [Job(id="", arrival_s=0.0, gpus=1, work_s=1.0)] * _FEW_JOBS
        kinds = Kinds(np.zeros(_FEW_JOBS, dtype=np.int32), ())
        self.book = book_of(first, policy, FullSpeed(), Kinds(kinds.of, (first[0],)))
        self.space = space_of(cluster, 4 * cluster.gpus)
        self.desk = desk_of(self.book, cluster, policy, self.speed, kinds, seed=seed, series=False)

    def _make_room(self, gang: int) -> None:
        """Twice as much of whatever is full: rows of jobs, places in gangs."""
        rows = len(self.book)
        if len(self.jobs) == rows:
            self.book = np.concatenate([self.book, np.zeros_like(self.book)])
            double = {
                name: np.concatenate([getattr(self.desk, name), getattr(self.desk, name)])
                for name in ("order", "acts", "need", "victims", "heap_time", "heap_what")
            }
            self.desk = self.desk._replace(**double)
        while self._slots + gang > len(self.space.held):
            self.space = self.space._replace(held=np.concatenate([self.space.held, self.space.held]))

    def _enter_kind(self, job: Job) -> int:
        """The number of its kind; a new one is profiled once."""
        key = (self.speed.kind(job), job.gpus)
        if key not in self._kinds:
            row = tiers(self.cluster, self.speed, Kinds(np.zeros(1, dtype=np.int32), (job,)), self.policy)
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
        return self._sizes[gang]

    def submit(self, job: Job, now_s: float) -> None:
        """A job came. Its `work_s` may be a guess: only clairvoyant policies look at it."""
        found = faults(job, self.cluster.gpus)
        if job.id in self.number:
            found.append(f"a job {job.id!r} was submitted before")
        if found:
            raise InputError(f"The job cannot be scheduled: {'; '.join(found)}.")
        self._make_room(job.gpus)
        row = book_of([job], self.policy, self.speed, Kinds(np.zeros(1, dtype=np.int32), (job,)))
        index, count = len(self.jobs), self.desk.tally
        self.book[index] = row[0]
        book = self.book
        book["arrival"][index], book["asked"][index], book["state"][index] = now_s, now_s, WAITING
        book["kind"][index], book["size"][index] = self._enter_kind(job), self._enter_size(job.gpus)
        book["offset"][index], book["seq"][index] = self._slots, count[SEQ]
        self._slots += job.gpus
        self.jobs.append(job)
        self.number[job.id] = index
        self.desk.order[count[N_ORDER]] = index
        count[[N_ORDER, SEQ, N_FRESH]] += 1
        count[DEMAND] += job.gpus
        self.desk.queued[0, book["size"][index]] += 1

    def finish(self, job_id: str, now_s: float) -> None:
        """A job ended by itself; its GPUs are free."""
        from stallwise.cluster.kernels.deciding import vacate

        index = self._index(job_id)
        if self.book["state"][index] == DONE:
            return  # told twice
        if self.book["state"][index] == RUNNING:
            vacate(self.rules, self.book, self.space, self.desk, index, now_s, now_s)
        elif self.book["state"][index] == WAITING:
            self.desk.queued[0, self.book["size"][index]] -= 1
        self.book["state"][index] = DONE
        self.book["finish"][index] = now_s
        self.desk.tally[DEMAND] -= self.book["gang"][index]

    def lost(self, job_id: str, now_s: float) -> None:
        """A running job has no GPUs any more although nobody decided so (a failed node, a start that failed)."""
        from stallwise.cluster.kernels.deciding import stop

        index = self._index(job_id)
        if self.book["state"][index] == RUNNING:
            self.desk.tally[N_ACTS] = 0
            stop(self.rules, self.book, self.space, self.desk, index, now_s)

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
        from stallwise.cluster.kernels.deciding import decide, tick

        actions: list[Action] = []
        tick(self.rules, self.book, self.space, self.desk, now_s)
        actions += self._actions()
        decide(self.rules, self.book, self.space, self.desk, now_s)
        actions += self._actions()
        for action in actions:
            if action.what != "stop":
                self._settle(self.number[action.job], now_s)
        self._renew(now_s)
        return actions

    def _actions(self) -> list[Action]:
        """The log as actions. A job stopped and started in one pass has both, in order."""
        out = []
        for what, index in self.desk.acts[: self.desk.tally[N_ACTS]]:
            gpus = () if what == STOP else self.gpus_of(self.jobs[index].id)
            out.append(Action(_WHAT[int(what)], self.jobs[index].id, gpus))
        return out

    def _settle(self, index: int, now_s: float) -> None:
        """Speed and lease of a job that just got GPUs."""
        if self.book["state"][index] != RUNNING:
            return
        start = int(self.book["offset"][index])
        held = self.space.held[start : start + int(self.book["gang"][index])]
        rate = self.speed.rate(self.jobs[index], Shape(gpus=len(held), spans=self.cluster.spans(held)))
        self.book["base"][index] = self.book["rate"][index] = rate
        self.book["lease"][index] = max(now_s, self.book["since"][index]) + self.rules["lease"]

    def _renew(self, now_s: float) -> None:
        """Leases that ran out and that nobody took go on."""
        over = (self.book["state"] == RUNNING) & (self.book["lease"] <= now_s)
        self.book["lease"][over] = now_s + self.rules["lease"]
        self.desk.tally[N_EXPIRED] = 0

    def next_s(self) -> float:
        """When to ask again if nothing else happens: the end of a lease or of somebody's patience; may be never."""
        leases = self.book["lease"][self.book["state"] == RUNNING]
        ends = float(leases.min()) if len(leases) and self.policy.preemption.kind == "lease" else float("inf")
        return min(ends, float(self.desk.clock[1])) if self.policy.patience.wakes else ends

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
