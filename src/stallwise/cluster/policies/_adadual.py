"""Several jobs on one link: when each exchange starts (Wang et al., arXiv 2002.10105: Ada-SRSF and AdaDUAL).

A job computes, then exchanges, then computes again. An exchange with the link to itself takes M seconds; k of them at a
time each take k + (k - 1) · η times as long, η being what sharing itself costs. When an exchange is ready:

    share     it starts (SRSF(n) in the paper);
    turns     it starts when the link is free (SRSF(1));
    adadual   it starts when the link is free; or beside a single other one, if M / what is left of the other is less
              than 1 / (2 (1 + η)); otherwise it waits.

The threshold is where the sum of both ends is the same: side by side (3 + 2η) M + R, one after the other M + 2R, for R
left of the other. Those that wait are served in order of remaining service.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stallwise.cluster.job import Job
from stallwise.cluster.policies._gangs import GangPlacer, Held
from stallwise.cluster.speed.base import Shape, Speed

LinkRule = Literal["share", "turns", "adadual"]

_CYCLES = 24
"""Cycles of the slowest job that are played through; the first quarter is not counted."""
_INSTANT_S = 1e-12


@dataclass(frozen=True, slots=True)
class Task:
    """One iteration of a job."""

    compute_s: float
    exchange_s: float
    """With the link to itself."""


def starts(rule: LinkRule, exchange_s: float, active: Sequence[float], penalty: float) -> bool:
    """Whether an exchange may start beside those on the link, given the seconds left of them."""
    if rule == "share" or not active:
        return True
    if rule == "turns" or len(active) > 1:
        return False
    return exchange_s / max(active[0], _INSTANT_S) < 1 / (2 * (1 + penalty))


def link_rates(tasks: Sequence[Task], rule: LinkRule, penalty: float = 0.0) -> list[float]:
    """Return iterations per second of jobs on one link, in the long run; earlier jobs in the sequence go first."""
    cycle_s = max(task.compute_s for task in tasks) + sum(task.exchange_s for task in tasks) * (1 + penalty)
    begin_s, end_s = cycle_s * _CYCLES / 4, cycle_s * _CYCLES
    done = np.zeros(len(tasks))
    for number, at_s in _Link(tasks, rule, penalty).play(end_s):
        done[number] += at_s > begin_s
    alone = np.array([1 / (task.compute_s + task.exchange_s) for task in tasks])
    return [float(rate) for rate in np.minimum(np.maximum(done, 1.0) / (end_s - begin_s), alone)]


class _Link:
    """One link from event to event."""

    def __init__(self, tasks: Sequence[Task], rule: LinkRule, penalty: float) -> None:
        self.tasks, self.rule, self.penalty = tasks, rule, penalty
        self.now_s = 0.0
        self.computing = {number: task.compute_s for number, task in enumerate(tasks)}
        """Until when."""
        self.waiting: list[int] = []
        self.sending: dict[int, float] = {}
        """Seconds of exchange left, counted with the link to itself."""

    def play(self, until_s: float) -> Iterator[tuple[int, float]]:
        """Yield iterations that end, event by event."""
        while self.now_s < until_s:
            yield from self._next()

    def _next(self) -> list[tuple[int, float]]:
        self._admit()
        slower = len(self.sending) + (len(self.sending) - 1) * self.penalty if self.sending else 1.0
        ends_s = self.now_s + min(self.sending.values()) * slower if self.sending else np.inf
        at_s = min(ends_s, min(self.computing.values(), default=np.inf))
        for number in self.sending:
            self.sending[number] -= (at_s - self.now_s) / slower
        self.now_s = at_s
        over = [number for number, left in self.sending.items() if left <= _INSTANT_S * max(1.0, at_s)]
        for number in over:
            del self.sending[number]
            self.computing[number] = at_s + self.tasks[number].compute_s
        ready = [number for number, when in self.computing.items() if when <= at_s and number not in over]
        for number in ready:
            del self.computing[number]
        self.waiting = sorted([*self.waiting, *ready])
        return [(number, at_s) for number in over]

    def _admit(self) -> None:
        for number in list(self.waiting):
            exchange_s = self.tasks[number].exchange_s
            if starts(self.rule, exchange_s, list(self.sending.values()), self.penalty):
                self.waiting.remove(number)
                self.sending[number] = exchange_s


class LinkRates:
    """Speeds of running jobs whose exchanges are put in order on the links they share.

    What a job exchanges is the part of its step that sticks out when it has its links to itself: its speed alone says
    how long that is, its speed beside one other how much sharing costs beyond halving the link. A job on several shared
    links is as slow as on the slowest.
    """

    def __init__(self, speed: Speed, floor: GangPlacer, rule: LinkRule) -> None:
        self.speed, self.floor, self.rule = speed, floor, rule
        self.group_rates: dict[tuple[tuple[Task, ...], float], list[float]] = {}
        self.by_parts = speed.by_parts
        self.rates: dict[tuple[Hashable, Shape], float] = {}

    def shared(
        self, jobs: Mapping[int, Job], placed: Mapping[int, Held], left: Mapping[int, float]
    ) -> dict[int, float]:
        """Return the speed of every running job; `left` is the remaining service that orders them."""
        tasks, penalties, rates = {}, {}, {}
        for number, job in jobs.items():
            alone, beside = (self._rate(job, placed[number], sharers) for sharers in (1, 2))
            step_s = job.iteration_s or 1.0
            tasks[number] = Task(step_s, step_s * max(1 / alone - 1, 0.0))
            exposed = max(1 / alone - 1, 1e-12)
            penalties[number] = max(0.0, (1 / beside - 1) / exposed - 2) if exposed > 1e-9 else 0.0
            rates[number] = alone
        for group in self._links(placed):
            ordered = sorted((number for number in group if tasks[number].exchange_s > 0), key=lambda n: left[n])
            if len(ordered) < 2:
                continue
            for number, rate in zip(ordered, self._group(ordered, tasks, penalties), strict=True):
                rates[number] = min(rates[number], rate * tasks[number].compute_s)
        return rates

    def _group(self, ordered: list[int], tasks: Mapping[int, Task], penalties: Mapping[int, float]) -> list[float]:
        penalty = round(min(1.0, float(np.mean([penalties[number] for number in ordered]))), 3)
        key = (tuple(tasks[number] for number in ordered), penalty)
        if key not in self.group_rates:
            self.group_rates[key] = link_rates(key[0], self.rule, penalty)
        return self.group_rates[key]

    def _rate(self, job: Job, held: Held, sharers: int) -> float:
        levels = len(self.floor.cluster.levels)
        machine = self.floor.cluster.machine
        beside = tuple(sharers if level >= machine else 1 for level in range(levels))
        shape = self.floor.shape(held, by_parts=self.by_parts, sharers=beside)
        key = (self.speed.kind(job), shape)
        if key not in self.rates:
            self.rates[key] = self.speed.rate(job, shape)
        return self.rates[key]

    def _links(self, placed: Mapping[int, Held]) -> list[list[int]]:
        """Return the jobs on every link out of a machine or wider domain that more than one crosses; each set once."""
        cluster, groups = self.floor.cluster, {}
        for level in range(cluster.machine, len(cluster.levels)):
            crossing: dict[int, list[int]] = {}
            for number, held in placed.items():
                domains = np.unique(cluster.domain[level][list(held)])
                for domain in domains if len(domains) > 1 else ():
                    crossing.setdefault(int(domain), []).append(number)
            groups.update({tuple(group): group for group in crossing.values() if len(group) > 1})
        return list(groups.values())
