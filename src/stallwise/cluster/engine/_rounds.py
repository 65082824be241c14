"""Policies in rounds: fixed gangs, and jobs that grow and shrink.

Gangs: every round a rule says which jobs run on which kind of GPU. A round ends after `round_s`, or with the last of
its jobs; a job that ends earlier leaves its GPUs idle until then, as in Gavel's simulator. Arrivals wait for the next
round. A gang that gets other GPUs than before, or GPUs again, makes no progress for the restart time and the checkpoint
time of its gang.

Elastic: every round a rule says on how many GPUs of which machines each job runs. A job makes progress at the goodput
of its placement and epoch, until its application's last epoch. A job that gets other GPUs than before makes no progress
for the restart time. Decisions fall at multiples of the round.
"""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from stallwise.cluster._outcome import ClusterSeries, Outcome
from stallwise.cluster.engine.build import RestartCosts
from stallwise.cluster.job import Job
from stallwise.cluster.policies._adadual import LinkRates
from stallwise.cluster.policies._elastic import ElasticRule, Growing, MachinePool, parts_of
from stallwise.cluster.policies._gangs import Choice, GangPlacer, GangQueue, GangRule, Held, ShortestService, kinds_of
from stallwise.cluster.policies._gavel import Gavel
from stallwise.cluster.policies._goodput import SINGLE_GPU, AppGoodput, goodput_tables
from stallwise.cluster.policies._themis import Themis
from stallwise.cluster.policies.base import Rounds
from stallwise.cluster.speed.base import FullSpeed, Shape, Speed, on_its_kind
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

Floats = npt.NDArray[np.float64]


class RoundLedger:
    """Times and counts of jobs in order of arrival, and the cluster over time."""

    def __init__(self, jobs: Sequence[Job], gpus: int) -> None:
        self.submitted = tuple(jobs)
        self.gpus = gpus
        self.turn = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
        self.jobs = tuple(jobs[index] for index in self.turn)
        count = len(jobs)
        self.first = np.full(count, -1.0)
        self.finish = np.full(count, -1.0)
        self.ran = np.zeros(count)
        self.held_gpu_s = np.zeros(count)
        self.over = np.zeros(count)
        self.stops = np.zeros(count, dtype=np.int64)
        self.moves = np.zeros(count, dtype=np.int64)
        self.widest = np.zeros(count, dtype=np.int64)
        self.rounds = 0
        self._series: list[tuple[float, int, int, int, int, int]] = []

    def note(self, time_s: float, busy: int, running: int, waiting: Sequence[int]) -> None:
        """Record the cluster from now on: GPUs in use, jobs on them, and the gangs of waiting jobs."""
        free = self.gpus - busy
        idle = free if any(gang <= free for gang in waiting) else 0
        self._series.append((time_s, busy, running, len(waiting), int(sum(waiting)), idle))

    def outcome(self, policy: str, *, gangs: bool = True) -> Outcome:
        """Return the outcome, jobs in the order they were submitted in.

        Time lost is what a job ran beyond its work, which is that of its gang in the trace. Where jobs get other
        numbers of GPUs (not `gangs`) the two do not compare, and nothing is said to be lost.
        """
        back = np.argsort(np.array(self.turn), kind="stable")
        work = np.array([job.work_s for job in self.submitted])
        run_s, over_s = self.ran[back], self.over[back]
        rows = np.array(self._series or [(0.0, 0, 0, 0, 0, 0)])
        return Outcome(
            jobs=self.submitted,
            policy=policy,
            cluster_gpus=self.gpus,
            first_start_s=self.first[back],
            finish_s=self.finish[back],
            run_s=run_s,
            comm_s=np.maximum(0.0, run_s - over_s - work) if gangs else np.zeros_like(run_s),
            overhead_s=over_s,
            preemptions=self.stops[back],
            migrations=self.moves[back],
            widest=self.widest[back],
            series=ClusterSeries.of(rows),
            events=self.rounds,
            held_gpu_s=self.held_gpu_s[back],
        )


_TINY_S = 1e-9


def kind_rates(jobs: Sequence[Job], kinds: tuple[str, ...], speed: Speed, policy: str) -> Floats:
    """Return [job, kind]: packed speed on each kind over that on the reference kind; 1 where there is one kind only."""
    if kinds == ("",) or (not speed.compares_kinds and len(kinds) == 1):
        return np.ones((len(jobs), 1))
    if not speed.compares_kinds:
        raise InputError(
            f"The cluster has GPUs of the kinds {', '.join(kinds)}, but nothing measured with this trace says how fast "
            f"its jobs run on each, which {policy} asks for. Take a trace of Gavel's, or a cluster of one kind."
        )
    return np.array([[speed.on_kind(job, kind) for kind in kinds] for job in jobs])


