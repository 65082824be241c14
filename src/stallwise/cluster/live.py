"""A policy outside the simulator: report what happened, ask for decisions. For programs that drive a real cluster.

    scheduler = Scheduler(cluster, policy, speed=speed)
    scheduler.submit(job, now_s)
    for action in scheduler.decide(now_s):
        ...carry it out; `scheduler.lost(job_id, now_s)` where it could not be...
    scheduler.finish(job_id, now_s)

It is the simulator's own moment (`engine/_loop.py`) over the same arrays: leases, queues, promotion, admission and the
sample of ended jobs are not written twice. Only the ends of jobs are reported instead of computed. Time is the
caller's, in seconds from any origin that is not later than the first call.

A program that drives a real cluster can be stopped at any moment: `resumed` makes a scheduler from what the jobs have
behind them and where they are, and decisions go on as if nothing had happened.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from stallwise.cluster.engine._answers import order_jobs, tell_speeds
from stallwise.cluster.engine.build import RestartCosts, SpeedKinds, params_of, rows_of, state_of, tiers, topology_of
from stallwise.cluster.engine.state import (
    BUSY,
    DONE,
    FINISHED,
    HELD,
    MOVE,
    N_ACTS,
    N_HEAP,
    N_RUNNING,
    NEED_ORDER,
    NOW_AT,
    OUTSIDE,
    RUNNING,
    START,
    STOP,
)
from stallwise.cluster.job import Job, job_faults
from stallwise.cluster.policies._tuner import AutoTuner
from stallwise.cluster.policies._user import UserOrder, UserPolicy
from stallwise.cluster.policies.base import Policy
from stallwise.cluster.speed.base import FullSpeed, Shape, Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

_FEW_JOBS = 256
_DOWN = -2
"""Owner of a GPU that is out of service."""
_WHAT: dict[int, Literal["start", "stop", "move"]] = {int(START): "start", int(STOP): "stop", int(MOVE): "move"}


@lru_cache(maxsize=16)
def _live_order(user: UserPolicy) -> UserOrder:
    """Create the object that decides; kept, since a scheduler is made anew for every decision (`resumed`)."""
    return user.order()


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
        costs: RestartCosts | None = None,
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
        self.params = params_of(policy, costs or RestartCosts(), cluster, self.speed, contention=contention, live=True)
        self.jobs: list[Job] = []
        self.number: dict[str, int] = {}
        self._kinds: dict[Hashable, int] = {}
        self._sizes: dict[int, int] = {}
        self._slots = 0
        first = [Job(id="", arrival_s=0.0, gpus=1, work_s=1.0)] * _FEW_JOBS
        kinds = SpeedKinds(np.zeros(_FEW_JOBS, dtype=np.int64), ())
        self.rows = rows_of(first, policy, FullSpeed(), SpeedKinds(kinds.of, (first[0],)))
        self.rows["arrival"] = np.inf  # rows without a job yet
        self.topology = topology_of(cluster, 4 * cluster.gpus)
        self.state = state_of(self.rows, cluster, policy, self.speed, kinds, seed=seed, series=False)

    def _make_room(self, gang: int) -> None:
        """Double whatever is full: rows of jobs, GPUs of gangs."""
        rows = len(self.rows)
        if len(self.jobs) == rows:
            more = np.zeros_like(self.rows)
            more["arrival"] = np.inf
            self.rows = np.concatenate([self.rows, more])
            self._double("order", "acts", "need", "victims")
        while self._slots + gang > len(self.topology.gang_gpus):
            self.topology = self.topology._replace(
                gang_gpus=np.concatenate([self.topology.gang_gpus, self.topology.gang_gpus])
            )

    def _double(self, *names: str) -> None:
        arrays = {name: np.concatenate([getattr(self.state, name)] * 2) for name in names}
        self.state = self.state._replace(**arrays)

    def _enter_kind(self, job: Job) -> int:
        """Return the number of the job's kind; a new kind is profiled once."""
        key = (self.speed.kind(job), job.gpus)
        if key not in self._kinds:
            row = tiers(self.cluster, self.speed, SpeedKinds(np.zeros(1, dtype=np.int64), (job,)), self.policy)
            tier = np.concatenate([self.state.tier, row]) if self._kinds else row
            self.state = self.state._replace(tier=tier)
            self._kinds[key] = len(self._kinds)
        return self._kinds[key]

    def _enter_size(self, gang: int) -> int:
        """Return the number of the window of past waits of a gang size."""
        if gang not in self._sizes:
            if self._sizes:
                wide = {
                    name: np.concatenate(
                        [getattr(self.state, name), np.zeros_like(getattr(self.state, name)[:, :1])], axis=1
                    )
                    for name in ("wait", "wait_time", "waits", "queued")
                }
                self.state = self.state._replace(**wide)
            self._sizes[gang] = len(self._sizes)
            self.state.queued[1, self._sizes[gang]] = gang
        return self._sizes[gang]

    def submit(self, job: Job, now_s: float, *, admitted: bool = False) -> None:
        """Report a job that arrived. Its `work_s` may be a guess: only clairvoyant policies read it.

        The next `decide` lets it into the queue if admission allows; `admitted` says that it was in already, for a
        scheduler that begins in the middle.
        """
        from stallwise.cluster.engine.events import admit

        faults = job_faults(job, self.cluster.gpus)
        if job.id in self.number:
            faults.append(f"a job {job.id!r} was submitted before")
        if faults:
            raise InputError(f"The job cannot be scheduled: {'; '.join(faults)}.")
        self._make_room(job.gpus)
        row = rows_of([job], self.policy, self.speed, SpeedKinds(np.zeros(1, dtype=np.int64), (job,)))
        index, rows = len(self.jobs), self.rows
        rows[index] = row[0]
        rows["arrival"][index], rows["waiting_since"][index] = now_s, now_s
        rows["kind"][index], rows["size"][index] = self._enter_kind(job), self._enter_size(job.gpus)
        rows["offset"][index] = self._slots
        self._slots += job.gpus
        self.jobs.append(job)
        self.number[job.id] = index
        if admitted:
            admit(rows, self.state, index)

    def resume(self, job_id: str) -> None:
        """Plan the end of lease and queue of a job whose row was written by hand (`resumed`).

        Call it after its lease, queue and times are in its row.
        """
        from stallwise.cluster.engine._loop import resume

        resume(self.params, self.rows, self.state, self._index(job_id))

    def finish(self, job_id: str, now_s: float) -> None:
        """Report a job that ended or was withdrawn; its GPUs are free."""
        from stallwise.cluster.engine.events import end

        index = self._index(job_id)
        if self.rows["state"][index] != DONE:  # else reported twice
            end(self.params, self.rows, self.topology, self.state, index, float(now_s))

    def lost(self, job_id: str, now_s: float) -> None:
        """Report a running job that lost its GPUs without a decision (a failed node, a start that failed)."""
        from stallwise.cluster.engine.events import lose

        index = self._index(job_id)
        if self.rows["state"][index] == RUNNING:
            lose(self.params, self.rows, self.topology, self.state, index, float(now_s))

    def set_down(self, gpus: tuple[int, ...], *, down: bool) -> None:
        """Take GPUs out of service, or back. Those of running jobs are not touched: call `lost` first."""
        from stallwise.cluster.engine._topology import recount

        for gpu in gpus:
            if down and self.topology.owner[gpu] == -1:
                self.topology.owner[gpu] = _DOWN
                recount(self.topology, gpu, -1, -1)
            elif not down and self.topology.owner[gpu] == _DOWN:
                self.topology.owner[gpu] = -1
                recount(self.topology, gpu, 1, 1)

    def decide(self, now_s: float) -> list[Action]:
        """Decide which jobs stop, start and move now. Stops come before the starts that need their GPUs."""
        from stallwise.cluster.engine._loop import run

        while self.state.tally[N_HEAP] + 4 * len(self.jobs) + 64 > len(self.state.heap_time):
            self._double("heap_time", "heap_what")
        self.state.clock[NOW_AT] = now_s
        moments = 1
        while (code := run(self.params, self.rows, self.topology, self.state, moments)) != FINISHED:
            if code == NEED_ORDER:
                order_jobs(self._order(), self.jobs, self.rows, self.topology, self.state)
            else:
                self.state = tell_speeds(
                    self.cluster, self.speed, self.jobs, self.params, self.rows, self.topology, self.state
                )
            moments = 0  # this one is under way; only an answer was missing
        return self._actions()

    def _order(self) -> UserOrder:
        """Return the user's policy, the same object for every scheduler made from this policy."""
        user = self.policy.user
        if user is None:
            raise StallwiseError(f"{self.policy.name} orders jobs as a user's class says, but has none.")
        return _live_order(user)

    def _actions(self) -> list[Action]:
        """Return the log as actions. A job stopped and started in one pass has both, in order."""
        out = []
        for what, index in self.state.acts[: self.state.tally[N_ACTS]]:
            gpus = () if what == STOP else self.gpus_of(self.jobs[index].id)
            out.append(Action(_WHAT[int(what)], self.jobs[index].id, gpus))
        return out

    def next_s(self) -> float:
        """Return when to decide again if nothing else happens: a lease, a queue or a patience ends; may be infinite."""
        from stallwise.cluster.engine._loop import coming

        return float(coming(self.rows, self.state))

    def waits_outside(self, job_id: str) -> bool:
        """Whether a job was submitted and not yet let into the queue."""
        return bool(self.rows["state"][self._index(job_id)] == OUTSIDE)

    def gpus_of(self, job_id: str) -> tuple[int, ...]:
        """Return the GPUs of a job; empty where it does not run."""
        index = self._index(job_id)
        if self.rows["state"][index] != RUNNING:
            return ()
        start = int(self.rows["offset"][index])
        return tuple(int(gpu) for gpu in self.topology.gang_gpus[start : start + int(self.rows["gang"][index])])

    @property
    def busy_gpus(self) -> int:
        """Number of GPUs in use."""
        return int(self.state.tally[BUSY])

    def _index(self, job_id: str) -> int:
        if job_id not in self.number:
            raise InputError(f"No job {job_id!r} was submitted to this scheduler.")
        return self.number[job_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStanding:
    """A job with its history, for a scheduler that begins in the middle."""

    job: Job
    waiting_since_s: float
    """When it last began to wait."""
    waited_s: float = 0.0
    """Waited before that and kept (policies whose patience survives a preemption)."""
    ran_s: float = 0.0
    """With GPUs, before `granted_s` where it runs."""
    done_s: float = 0.0
    """Work done in that time, in seconds at full speed."""
    first_s: float | None = None
    gpus: tuple[int, ...] = ()
    """Where it runs; empty: it waits."""
    granted_s: float = 0.0
    lease_s: float = math.inf
    """When its lease ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastWait:
    """How long a job of `gang` GPUs waited for a machine or a rack."""

    gang: int
    level: str
    """`machine` or `rack`."""
    time_s: float
    wait_s: float


def resumed(
    cluster: Cluster,
    policy: Policy,
    standings: Sequence[JobStanding],
    *,
    speed: Speed | None = None,
    costs: RestartCosts | None = None,
    waits: Iterable[PastWait] = (),
    down: Sequence[int] = (),
) -> Scheduler:
    """Create a scheduler with these jobs, in this order of arrival; `down` GPUs are out of service."""
    scheduler = Scheduler(cluster, policy, speed=speed, costs=costs)
    for standing in standings:
        scheduler.submit(standing.job, standing.waiting_since_s, admitted=True)
        _remember(scheduler, len(scheduler.jobs) - 1, standing)
    for index, standing in enumerate(standings):
        if standing.gpus:
            _seat(scheduler, index, standing)
        scheduler.resume(standing.job.id)
    scheduler.set_down(tuple(down), down=True)
    _note(scheduler, waits)
    return scheduler


def _remember(scheduler: Scheduler, index: int, standing: JobStanding) -> None:
    rows = scheduler.rows
    rows["arrival"][index] = standing.job.arrival_s
    rows["waited"][index], rows["ran"][index] = standing.waited_s, standing.ran_s
    # A declared length is a guess; a job that outlives it is about to end for ever.
    rows["left"][index] = max(standing.job.work_s - standing.done_s, 1.0)
    rows["first"][index] = -1.0 if standing.first_s is None else standing.first_s
    limits = scheduler.state.limits
    rows["queue"][index] = np.searchsorted(limits, standing.ran_s * standing.job.gpus, side="right")


def _seat(scheduler: Scheduler, index: int, standing: JobStanding) -> None:
    """Enter a running job on its GPUs."""
    from stallwise.cluster.engine._topology import recount

    rows, topology, state = scheduler.rows, scheduler.topology, scheduler.state
    start, gang = int(rows["offset"][index]), len(standing.gpus)
    # Domains are counted along them: in order.
    for slot, gpu in enumerate(sorted(standing.gpus)):
        topology.owner[gpu] = index
        topology.gang_gpus[start + slot] = gpu
        recount(topology, gpu, -1, -1)
    shape = Shape(gpus=gang, spans=scheduler.cluster.spans(np.array(standing.gpus, dtype=np.int32)))
    rate = scheduler.speed.rate(standing.job, shape)
    for name, value in (
        ("state", RUNNING),
        ("began", standing.granted_s),
        ("since", standing.granted_s),
        ("granted", standing.granted_s),
        ("lease", standing.lease_s),
        ("rate", rate),
        ("base", rate),
    ):
        rows[name][index] = value
    state.tally[[BUSY, HELD]] += gang
    state.tally[N_RUNNING] += 1
    state.queued[0, rows["size"][index]] -= 1


def _note(scheduler: Scheduler, waits: Iterable[PastWait]) -> None:
    """Enter past waits into the tuner's windows, oldest first."""
    from stallwise.cluster.engine._queue import MACHINE, RACK, note_wait

    sizes = {int(row["gang"]): int(row["size"]) for row in scheduler.rows[: len(scheduler.jobs)]}
    lease = float(scheduler.params["lease"])
    for wait in waits:
        if wait.gang in sizes:
            tier = MACHINE if wait.level == "machine" else RACK
            note_wait(scheduler.params, scheduler.state, sizes[wait.gang], tier, wait.time_s, wait.wait_s / lease)


def patience_s(scheduler: Scheduler, job_id: str, level: int, waits: Iterable[PastWait] = ()) -> float:
    """Return how long at most, from when it began to wait, a job declines GPUs no tighter than `level`.

    Where a gang may land ragged or packed the longer of the two counts.
    """
    index, wait, params = scheduler.number[job_id], scheduler.policy.patience, scheduler.params
    gang, lease = int(scheduler.rows["gang"][index]), float(params["lease"])
    machine, largest = int(params["machine"]), scheduler.topology.largest
    if level <= machine or not scheduler.policy.placement.localities:
        return 0.0
    if wait.kind == "sensitivity":
        levels = len(scheduler.cluster.levels) + 1
        tier = scheduler.state.tier[scheduler.rows["kind"][index]]
        best = tier[next(at for at in range(levels) if largest[at] >= gang)]
        loss = max(best / tier[level], best / tier[levels + level]) - 1.0
        return float(min(wait.cap_s, wait.factor * lease * max(0.0, loss)))
    if wait.kind == "none" or gang > largest[level - 1]:
        return 0.0
    return lease * _timer_leases(scheduler.policy, gang, lease, waits, machine=level == machine + 1)


def _timer_leases(policy: Policy, gang: int, lease_s: float, waits: Iterable[PastWait], *, machine: bool) -> float:
    wait = policy.patience
    if wait.kind == "timers":
        return wait.machine_leases if machine else wait.rack_leases
    tuner = AutoTuner(wait.tuning)
    for past in waits:
        if past.gang == gang:
            tuner.add(past.level, past.time_s / lease_s, past.wait_s / lease_s)
    return tuner.timers_leases()[0 if machine else 1]
