"""Policies that serve deadlines, for jobs that grow and shrink: ElasticFlow (Gu et al., ASPLOS 2023), earliest first.

Time to a deadline is shared out by *minimum satisfactory shares*: jobs in order of their deadlines, each the fewest
GPUs with which it is done in time on what earlier ones leave free, now and later (Algorithm 1). A job is admitted only
where it and all that were admitted before are done in time; one that is not runs on GPUs that nobody else wants. GPUs
that no share needs now go one step at a time where they save most (Algorithm 2): the GPU-seconds that a job will not
need later per GPU-second that it has more now, jobs that would wait otherwise first.

`edf` admits everybody and gives each job, earliest deadline first, the most GPUs that make it faster.

What is decided holds until a job comes or ends, or a share changes, at least for a round. A job that gets other GPUs
than before makes no progress for the restart time. What differs from the released scheduler: arrivals are admitted one
by one (there all of a round or none); plans fill time from now on, not from the deadline backwards; a job that is late
because of restarts does not keep others out.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.engine._rounds import RoundLedger
from stallwise.cluster.engine.build import RestartCosts
from stallwise.cluster.engine.compile import compiled, inner
from stallwise.cluster.job import Job
from stallwise.cluster.policies._elastic import MachinePool, Place, parts_of, place_all
from stallwise.cluster.policies._gangs import GangPlacer, kinds_of
from stallwise.cluster.policies.base import Rounds
from stallwise.cluster.speed._tables import Scaling
from stallwise.cluster.speed.base import Speed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_TINY_S = 1e-6


@inner
def _step(counts, job, limit):  # type: ignore[no-untyped-def]
    """Return which of a job's numbers of GPUs is the largest within a limit; -1 where none is."""
    best = -1
    for at in range(counts.shape[1]):
        if counts[job, at] == 0 or counts[job, at] > limit:
            break
        best = at
    return best


@inner
def _end(job, limit, until, left, counts, speeds, edge, free, used):  # type: ignore[no-untyped-def]
    """Return when a job is done that has at most `limit` GPUs of what is free; infinite where that is after `until`."""
    work = left[job]
    for at in range(used):
        if edge[at] >= until:
            return math.inf
        step = _step(counts, job, min(limit, free[at]))
        if step < 0:
            continue
        rate = speeds[job, step]
        if at + 1 == used or rate * (edge[at + 1] - edge[at]) >= work:
            end = edge[at] + work / rate
            return end if end <= until else math.inf
        work -= rate * (edge[at + 1] - edge[at])
    return math.inf


@inner
def _cut(edge, free, used, at_s):  # type: ignore[no-untyped-def]
    """Make a moment an edge of the free GPUs over time; return how many stretches there are now."""
    place = used
    while edge[place - 1] > at_s:
        place -= 1
    if edge[place - 1] == at_s:
        return used
    for at in range(used, place, -1):
        edge[at], free[at] = edge[at - 1], free[at - 1]
    edge[place], free[place] = at_s, free[place - 1]
    return used + 1


@compiled
def plan(order, left, room, counts, speeds, gpus, round_s, edge, free, share, met):  # type: ignore[no-untyped-def]
    """Write every job's minimum satisfactory share for now, and whether it is done in time; jobs in `order`.

    Returns after how many seconds a share changes first. `room` is the time to each deadline, `edge` and `free` are
    room for the GPUs that are free over time: two more than there are jobs.
    """
    edge[0], free[0], used = 0.0, gpus, 1
    change = math.inf
    for at in range(len(order)):
        job = order[at]
        met[at] = False
        limit, end = 0, math.inf
        for step in range(counts.shape[1]):
            if counts[job, step] == 0:
                break
            limit = counts[job, step]
            end = _end(job, limit, room[job], left, counts, speeds, edge, free, used)
            if end < math.inf:
                met[at] = True
                break
        if not met[at]:
            end = _end(job, limit, math.inf, left, counts, speeds, edge, free, used)
        end = max(round_s, math.ceil(end / round_s - 1e-9) * round_s)
        used = _cut(edge, free, used, end)
        for stretch in range(used):
            if edge[stretch] >= end:
                break
            step = _step(counts, job, min(limit, free[stretch]))
            count = counts[job, step] if step >= 0 else 0
            free[stretch] -= count
            if stretch == 0:
                share[at] = count
            elif count != share[at]:
                change = min(change, edge[stretch])
    return change


