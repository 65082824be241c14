"""Jobs that grow and shrink, in rounds: every round a rule says on how many GPUs of which machines each runs.

A job makes progress at the goodput of its placement and epoch, until its application's last epoch. Whoever gets other
GPUs than before makes no progress for the restart time. Decisions fall at multiples of the round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.outcome import Outcome
from stallwise.cluster.rounds.goodput import SINGLE_GPU, Bench, Parts, benches
from stallwise.cluster.rounds.ledger import Ledger
from stallwise.cluster.rounds.placing import Floor, kinds_of
from stallwise.cluster.rules import Costs
from stallwise.cluster.speed import Speed
from stallwise.cluster.topology import Cluster

Place = tuple[tuple[int, int], ...]
"""Machines and how many GPUs of each, in the order they were taken."""


def parts_of(place: Place) -> Parts:
    """GPUs per machine."""
    return tuple(count for _, count in place)


@dataclass(slots=True, eq=False)
class Growing:
    """One job on its way."""

    row: Job
    benches: tuple[Bench, ...]
    """By kind of GPU."""
    batch: int | None
    """None: the best there is, epoch by epoch."""
    most_gpus: int
    tried_gpus: int = 0
    """The most it has run on."""
    progress: float = 0.0
    epoch: int = 0
    loading_s: float = 0.0
    restarts: int = -1
    attained: float = 0.0
    place: Place = ()

    def goodput(self, kind: int, parts: Parts) -> float:
        """Progress per second now."""
        return self.benches[kind].goodput(parts, self.epoch, self.batch)

    def step(self, kind: int, seconds: float) -> float | None:
        """Run for so long; when it was done before that, after how many seconds."""
        if not self.place:
            return None
        parts, spent = parts_of(self.place), min(self.loading_s, seconds)
        self.loading_s -= spent
        bench = self.benches[kind]
        while spent < seconds:
            rate, until = self.goodput(kind, parts), bench.until(self.epoch)
            needed = (until - self.progress) / rate
            if spent + needed > seconds:
                self.progress += rate * (seconds - spent)
                break
            spent, self.progress, self.epoch = spent + needed, until, self.epoch + 1
            if self.epoch >= bench.app.epochs:
                return spent
        return None


@dataclass(slots=True, eq=False)
class Fleet:
    """Machines of the cluster."""

    kind: npt.NDArray[np.int64]
    """Of each machine."""
    size: npt.NDArray[np.int64]
    """GPUs of each."""

    def machine(self, kind: int) -> int:
        """GPUs of the largest machine of a kind."""
        return int(self.size[self.kind == kind].max())

    def gpus(self, kind: int) -> int:
        """Of a kind together."""
        return int(self.size[self.kind == kind].sum())


class Rule(Protocol):
    """How many GPUs each job gets, and where."""

    tunes: bool
    """Batch sizes are chosen anew; otherwise those of the trace stay."""

    def allot(self, now: float, jobs: Mapping[int, Growing], fleet: Fleet) -> dict[int, Place]:
        """Places of all jobs that run in the coming round."""
        ...


def simulate_elastic(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    round_s: float,
    *,
    rule: Rule,
    speed: Speed,
    costs: Costs,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Every job to its end under a policy with elastic `rounds`."""
    run = _Run(jobs, cluster, policy, rule, speed, costs)
    run.to_the_end(round_s, progress)
    return run.ledger.outcome(policy, gangs=False)


class _Run:
    """One simulation under way."""

    def __init__(
        self, jobs: Sequence[Job], cluster: Cluster, policy: str, rule: Rule, speed: Speed, costs: Costs
    ) -> None:
        self.ledger = Ledger(jobs, cluster.gpus)
        self.rule, self.costs = rule, costs
        names, kind = kinds_of(cluster)
        floor = Floor(cluster, kind)
        self.fleet = Fleet(floor.kind_of, np.array([len(gpus) for gpus in floor.gpus], dtype=np.int64))
        tables = benches(self.ledger.jobs, speed, names, policy)
        self.jobs = [self._growing(job, tuple(table[job.model or ""] for table in tables)) for job in self.ledger.jobs]
        self.here: dict[int, Growing] = {}

    def _growing(self, job: Job, known: tuple[Bench, ...]) -> Growing:
        name = job.model or ""
        batch = SINGLE_GPU.get(name) if self.rule.tunes else job.batch_size
        most = max(bench.most_gpus for bench in known)
        if not self.rule.tunes and job.batch_size is not None:
            most = max(1, job.batch_size // int(known[0].app.points[:, 2].min()))
        return Growing(job, known, batch, 1 if name in SINGLE_GPU else most)

    def to_the_end(self, round_s: float, progress: Callable[[int, int], None] | None) -> None:
        count, came, done, tick = len(self.jobs), 0, 0, 0
        while done < count:
            if not self.here:
                tick = max(tick, math.ceil(self.jobs[came].row.arrival_s / round_s - 1e-9))
            now = tick * round_s
            while came < count and self.jobs[came].row.arrival_s <= now + 1e-9:
                self.here[came] = self.jobs[came]
                came += 1
            self._start(now)
            done += self._run(now, round_s)
            tick += 1
            if progress is not None:
                progress(done, count)
        self.ledger.note(float(self.ledger.finish.max()), 0, 0, ())

    def _start(self, now: float) -> None:
        """New places; who changes pays for it."""
        places, ledger = self.rule.allot(now, self.here, self.fleet), self.ledger
        for number, job in self.here.items():
            place = places.get(number, ())
            if place == job.place:
                continue
            if not place:
                ledger.stops[number] += 1
            else:
                ledger.moves[number] += bool(job.place)
                job.restarts += 1
                job.loading_s = self.costs.restart_s if job.restarts else self.costs.first_start_s
                ledger.first[number] = now if ledger.first[number] < 0 else ledger.first[number]
                ledger.widest[number] = max(ledger.widest[number], len(place) > 1)
                job.tried_gpus = max(job.tried_gpus, sum(parts_of(place)))
            job.place = place
        held = [sum(parts_of(job.place)) for job in self.here.values() if job.place]
        waiting = [1 for job in self.here.values() if not job.place]
        ledger.note(now, sum(held), len(held), waiting)
        ledger.rounds += 1

    def _run(self, now: float, round_s: float) -> int:
        """Until the round ends; how many are done with that."""
        ledger, ended = self.ledger, []
        for number, job in self.here.items():
            if not job.place:
                continue
            loading = min(job.loading_s, round_s)
            spent = job.step(int(self.fleet.kind[job.place[0][0]]), round_s)
            held_s = round_s if spent is None else spent
            gpu_s = held_s * sum(parts_of(job.place))
            job.attained += gpu_s
            ledger.ran[number] += held_s
            ledger.over[number] += loading
            ledger.held_gpu_s[number] += gpu_s
            if spent is not None:
                ledger.finish[number] = now + spent
                ended.append(number)
        for number in ended:
            del self.here[number]
        return len(ended)
