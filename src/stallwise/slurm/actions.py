"""Plans carried out, each action first recorded, then done, one job after the other.

A start is pin and release. Both can be repeated, and a job that is held cannot run, so at whatever point this is
killed, the next poll of Slurm shows what was done (`reconciliation`). A stop is Slurm's own requeue-and-hold, one
command: TERM to all processes, KILL after KillWait, back into the queue, held. A grace longer than KillWait is given
before it, by a TERM of our own.

`release_all` ends the scheduling: every waiting job goes to plain Slurm, with the nodes it requested itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from stallwise.cluster.live import PastWait
from stallwise.slurm._placement import NodeLayout
from stallwise.slurm._plan import MISFIT, SchedulePlan, Start
from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import PinMark, SlurmError, SlurmJob, mark_text
from stallwise.slurm.reconciliation import FOREVER_S, ScheduleTiming, held_back, put_off, requested_nodes
from stallwise.slurm.state import ControllerState, JobRow

LogAction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class PlanExecutor:
    """Acts on Slurm, and records every action before it."""

    slurm: Slurm
    state: ControllerState
    timing: ScheduleTiming
    log: LogAction
    """Writes one line of the decision log: action, job, and further fields."""
    lease_s: float
    grace_s: float
    """From TERM to KILL."""

    def carry_out(
        self,
        plan: SchedulePlan,
        rows: Mapping[str, JobRow],
        jobs: Mapping[str, SlurmJob],
        layout: NodeLayout,
        now_s: float,
    ) -> None:
        """Carry out a whole plan."""
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
        """Hold jobs that must not start where they are pinned; failures are tried again at the next poll."""
        for key in keys:
            self._try("hold", key, self.slurm.hold)

    def end_warnings(self, rows: Mapping[str, JobRow], now_s: float) -> None:
        """Requeue jobs whose grace is over."""
        warned_s = self.grace_s - self.slurm.seconds("KillWait", 30.0)
        for row in rows.values():
            if row.phase == "warned" and now_s - row.since_s >= warned_s:
                self._requeue(row, now_s)
            elif row.phase == "returning":
                self._try("requeue", row.key, self.slurm.requeue_hold)

    def _renew(self, plan: SchedulePlan, rows: Mapping[str, JobRow], now_s: float) -> None:
        self.state.save([replace(rows[key], lease_s=now_s + self.lease_s) for key in plan.renew])
        for key in plan.renew:
            self.log("renew", key, nodes=rows[key].placed)

    def _stop(self, row: JobRow, now_s: float) -> None:
        if self.grace_s <= self.slurm.seconds("KillWait", 30.0):
            self._requeue(row, now_s)
            return
        self.state.save([replace(row, phase="warned", since_s=now_s)])
        if self._try("warn", row.key, self.slurm.warn):
            self.log("warn", row.key, nodes=row.placed, grace_s=self.grace_s)

    def _requeue(self, row: JobRow, now_s: float) -> None:
        self.state.save([replace(row, phase="stopping", since_s=now_s)])
        if self._try("requeue", row.key, self.slurm.requeue_hold):
            self.log("stop", row.key, nodes=row.placed, ran_s=round(row.ran_s + now_s - row.granted_s, 1))

    def _free(self, plan: SchedulePlan, rows: Mapping[str, JobRow], now_s: float) -> None:
        self.state.save([replace(rows[key], phase="left", since_s=now_s) for key in plan.free])
        for key in plan.free:
            if self._try("release", key, self.slurm.release):
                self.log("release", key, why="Slurm alone places it")

    def _misfits(self, plan: SchedulePlan, rows: Mapping[str, JobRow], now_s: float) -> None:
        self.state.save([put_off(rows[key], now_s, self.timing) for key in plan.misfit])
        for key in plan.misfit:
            self.log("misfit", key, why=str(MISFIT))

    def _start(self, row: JobRow, start: Start, layout: NodeLayout, now_s: float, job: SlurmJob) -> None:
        again = row.restarts > 0 or row.stops > 0
        mark = PinMark.of(row.least_nodes, row.most_nodes, row.required, start.placed)
        text, marked = mark_text(mark) if job.markable else None, job.mark is not None
        pin = partial(self.slurm.pin, nodes=list(start.placed), now=again, mark=text, marked=marked)
        if not self._try("pin", row.key, pin):
            self.state.save([held_back(row, now_s, self.timing, "waiting")])
            return
        if not self._try("release", row.key, self.slurm.release):
            return  # it may have succeeded: the next poll shows
        level = layout.level_name(start.level)
        if start.level <= 1:
            self.state.note_wait(
                PastWait(gang=row.gang, level=("machine", "rack")[start.level], time_s=now_s, wait_s=start.waited_s)
            )
        self.log(
            "start", row.key, gpus=row.gang, nodes=dict(start.placed), level=level, waited_s=round(start.waited_s, 1)
        )

    def _try(self, what: str, key: str, act: Callable[[str], None]) -> bool:
        """Act on a job; what Slurm refuses is logged and left to the next poll."""
        try:
            act(key)
        except SlurmError as error:
            self.log("failed", key, action=what, why=str(error))
            return False
        return True


def _starting(row: JobRow, start: Start, job: SlurmJob, now_s: float, lease_s: float) -> JobRow:
    return replace(
        row,
        phase="starting",
        since_s=now_s,
        placed=dict(start.placed),
        waited_s=start.kept_wait_s,
        lease_s=now_s + min(lease_s, FOREVER_S),
        restarts=job.restarts,
    )


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """One job that was released, or the error."""

    job: str
    error: str | None = None


def release_all(slurm: Slurm, partition: str, rows: Mapping[str, JobRow]) -> Iterator[ReleaseResult]:
    """Unpin and release every held job of the partition, and unpin those about to start; running ones are not touched.

    What a job requested itself is in the mark its pin left, so this works without a state too; a job that could not be
    marked then keeps the number of nodes it was last pinned to. Jobs an administrator holds stay held.
    """
    for job in slurm.jobs():
        if job.partition != partition or not job.pending or job.reason == "JobHeldAdmin":
            continue
        row = rows.get(job.key)
        marked = job.mark is not None or job.mark_is_long
        if job.held or marked or (row is not None and row.phase in ("starting", "holding")):
            yield _release(slurm, job, row)


def _release(slurm: Slurm, job: SlurmJob, row: JobRow | None) -> ReleaseResult:
    try:
        if job.mark is not None:
            least, most, required = requested_nodes(job)
            slurm.unpin(job.key, least, most, required, marked=True)
        elif row is not None and (job.required != row.required or job.mark_is_long):
            slurm.unpin(job.key, row.least_nodes, row.most_nodes, row.required, marked=job.mark_is_long)
        elif row is None and (job.mark_is_long or (job.required and job.restarts > 0)):
            slurm.unpin(job.key, job.least_nodes, job.most_nodes, marked=job.mark_is_long)
        if job.restarts > 0:
            slurm.start_now(job.key)
        slurm.release(job.key)
    except SlurmError as error:
        return ReleaseResult(job.key, str(error))
    return ReleaseResult(job.key)