def _quickest_first(names: tuple[str, ...], rate: Floats) -> list[int]:
    """Sort kinds by their mean speed over all jobs, then by name, whatever order the cluster names them in."""
    mean = rate.mean(axis=0)
    return sorted(range(len(names)), key=lambda kind: (-mean[kind], names[kind]))


def simulate_gangs(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    rounds: Rounds,
    *,
    speed: Speed,
    costs: RestartCosts,
    contention: bool,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Simulate fixed gangs under a policy with `rounds`."""
    run = _GangRun(jobs, cluster, policy, rounds, speed, costs, contention, seed)
    run.to_the_end(rounds.round_s, progress)
    return run.ledger.outcome(policy)


def _rule(rounds: Rounds, queue: GangQueue, seed: int) -> GangRule:
    if rounds.by in ("max-min", "makespan", "finish-time"):
        return Gavel(rounds.by, queue, rounds.round_s, aware=rounds.aware, seed=seed)
    if rounds.by == "auction":
        return Themis(rounds.round_s, worst_part=rounds.worst_part)
    return ShortestService()


class _GangRun:
    """One simulation of fixed gangs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: str,
        rounds: Rounds,
        speed: Speed,
        costs: RestartCosts,
        contention: bool,
        seed: int,
    ) -> None:
        self.ledger = RoundLedger(jobs, cluster.gpus)
        # Where it says what a kind is worth, `kind_rates` asks it; else it may have been measured on this one.
        speed = speed if speed.compares_kinds else on_its_kind(speed, cluster)
        self.speed, self.costs, self.contention = speed, costs, contention
        ordered = self.ledger.jobs
        names, kind = kinds_of(cluster)
        rate = kind_rates(ordered, names, speed, policy)
        turn = _quickest_first(names, rate)
        kind = np.argsort(turn)[kind]
        self.floor = GangPlacer(cluster, kind)
        work = np.array([job.work_s for job in ordered])
        self.queue = GangQueue(
            gang=np.array([job.gpus for job in ordered], dtype=np.int64),
            arrival=np.array([job.arrival_s for job in ordered]),
            work=work,
            left=work.copy(),
            attained=np.zeros(len(ordered)),
            rate=rate[:, turn],
            gpus=np.bincount(kind),
        )
        self._check_gangs(names)
        self.rule = _rule(rounds, self.queue, seed)
        self.links = LinkRates(speed, self.floor, rounds.link) if rounds.by == "links" and contention else None
        self.by_parts = speed.by_parts
        self.rates: dict[tuple[Hashable, Shape], float] = {}
        self.placed: dict[int, Held] = {}
        self.speeds: dict[int, float] = {}
        self.loading: dict[int, float] = {}
        """Seconds until a job that was started makes progress."""

    def _check_gangs(self, names: tuple[str, ...]) -> None:
        fits = (self.queue.rate > 0) & (self.queue.gang[:, None] <= self.queue.gpus[None, :])
        for number in np.flatnonzero(~fits.any(axis=1)):
            job = self.ledger.jobs[number]
            raise InputError(
                f"Job {job.id!r} of {job.gpus} GPUs runs on no kind of GPU here ({', '.join(names)}): a gang "
                "is of one kind, and was measured on it. Take a larger cluster or leave the job out."
            )

    def to_the_end(self, round_s: float, progress: Callable[[int, int], None] | None) -> None:
        queue, ledger = self.queue, self.ledger
        count = len(ledger.jobs)
        came, done = 0, 0
        present: list[int] = []
        while done < count:
            if not present:
                queue.now = max(queue.now, float(queue.arrival[came]))
            while came < count and queue.arrival[came] <= queue.now:
                present.append(came)
                queue.changed, came = True, came + 1
            queue.active = np.array(present, dtype=np.int64)
            self._start(self.rule.choose(queue))
            queue.changed = False
            ended = self._run(
                round_s * self._rounds_alike(round_s, float(queue.arrival[came]) if came < count else np.inf)
            )
            if ended:
                queue.changed = True
                present = [job for job in present if job not in ended]
                done += len(ended)
            if progress is not None:
                progress(done, count)
        ledger.note(queue.now, 0, 0, ())

    def _rounds_alike(self, round_s: float, next_s: float) -> int:
        """Return the rounds until anything changes, where all jobs run and all GPUs are alike; else one."""
        queue = self.queue
        if len(self.placed) < len(queue.active) or len(queue.gpus) > 1:
            return 1
        ends_s = min(self.loading.get(job, 0.0) + queue.left[job] / self.speeds[job] for job in self.placed)
        return max(1, int(min(float(ends_s), next_s - queue.now) / round_s))

    def _start(self, chosen: list[Choice]) -> None:
        """Place the chosen jobs, count stops and moves, look up speeds."""
        if not chosen:
            raise StallwiseError(f"The policy runs none of {len(self.queue.active)} waiting jobs. This is a bug.")
        queue, ledger = self.queue, self.ledger
        placed = self.floor.place(chosen, queue.gang, self.placed)
        for job in self.placed:
            if job not in placed and ledger.finish[job] < 0:
                ledger.stops[job] += 1
        changed = [job for job, held in placed.items() if self.placed.get(job) != held]
        for job in changed:
            self._load(job)
        gone = len(self.placed.keys() - placed.keys())
        self.placed = placed
        self._look_up(dict(chosen), changed, others=bool(changed or gone))
        waiting = queue.gang[[job for job in queue.active if job not in placed]].tolist()
        ledger.note(queue.now, int(sum(len(held) for held in placed.values())), len(placed), waiting)
        ledger.rounds += 1

    def _load(self, job: int) -> None:
        queue, ledger, costs = self.queue, self.ledger, self.costs
        if ledger.first[job] < 0:
            ledger.first[job] = queue.now
            self.loading[job] = costs.first_start_s
            return
        ledger.moves[job] += job in self.placed
        self.loading[job] = costs.restart_s + costs.checkpoint_s_per_gpu * int(queue.gang[job])

    def _look_up(self, kinds: dict[int, int], changed: list[int], *, others: bool) -> None:
        """Compute speeds on new placements; under contention of all jobs, since the sharers of links have changed."""
        if isinstance(self.speed, FullSpeed):
            rates = dict.fromkeys(changed, 1.0)
        elif not self.contention:
            rates = {job: self._rate(job, ()) for job in changed}
        elif others and self.links is not None:
            left = {job: float(self.queue.left[job] * self.queue.gang[job]) for job in self.placed}
            rates = self.links.shared({job: self.ledger.jobs[job] for job in self.placed}, self.placed, left)
        elif others:
            sharers = self.floor.sharers(self.placed)
            rates = {job: self._rate(job, sharers[job]) for job in self.placed}
        else:
            rates = {}
        for job, rate in rates.items():
            self.speeds[job] = rate * float(self.queue.rate[job, kinds[job]])

    def _rate(self, job: int, sharers: tuple[int, ...]) -> float:
        shape = self.floor.shape(self.placed[job], by_parts=self.by_parts, sharers=sharers)
        self.ledger.widest[job] = max(self.ledger.widest[job], shape.widest())
        row = self.ledger.jobs[job]
        key = (self.speed.kind(row), shape)
        if key not in self.rates:
            self.rates[key] = self.speed.rate(row, shape)
        return self.rates[key]

    def _run(self, round_s: float) -> set[int]:
        """Run until the round ends; return the jobs that are done."""
        queue, ledger = self.queue, self.ledger
        jobs = np.array(list(self.placed), dtype=np.int64)
        rate = np.array([self.speeds[int(job)] for job in jobs])
        load = np.array([self.loading.get(int(job), 0.0) for job in jobs])
        needed = load + queue.left[jobs] / rate
        spent = np.minimum(needed, round_s)
        self._account(jobs, spent, np.minimum(load, spent), rate)
        ended = needed <= round_s + _TINY_S
        ledger.finish[jobs[ended]] = queue.now + needed[ended]
        queue.left[jobs[ended]] = 0.0
        queue.now += float(spent.max())
        return {int(job) for job in jobs[ended]}

    def _account(self, jobs: npt.NDArray[np.int64], spent: Floats, loading: Floats, rate: Floats) -> None:
        queue, ledger = self.queue, self.ledger
        gpu_s = spent * queue.gang[jobs]
        ledger.ran[jobs] += spent
        ledger.over[jobs] += loading
        ledger.held_gpu_s[jobs] += gpu_s
        queue.attained[jobs] += gpu_s
        queue.left[jobs] = np.maximum(queue.left[jobs] - (spent - loading) * rate, _TINY_S)
        kind = self.floor.kind
        for job, seconds, load in zip(jobs, spent, loading, strict=True):
            number = int(job)
            if load > 0:
                self.loading[number] -= float(load)
            self.rule.ran(number, int(kind[self.placed[number][0]]), float(seconds))


