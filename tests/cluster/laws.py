"""What must hold after every event of any simulation, whatever the policy."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from stallwise.cluster._outcome import Outcome
from stallwise.cluster.engine.state import DONE, RUNNING, WAITING
from stallwise.cluster.simulator import SimulationView


@dataclass
class Watcher:
    """Checks every event and keeps its own account of the work done."""

    contention: bool = False
    time_s: float = 0.0
    speeds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """(work from, speed) of every running job since the last event."""
    done: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    events: int = 0

    def __call__(self, view: SimulationView) -> None:
        self._account(view)
        self._owners(view)
        self._counts(view)
        self.events += 1

    def _account(self, view: SimulationView) -> None:
        assert view.time_s >= self.time_s
        for job, (since, rate) in self.speeds.items():
            self.done[job] += rate * max(0.0, view.time_s - max(since, self.time_s))
        running = np.flatnonzero(view.rows["state"] == RUNNING)
        self.speeds = {int(job): (float(view.rows["since"][job]), float(view.rows["rate"][job])) for job in running}
        self.time_s = view.time_s

    def _owners(self, view: SimulationView) -> None:
        """No GPU twice: each is held by its owner, and shared only by a packed pair."""
        holders: dict[int, list[int]] = defaultdict(list)
        for job in np.flatnonzero(view.rows["state"] == RUNNING):
            held = view.gpus_of(int(job))
            assert len(set(held.tolist())) == view.rows["gang"][job]
            for gpu in held:
                holders[int(gpu)].append(int(job))
        for gpu, owner in enumerate(view.owner):
            jobs = holders.get(gpu, [])
            if owner < 0:
                assert not jobs
                continue
            assert owner in jobs
            guests = [job for job in jobs if job != owner]
            assert len(guests) <= 1
            assert all(view.rows["host"][job] == owner for job in guests)

    def _counts(self, view: SimulationView) -> None:
        """The counts of free GPUs per domain are those of the owners; no victim is left marked; no job is lost."""
        for level, row in enumerate(view.topology.domain):
            free = np.bincount(row[view.owner < 0], minlength=view.topology.free.shape[1])
            assert (free == view.topology.free[level]).all()
            assert (view.topology.open[level] == view.topology.free[level]).all()
        assert not view.rows["mark"].any()
        arrived = view.rows["arrival"] <= view.time_s
        assert np.isin(view.rows["state"][arrived], (0, WAITING, RUNNING, DONE)).all()
        assert (view.rows["state"][~arrived] == 0).all()


def check_outcome(outcome: Outcome, watcher: Watcher | None = None) -> None:
    """Every job ended after it arrived and did its work; time adds up."""
    assert len(outcome.finish_s) == len(outcome.jobs)
    assert (outcome.first_start_s >= outcome.arrival_s).all()
    assert (outcome.finish_s > outcome.arrival_s).all()
    assert (outcome.queue_s >= -1e-6 * (1 + outcome.finish_s)).all()
    assert (outcome.run_s - outcome.overhead_s >= outcome.work_s * (1 - 1e-9) - 1e-6).all()
    if watcher is not None:
        by_arrival = sorted(range(len(outcome.jobs)), key=lambda i: outcome.jobs[i].arrival_s)
        for row, index in enumerate(by_arrival):
            assert math.isclose(watcher.done[row], outcome.jobs[index].work_s, rel_tol=1e-6, abs_tol=1e-6)