@compiled
def hand_out(order, counts, speeds, gpus, share):  # type: ignore[no-untyped-def]
    """Give free GPUs, step by step, to the job whose later GPU-seconds they save most of; return those left."""
    while gpus > 0:
        best, which, more = -1.0, -1, 0
        for at in range(len(order)):
            job, now = order[at], _step(counts, order[at], share[at])
            if now + 1 >= counts.shape[1] or counts[job, now + 1] == 0 or counts[job, now + 1] - share[at] > gpus:
                continue
            value = math.inf
            if share[at] > 0:
                saved = share[at] * (speeds[job, now + 1] / speeds[job, now] - 1)
                value = saved / (counts[job, now + 1] - share[at])
            if value > best:
                best, which, more = value, at, counts[job, now + 1] - share[at]
        if which < 0:
            break
        share[which] += more
        gpus -= more
    return gpus


@dataclass(slots=True, eq=False)
class _Flexible:
    """One job that is running or waits, and the GPUs that it has."""

    row: Job
    admitted: bool = True
    """Its deadline is kept, or it has none; otherwise it runs on what is left."""
    place: Place = ()
    speed: float = 0.0
    loading_s: float = 0.0
    started: bool = False


def simulate_deadlines(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    rounds: Rounds,
    *,
    speed: Speed,
    costs: RestartCosts,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Simulate jobs that grow and shrink under a policy that serves deadlines."""
    if not isinstance(speed, Scaling):
        raise InputError(
            f"{policy} decides how many GPUs a job gets, and needs its measured speed on every number of them. "
            "This trace carries none; those of ElasticFlow do."
        )
    if len(set(cluster.kinds)) > 1:
        raise InputError(f"{policy} takes all GPUs to be alike. Take sia, or a cluster of one kind of GPU.")
    run = _DeadlineRun(jobs, cluster, rounds, speed, costs)
    run.to_the_end(progress)
    return run.ledger.outcome(policy, gangs=False)


class _DeadlineRun:
    """A simulation: what is left of every job, who runs, and what was promised to whom."""

    def __init__(
        self, jobs: Sequence[Job], cluster: Cluster, rounds: Rounds, speed: Scaling, costs: RestartCosts
    ) -> None:
        self.ledger = RoundLedger(jobs, cluster.gpus)
        self.rounds, self.costs, self.gpus = rounds, costs, cluster.gpus
        floor = GangPlacer(cluster, kinds_of(cluster)[1])
        self.fleet = MachinePool(floor.kind_of, np.array([len(gpus) for gpus in floor.gpus], dtype=np.int64))
        rows = self.ledger.jobs
        steps = [_useful(speed.by_gpus(job), cluster.gpus) for job in rows]
        widest = max(len(step) for step in steps)
        self.counts = np.zeros((len(rows), widest), dtype=np.int64)
        self.speeds = np.zeros((len(rows), widest))
        for number, step in enumerate(steps):
            self.counts[number, : len(step)] = [count for count, _ in step]
            self.speeds[number, : len(step)] = [rate for _, rate in step]
        self.left = np.array([job.work_s for job in rows])
        self.until = np.array([math.inf if job.deadline_s is None else job.arrival_s + job.deadline_s for job in rows])
        self.active: dict[int, _Flexible] = {}
        self.now = 0.0

    def to_the_end(self, progress: Callable[[int, int], None] | None) -> None:
        rows, ledger = self.ledger.jobs, self.ledger
        came, done = 0, 0
        while done < len(rows):
            if not self.active:
                self.now = max(self.now, rows[came].arrival_s)
            first = came
            while came < len(rows) and rows[came].arrival_s <= self.now + _TINY_S:
                self.active[came] = _Flexible(rows[came], admitted=False)
                came += 1
            change_s = self._decide(range(first, came))
            next_s = rows[came].arrival_s - self.now if came < len(rows) else math.inf
            done += self._run(max(self.rounds.round_s, min(next_s, change_s, self._first_end_s())))
            if progress is not None:
                progress(done, len(rows))
        ledger.note(float(ledger.finish.max()), 0, 0, ())

    def _decide(self, new: range) -> float:
        """Admit, share out and place; return after how many seconds a share changes."""
        if self.rounds.by == "earliest-deadline":
            for number in new:
                self.active[number].admitted = True
            order = self._by_deadline(self.active)
            shares = np.zeros(len(order), dtype=np.int64)
            free, change_s = self.gpus, math.inf
            for at, number in enumerate(order):
                fitting = self.counts[number][(self.counts[number] > 0) & (self.counts[number] <= free)]
                shares[at] = fitting[-1] if len(fitting) else 0
                free -= int(shares[at])
        else:
            order, shares, change_s = self._admitted(new)
            free = int(hand_out(order, self.counts, self.speeds, self.gpus - int(shares.sum()), shares))
        chosen = {int(number): int(count) for number, count in zip(order, shares, strict=True) if count}
        for number, job in self.active.items():
            if free == 0:
                break
            if not job.admitted:
                fits = self.counts[number]
                fits = fits[(fits > 0) & (fits <= min(free, max(job.row.gpus, 1)))]
                if len(fits):
                    chosen[number] = int(fits[-1])
                    free -= chosen[number]
        self._start(chosen)
        return change_s

    def _admitted(self, new: range) -> tuple[Ints, Ints, float]:
        """Admit what can be done in time, in order of arrival; return who is admitted, shares and the next change."""
        kept = [number for number, job in self.active.items() if job.admitted]
        order, shares, met, change_s = self._plan(kept)
        for number in new:
            tried = self._plan([*kept, number])
            late = len(tried[0]) - int(tried[2].sum())
            if tried[2][np.flatnonzero(tried[0] == number)[0]] and late <= len(order) - int(met.sum()):
                kept.append(number)
                self.active[number].admitted = True
                order, shares, met, change_s = tried
        return order, shares, change_s

    def _plan(self, numbers: Sequence[int]) -> tuple[Ints, Ints, npt.NDArray[np.bool_], float]:
        order = self._by_deadline(numbers)
        shares, met = np.zeros(len(order), dtype=np.int64), np.ones(len(order), dtype=np.bool_)
        with_deadline = int(np.isfinite(self.until[order]).sum())  # the others are last, and plan nothing
        edge, free = np.zeros(len(order) + 2), np.zeros(len(order) + 2, dtype=np.int64)
        change_s = plan(
            order[:with_deadline],
            self.left,
            self.until - self.now,
            self.counts,
            self.speeds,
            self.gpus,
            self.rounds.round_s,
            edge,
            free,
            shares,
            met,
        )
        return order, shares, met, float(change_s)

    def _by_deadline(self, numbers: Sequence[int] | dict[int, _Flexible]) -> Ints:
        return np.array(sorted(numbers, key=lambda number: (self.until[number], number)), dtype=np.int64)

    def _start(self, chosen: dict[int, int]) -> None:
        """Place the chosen jobs; each that gets other GPUs pays for the change."""
        ledger = self.ledger
        places = place_all({number: (0, count) for number, count in chosen.items()}, self.active, self.fleet)
        for number, job in self.active.items():
            place = places.get(number, ())
            if place == job.place:
                continue
            if place:
                ledger.moves[number] += bool(job.place)
                job.loading_s = self.costs.restart_s if job.started else self.costs.first_start_s
                if not job.started:
                    ledger.first[number], job.started = self.now, True
                ledger.widest[number] = max(ledger.widest[number], len(place) > 1)
                step = int(np.flatnonzero(self.counts[number] == sum(parts_of(place)))[0])
                job.speed = float(self.speeds[number, step])
            else:
                ledger.stops[number] += 1
            job.place = place
        held = [sum(parts_of(job.place)) for job in self.active.values() if job.place]
        ledger.note(self.now, sum(held), len(held), [1 for job in self.active.values() if not job.place])
        ledger.rounds += 1

    def _first_end_s(self) -> float:
        ends = [job.loading_s + self.left[number] / job.speed for number, job in self.active.items() if job.place]
        if not ends:
            raise StallwiseError(f"The policy runs none of {len(self.active)} waiting jobs. This is a bug.")
        return float(min(ends))

    def _run(self, seconds: float) -> int:
        """Run for some seconds; return how many jobs are done."""
        ledger, ended = self.ledger, []
        for number, job in self.active.items():
            if not job.place:
                continue
            loading = min(job.loading_s, seconds)
            needed = job.loading_s + self.left[number] / job.speed
            spent = min(needed, seconds)
            ledger.ran[number] += spent
            ledger.over[number] += loading
            ledger.held_gpu_s[number] += spent * sum(parts_of(job.place))
            job.loading_s -= loading
            self.left[number] = max(self.left[number] - (spent - loading) * job.speed, _TINY_S)
            if needed <= seconds + _TINY_S:
                ledger.finish[number] = self.now + needed
                ended.append(number)
        for number in ended:
            del self.active[number]
        self.now += seconds
        return len(ended)


def _useful(by_gpus: Sequence[tuple[int, float]], gpus: int) -> list[tuple[int, float]]:
    """Return the numbers of GPUs that the cluster has and that are each faster than all smaller ones."""
    out: list[tuple[int, float]] = []
    for count, speed in by_gpus:
        if count <= gpus and (not out or speed > out[-1][1]):
            out.append((count, speed))
    return out
