"""A plan carried out: first written down, then done, one job after the other.

A start is pin and release. Both can be repeated, and a job that is held cannot run, so whatever point this is
killed at, the next look at Slurm tells what was done (`reconcile.py`). A stop is Slurm's own requeue-and-hold, one
command: TERM to all processes, KILL after KillWait, back into the queue, held. A grace longer than KillWait is given
before it, by a TERM of our own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from stallwise.cluster.resume import Wait
from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmError, SlurmJob
from stallwise.slurm.layout import Layout
from stallwise.slurm.mark import Mark, text_of
from stallwise.slurm.plan import MISFIT, Plan, Start
from stallwise.slurm.reconcile import Timing, held_back, put_off
from stallwise.slurm.state import Row, State

_FOR_EVER_S = 10 * 365 * 86400.0
Tell = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Hands:
    """What acts on Slurm, and writes down before it does."""

    slurm: Slurm
    state: State
    timing: Timing
    tell: Tell
    """One line of the decision log: what, job, and more."""
    lease_s: float
    grace_s: float
    """From TERM to KILL."""

    def carry_out(
        self, plan: Plan, rows: Mapping[str, Row], jobs: Mapping[str, SlurmJob], layout: Layout, now_s: float
    ) -> None:
        """All of a plan."""
        self._renew(plan, rows, now_s)
        for key in plan.stop:
            self._stop(rows[key], now_s)
        self._free(plan, rows, now_s)
        self._misfits(plan, rows, now_s)
        starting = {
            start.key: _starting(rows[start.key], start, jobs[start.key], now_s, self.lease_s) for start in plan.start
        }
        self.state.save(starting.values())
        for start in plan.start:
            self._start(starting[start.key], start, layout, now_s, jobs[start.key])

    def hold_all(self, keys: tuple[str, ...]) -> None:
        """Hold jobs that must not start where they are pinned; who cannot be held is tried again at the next look."""
        for key in keys:
            self._try("hold", key, self.slurm.hold)

    def end_warnings(self, rows: Mapping[str, Row], now_s: float) -> None:
        """Jobs that were told to stop long enough ago are requeued."""
        warned_s = self.grace_s - self.slurm.seconds("KillWait", 30.0)
        for row in rows.values():
            if row.phase == "warned" and now_s - row.since_s >= warned_s:
                self._requeue(row, now_s)
            elif row.phase == "returning":
                self._try("requeue", row.key, self.slurm.requeue_hold)

    def _renew(self, plan: Plan, rows: Mapping[str, Row], now_s: float) -> None:
        self.state.save([replace(rows[key], lease_s=now_s + self.lease_s) for key in plan.renew])
        for key in plan.renew:
            self.tell("renew", key, nodes=rows[key].placed)

    def _stop(self, row: Row, now_s: float) -> None:
        if self.grace_s <= self.slurm.seconds("KillWait", 30.0):
            self._requeue(row, now_s)
            return
        self.state.save([replace(row, phase="warned", since_s=now_s)])
        if self._try("warn", row.key, self.slurm.warn):
            self.tell("warn", row.key, nodes=row.placed, grace_s=self.grace_s)

    def _requeue(self, row: Row, now_s: float) -> None:
        self.state.save([replace(row, phase="stopping", since_s=now_s)])
        if self._try("requeue", row.key, self.slurm.requeue_hold):
            self.tell("stop", row.key, nodes=row.placed, ran_s=round(row.ran_s + now_s - row.granted_s, 1))

    def _free(self, plan: Plan, rows: Mapping[str, Row], now_s: float) -> None:
        self.state.save([replace(rows[key], phase="left", since_s=now_s) for key in plan.free])
        for key in plan.free:
            if self._try("release", key, self.slurm.release):
                self.tell("release", key, why="Slurm alone places it")

    def _misfits(self, plan: Plan, rows: Mapping[str, Row], now_s: float) -> None:
        self.state.save([put_off(rows[key], now_s, self.timing) for key in plan.misfit])
        for key in plan.misfit:
            self.tell("misfit", key, why=MISFIT)

    def _start(self, row: Row, start: Start, layout: Layout, now_s: float, job: SlurmJob) -> None:
        again = row.restarts > 0 or row.stops > 0
        mark = Mark.of(row.least_nodes, row.most_nodes, row.required, start.placed)
        text, marked = text_of(mark) if job.markable else None, job.mark is not None
        pin = partial(self.slurm.pin, nodes=list(start.placed), now=again, mark=text, marked=marked)
        if not self._try("pin", row.key, pin):
            self.state.save([held_back(row, now_s, self.timing, "waiting")])
            return
        if not self._try("release", row.key, self.slurm.release):
            return  # it may have come through: the next look tells
        level = layout.level_name(start.level)
        if start.level <= 1:
            self.state.note_wait(
                Wait(gang=row.gang, level=("machine", "rack")[start.level], time_s=now_s, wait_s=start.waited_s)
            )
        self.tell(
            "start", row.key, gpus=row.gang, nodes=dict(start.placed), level=level, waited_s=round(start.waited_s, 1)
        )

    def _try(self, what: str, key: str, act: Callable[[str], None]) -> bool:
        """Do it; what Slurm says no to is told and left to the next look."""
        try:
            act(key)
        except SlurmError as error:
            self.tell("failed", key, action=what, why=str(error))
            return False
        return True


def _starting(row: Row, start: Start, job: SlurmJob, now_s: float, lease_s: float) -> Row:
    return replace(
        row,
        phase="starting",
        since_s=now_s,
        placed=dict(start.placed),
        waited_s=start.kept_wait_s,
        lease_s=now_s + min(lease_s, _FOR_EVER_S),
        restarts=job.restarts,
    )