def simulate_rounds(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    rounds: Rounds,
    *,
    speed: Speed,
    costs: RestartCosts,
    contention: bool,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Run every job to its end. The same arguments give the same outcome."""
    if rounds.elastic:
        if rounds.by != "configurations" and len(set(cluster.kinds)) > 1:
            raise InputError(f"{policy} takes all GPUs to be alike. Take sia, or a cluster of one kind of GPU.")
        rule = _elastic(rounds)
        return simulate_elastic(
            jobs, cluster, policy, rounds.round_s, rule=rule, speed=speed, costs=costs, progress=progress
        )

    return simulate_gangs(
        jobs, cluster, policy, rounds, speed=speed, costs=costs, contention=contention, seed=seed, progress=progress
    )


def _elastic(rounds: Rounds) -> ElasticRule:
    from stallwise.cluster.policies._optimus import Optimus
    from stallwise.cluster.policies._pollux import Pollux
    from stallwise.cluster.policies._sia import Sia

    if rounds.by == "marginal-gain":
        return Optimus()
    factory = Pollux if rounds.by == "goodput" else Sia
    return factory(power=rounds.power, restart_s=rounds.restart_s)


def simulate_elastic(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    round_s: float,
    *,
    rule: ElasticRule,
    speed: Speed,
    costs: RestartCosts,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Simulate jobs that grow and shrink under a policy with elastic `rounds`."""
    run = _ElasticRun(jobs, cluster, policy, rule, speed, costs)
    run.to_the_end(round_s, progress)
    return run.ledger.outcome(policy, gangs=False)


class _ElasticRun:
    """One simulation of jobs that grow and shrink."""

    def __init__(
        self, jobs: Sequence[Job], cluster: Cluster, policy: str, rule: ElasticRule, speed: Speed, costs: RestartCosts
    ) -> None:
        self.ledger = RoundLedger(jobs, cluster.gpus)
        self.rule, self.costs = rule, costs
        names, kind = kinds_of(cluster)
        floor = GangPlacer(cluster, kind)
        self.fleet = MachinePool(floor.kind_of, np.array([len(gpus) for gpus in floor.gpus], dtype=np.int64))
        tables = goodput_tables(self.ledger.jobs, speed, names, policy)
        self.jobs = [self._growing(job, tuple(table[job.model or ""] for table in tables)) for job in self.ledger.jobs]
        self.active: dict[int, Growing] = {}

    def _growing(self, job: Job, goodputs: tuple[AppGoodput, ...]) -> Growing:
        name = job.model or ""
        batch = SINGLE_GPU.get(name) if self.rule.tunes else job.batch_size
        most = max(bench.most_gpus for bench in goodputs)
        if not self.rule.tunes and job.batch_size is not None:
            most = max(1, job.batch_size // int(goodputs[0].app.points[:, 2].min()))
        return Growing(job, goodputs, batch, 1 if name in SINGLE_GPU else most)

    def to_the_end(self, round_s: float, progress: Callable[[int, int], None] | None) -> None:
        count, came, done, tick = len(self.jobs), 0, 0, 0
        while done < count:
            if not self.active:
                tick = max(tick, math.ceil(self.jobs[came].row.arrival_s / round_s - 1e-9))
            now = tick * round_s
            while came < count and self.jobs[came].row.arrival_s <= now + 1e-9:
                self.active[came] = self.jobs[came]
                came += 1
            self._start(now)
            done += self._run(now, round_s)
            tick += 1
            if progress is not None:
                progress(done, count)
        self.ledger.note(float(self.ledger.finish.max()), 0, 0, ())

    def _start(self, now: float) -> None:
        """Place jobs anew; each job that gets other GPUs pays for the change."""
        places, ledger = self.rule.allot(now, self.active, self.fleet), self.ledger
        for number, job in self.active.items():
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
        held = [sum(parts_of(job.place)) for job in self.active.values() if job.place]
        waiting = [1 for job in self.active.values() if not job.place]
        ledger.note(now, sum(held), len(held), waiting)
        ledger.rounds += 1

    def _run(self, now: float, round_s: float) -> int:
        """Run until the round ends; return how many jobs are done."""
        ledger, ended = self.ledger, []
        for number, job in self.active.items():
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
            del self.active[number]
        return len(ended)
