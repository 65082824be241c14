"""Fixed gangs through a cluster in rounds: every round a rule says who runs on which kind of GPU.

A round ends after `round_s`, or with the last of its jobs; a job that ends earlier leaves its GPUs idle until then, as
in Gavel's simulator. Who comes waits for the next round. A gang that gets other GPUs than before, or GPUs again, makes
no progress for the restart time and the checkpoint time of its gang.
"""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.outcome import Outcome
from stallwise.cluster.policy import Rounds
from stallwise.cluster.rounds.gavel import Gavel
from stallwise.cluster.rounds.ledger import Ledger
from stallwise.cluster.rounds.links import LinkRates
from stallwise.cluster.rounds.placing import Floor, Held, kinds_of
from stallwise.cluster.rounds.queue import Choice, Queue, Rule
from stallwise.cluster.rounds.service import ShortestService
from stallwise.cluster.rounds.themis import Themis
from stallwise.cluster.rules import Costs
from stallwise.cluster.speed import FullSpeed, Shape, Speed, on_its_kind
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError, StallwiseError

Floats = npt.NDArray[np.float64]
_TINY_S = 1e-9


def kind_rates(jobs: Sequence[Job], kinds: tuple[str, ...], speed: Speed, policy: str) -> Floats:
    """[job, kind]: packed speed on each kind over that on the reference kind; 1 where there are no two to compare."""
    ask = getattr(speed, "on_kind", None)
    if kinds == ("",) or (ask is None and len(kinds) == 1):
        return np.ones((len(jobs), 1))
    if ask is None:
        raise InputError(
            f"The cluster has GPUs of the kinds {', '.join(kinds)}, but nothing measured with this trace says how fast "
            f"its jobs run on each, which {policy} asks for. Take a trace of Gavel's, or a cluster of one kind."
        )
    return np.array([[ask(job, kind) for kind in kinds] for job in jobs])


def _quickest_first(names: tuple[str, ...], rate: Floats) -> list[int]:
    """Kinds by their mean speed over all jobs, then by name: in which order a cluster names them decides nothing."""
    mean = rate.mean(axis=0)
    return sorted(range(len(names)), key=lambda kind: (-mean[kind], names[kind]))


def simulate_gangs(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: str,
    rounds: Rounds,
    *,
    speed: Speed,
    costs: Costs,
    contention: bool,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Outcome:
    """Every job to its end under a policy with `rounds`."""
    run = _Run(jobs, cluster, policy, rounds, speed, costs, contention, seed)
    run.to_the_end(rounds.round_s, progress)
    return run.ledger.outcome(policy)


def _rule(rounds: Rounds, queue: Queue, seed: int) -> Rule:
    if rounds.by in ("max-min", "makespan", "finish-time"):
        return Gavel(rounds.by, queue, rounds.round_s, aware=rounds.aware, seed=seed)
    if rounds.by == "auction":
        return Themis(rounds.round_s, worst_part=rounds.worst_part)
    return ShortestService()


class _Run:
    """One simulation under way."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        policy: str,
        rounds: Rounds,
        speed: Speed,
        costs: Costs,
        contention: bool,
        seed: int,
    ) -> None:
        self.ledger = Ledger(jobs, cluster.gpus)
        # Where it says what a kind is worth, `kind_rates` asks it; else it may have been measured on this one.
        speed = speed if hasattr(speed, "on_kind") else on_its_kind(speed, cluster)
        self.speed, self.costs, self.contention = speed, costs, contention
        ordered = self.ledger.jobs
        names, kind = kinds_of(cluster)
        rate = kind_rates(ordered, names, speed, policy)
        turn = _quickest_first(names, rate)
        kind = np.argsort(turn)[kind]
        self.floor = Floor(cluster, kind)
        work = np.array([job.work_s for job in ordered])
        self.queue = Queue(
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
        self.by_parts = bool(getattr(speed, "by_parts", False))
        self.known: dict[tuple[Hashable, Shape], float] = {}
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
        here: list[int] = []
        while done < count:
            if not here:
                queue.now = max(queue.now, float(queue.arrival[came]))
            while came < count and queue.arrival[came] <= queue.now:
                here.append(came)
                queue.changed, came = True, came + 1
            queue.active = np.array(here, dtype=np.int64)
            self._start(self.rule.choose(queue))
            queue.changed = False
            ended = self._run(
                round_s * self._rounds_alike(round_s, float(queue.arrival[came]) if came < count else np.inf)
            )
            if ended:
                queue.changed = True
                here = [job for job in here if job not in ended]
                done += len(ended)
            if progress is not None:
                progress(done, count)
        ledger.note(queue.now, 0, 0, ())

    def _rounds_alike(self, round_s: float, next_s: float) -> int:
        """Rounds until anything changes, where everybody who is there runs and all GPUs are alike; else one."""
        queue = self.queue
        if len(self.placed) < len(queue.active) or len(queue.gpus) > 1:
            return 1
        ends_s = min(self.loading.get(job, 0.0) + queue.left[job] / self.speeds[job] for job in self.placed)
        return max(1, int(min(float(ends_s), next_s - queue.now) / round_s))

    def _start(self, chosen: list[Choice]) -> None:
        """Place them, count who stops and moves, look up speeds."""
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
        """Speeds on the new places; with contention of all, since who shares links has changed."""
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
        if key not in self.known:
            self.known[key] = self.speed.rate(row, shape)
        return self.known[key]

    def _run(self, round_s: float) -> set[int]:
        """Until the round ends; who is done with that."""
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
