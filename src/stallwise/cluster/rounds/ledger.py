"""What a simulation in rounds writes down of every job, and the cluster over time."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stallwise.cluster.job import Job
from stallwise.cluster.outcome import Outcome, Series

Floats = npt.NDArray[np.float64]


class Ledger:
    """Times and counts of jobs in order of arrival; `turn` is the place of each in what was given."""

    def __init__(self, jobs: Sequence[Job], gpus: int) -> None:
        self.given = tuple(jobs)
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
        """The cluster from now on: GPUs in use, jobs on them, and the gangs of those that wait."""
        free = self.gpus - busy
        idle = free if any(gang <= free for gang in waiting) else 0
        self._series.append((time_s, busy, running, len(waiting), int(sum(waiting)), idle))

    def outcome(self, policy: str, *, gangs: bool = True) -> Outcome:
        """In the order the jobs were given in.

        Time lost is what a job ran beyond its work, which is that of its gang in the trace. Where jobs get other
        numbers of GPUs (not `gangs`) the two do not compare, and nothing is said to be lost.
        """
        back = np.argsort(np.array(self.turn), kind="stable")
        work = np.array([job.work_s for job in self.given])
        run_s, over_s = self.ran[back], self.over[back]
        rows = np.array(self._series or [(0.0, 0, 0, 0, 0, 0)])
        return Outcome(
            jobs=self.given,
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
            series=Series.of(rows),
            events=self.rounds,
            held_gpu_s=self.held_gpu_s[back],
        )
