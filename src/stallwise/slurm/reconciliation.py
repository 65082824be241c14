"""The controller's rows brought to agree with what Slurm reports: Slurm wins, by the rules below. Pure functions.

A row changes only here and in `actions`, which records what is about to be done. Whatever happened since the last poll
(a kill between writing and doing, a job cancelled, edited, released or requeued by hand, a node that died) is
one cell of this table:

| row       | Slurm: held    | waiting, free        | running              | ending   | over       | gone        |
| none      | new, waiting   | not ours             | not ours             | not ours | not ours   | not ours    |
| waiting   | waiting        | left (by hand)       | left                 | left     | done       | done        |
| starting  | waiting again  | starting, or holding | running              | ending   | done (ran) | done        |
| holding   | waiting        | holding              | running              | ending   | done (ran) | done        |
| running   | waiting (stop) | holding (node died)  | running              | ending   | done       | done        |
| warned    | waiting (stop) | holding              | warned               | ending   | done       | done        |
| returning | waiting (stop) | holding              | running              | ending   | returning  | done (lost) |
| stopping  | waiting (stop) | holding              | stopping, or running | ending   | done       | done        |
| ending    | waiting (stop) | holding              | running              | ending   | done       | done        |
| done      | waiting        | left                 | left                 | done     | done       | done        |
| left      | waiting        | left                 | left                 | left     | done       | done        |

One cell has an exception: a job without a row that runs on exactly the nodes its mark says we pinned it to is ours. Its
row was lost; it is taken up with a lease from now.

Lost: it exited after a TERM with work undone, and Slurm forgot it (`MinJobAge`) before it was requeued; it is logged.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stallwise.slurm.facts import JobDescription, SlurmJob, description_in
from stallwise.slurm.state import JobRow, Phase

_LIVE = ("running", "warned", "stopping")
_ID_REUSED_S = 1.5
FOREVER_S = 10 * 365 * 86400.0
"""Of a lease without end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleTiming:
    """Seconds that transitions may take."""

    start_s: float = 20.0
    """A released job that does not start is held back."""
    stop_s: float = 20.0
    """A requeue that did not begin is requested again."""
    retry_s: float = 10.0
    """A job that was held back is not tried again before this, doubling each time."""
    most_retry_s: float = 120.0
    misfit_s: float = 3.0
    """A job that fits no free nodes lets others go first for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """Rows that agree with Slurm, and what must be done to make Slurm agree with them."""

    rows: Mapping[str, JobRow]
    changed: tuple[JobRow, ...]
    hold: tuple[str, ...]
    """Jobs to hold: Slurm could start them on nodes that are no longer meant."""
    events: tuple[tuple[str, str], ...]
    """Job and event, for the log."""


def reconcile(
    rows: Mapping[str, JobRow],
    jobs: Iterable[SlurmJob],
    partition: str,
    now_s: float,
    timing: ScheduleTiming,
    rate: Callable[[JobRow], float] = lambda row: 1.0,
    lease_s: float = math.inf,
) -> Reconciliation:
    """Update rows by what Slurm reports. `rate` returns the speed of a running job at its placement.

    `lease_s`: of a job that runs and is taken up again.
    """
    by_key = {job.key: job for job in jobs if job.partition == partition}
    updated: dict[str, JobRow] = {}
    events: list[tuple[str, str]] = []
    hold: list[str] = []
    busy = _busy_nodes(rows.values())
    for key, job in by_key.items():
        old = rows.get(key)
        row = _new_row(job, now_s + min(lease_s, FOREVER_S)) if old is None or _is_another(old, job) else old
        if row is None:
            continue
        new = _step(row, job, now_s, timing, waits_for_others=bool(busy & set(row.placed)))
        new = _with_work(row, new, rate)
        if new.phase == "holding" and job.pending and not job.held:
            hold.append(key)
        if new.phase != row.phase or old is None:
            events.append((key, new.phase if old is not None else "adopted" if row.phase == "running" else "new"))
        updated[key] = new
    for key, row in rows.items():
        if key not in updated:
            updated[key] = row if row.phase == "done" else _with_work(row, _over(row, now_s), rate)
            if updated[key] is not row:
                events.append((key, "lost" if row.phase == "returning" else "done"))
    changed = tuple(row for key, row in updated.items() if rows.get(key) != row)
    return Reconciliation(rows=updated, changed=changed, hold=tuple(hold), events=tuple(events))


def _busy_nodes(rows: Iterable[JobRow]) -> set[str]:
    """Return nodes that our jobs are just leaving."""
    return {node for row in rows if row.phase in ("warned", "stopping", "ending") for node in row.placed}


def _is_another(row: JobRow, job: SlurmJob) -> bool:
    """Tell whether the id was given again to another job (slurmctld lost its state)."""
    return (
        row.phase in ("done", "left")
        and job.restarts == 0
        and abs(job.submit_s - row.submit_s) > _ID_REUSED_S
        and job.held
    )


def _new_row(job: SlurmJob, lease_s: float) -> JobRow | None:
    """Return a row for a job without one: held, not by an administrator, or running where we pinned it.

    `lease_s`: when its lease ends if it is running.
    """
    if job.running and job.mark is not None and job.mark.pinned_to(job.required) and job.held_gpus:
        return _adopted(job, lease_s)
    if not job.held or job.reason == "JobHeldAdmin":
        return None
    return _described(job)


def _adopted(job: SlurmJob, lease_s: float) -> JobRow:
    """Return the row of a job that runs and whose row was lost. What it had run before this start is not known."""
    return replace(
        _described(job),
        phase="running",
        since_s=job.start_s,
        asked_s=job.start_s,
        first_s=job.start_s,
        granted_s=job.start_s,
        lease_s=lease_s,
        placed=dict(job.held_gpus),
        starts=job.restarts + 1,
        stops=job.restarts,
        restarts=job.restarts,
    )


def _described(job: SlurmJob) -> JobRow:
    """Return the row of a waiting job."""
    description = description_in(job.comment) or JobDescription()
    least, most, required = requested_nodes(job)
    return JobRow(
        key=job.key,
        submit_s=job.submit_s,
        since_s=job.submit_s,
        gang=_gang(job, least),
        per_node=job.per_node,
        least_nodes=least,
        most_nodes=most,
        required=required,
        asked_s=max(job.submit_s, 0.0),
        model=description.model,
        speeds=description.speeds,
    )


def requested_nodes(job: SlurmJob) -> tuple[int, int, tuple[str, ...]]:
    """Return least nodes, most nodes and nodes by name as the user requested them; what a pin overwrote is in its mark.

    What differs from the pin was changed since, and counts. Of a job that has run Slurm reports the number of nodes it
    had instead of the number it may have: then the mark's counts.
    """
    mark = job.mark
    if mark is None:
        return job.least_nodes, job.most_nodes, job.required
    ours = job.restarts > 0 or (job.least_nodes, job.most_nodes) == (mark.nodes, mark.nodes)
    least, most = (mark.least, mark.most) if ours else (job.least_nodes, job.most_nodes)
    return least, most, mark.required if mark.pinned_to(job.required) else job.required


def _gang(job: SlurmJob, least: int) -> int:
    """Return GPUs in all; where a job gives them per node, a pin to other nodes must not change that."""
    return job.gang if not job.per_node or job.in_all else job.per_node * least


def _step(row: JobRow, job: SlurmJob, now_s: float, timing: ScheduleTiming, *, waits_for_others: bool) -> JobRow:
    if job.over and row.phase in ("warned", "returning") and job.exit_code != 0 and job.state != "CANCELLED":
        return _with_time(row, _end(job, now_s), "returning", row.since_s)  # it saved and exited: not done
    if job.over:
        return _over(_ran_between(row, job), now_s, job)
    if job.running:
        return _running(row, job, now_s, timing)
    if job.held:
        return _held(row, job, now_s, timing)
    if job.pending:
        return _free(row, job, now_s, timing, waits_for_others=waits_for_others)
    # Completing: its processes are being ended.
    if row.phase in ("done", "left", "ending"):
        return row
    if row.phase == "waiting":
        return replace(row, phase="left", since_s=now_s)
    return _with_time(_ran_between(row, job), _end(job, now_s), "ending", now_s)


def _end(job: SlurmJob, now_s: float) -> float:
    return job.end_s if 0 < job.end_s <= now_s else now_s


def _ran_between(row: JobRow, job: SlurmJob) -> JobRow:
    """Update a released job that started and ended between two polls."""
    if row.phase in ("starting", "holding") and job.start_s >= row.since_s - 1 and job.end_s >= job.start_s > 0:
        return _began(row, job)
    return row


def _began(row: JobRow, job: SlurmJob) -> JobRow:
    first = job.start_s if row.first_s is None else row.first_s
    return replace(
        row,
        phase="running",
        since_s=job.start_s,
        granted_s=job.start_s,
        lease_s=row.lease_s + max(0.0, job.start_s - row.since_s),
        first_s=first,
        starts=row.starts + 1,
        tries=0,
        restarts=job.restarts,
        placed=dict(job.held_gpus) or row.placed,
    )


def _with_time(row: JobRow, end_s: float, phase: Phase, now_s: float) -> JobRow:
    """Add the time a running job had; it waits from then on."""
    if row.phase not in _LIVE:
        return replace(row, phase=phase, since_s=now_s)
    spent = max(0.0, end_s - row.granted_s)
    return replace(row, phase=phase, since_s=now_s, ran_s=row.ran_s + spent, asked_s=end_s)


def _with_work(old: JobRow, new: JobRow, rate: Callable[[JobRow], float]) -> JobRow:
    """Add the work done in the time that was added."""
    spent = new.ran_s - old.ran_s
    return replace(new, done_s=new.done_s + spent * rate(old if old.placed else new)) if spent > 0 else new


def _over(row: JobRow, now_s: float, job: SlurmJob | None = None) -> JobRow:
    if row.phase == "done":
        return row
    return _with_time(row, now_s if job is None else _end(job, now_s), "done", now_s)


def _running(row: JobRow, job: SlurmJob, now_s: float, timing: ScheduleTiming) -> JobRow:
    if row.phase in ("starting", "holding"):
        return _began(row, job)
    if row.phase in ("waiting", "done"):
        return replace(row, phase="left", since_s=now_s)
    if row.phase == "left":
        return row
    if row.phase in ("ending", "returning") or job.restarts != row.restarts:
        return _began(replace(row, phase="starting"), job)
    if row.phase == "stopping" and now_s - row.since_s > timing.stop_s:
        row = replace(row, phase="running", since_s=now_s)
    placed = dict(job.held_gpus)
    return replace(row, placed=placed) if placed and placed != row.placed else row


def _held(row: JobRow, job: SlurmJob, now_s: float, timing: ScheduleTiming) -> JobRow:
    edited = _edited(row, job)
    if row.phase == "waiting":
        return edited
    if row.phase in ("starting", "holding"):  # the release failed, or it was held back
        tries = row.tries + (row.phase == "starting")
        return replace(edited, phase="waiting", since_s=now_s, placed={}, tries=tries)
    stopped = _with_time(edited, now_s, "waiting", now_s)
    if row.phase in _LIVE and job.restarts == row.restarts:
        # No requeue brought it here: slurmctld came back with an older state and has yet to end what runs.
        stopped = replace(stopped, not_before_s=now_s + timing.retry_s)
    waiting_since_s = now_s if row.phase in ("done", "left") else stopped.asked_s
    counts = row.phase not in ("done", "left")
    return replace(stopped, placed={}, asked_s=waiting_since_s, stops=row.stops + counts)


def _edited(row: JobRow, job: SlurmJob) -> JobRow:
    """Take over what a user changed on a waiting job: its GPUs, its nodes, its description."""
    description = description_in(job.comment) or JobDescription()
    # Without a mark, a pin or what Slurm reports of a job that has run is not the user's request: the first one stays.
    untouched = row.phase == "waiting" and not (row.starts or row.stops or row.tries or job.restarts)
    plain = job.mark is not None or (job.markable and untouched)
    least, most, required = requested_nodes(job) if plain else (row.least_nodes, row.most_nodes, row.required)
    changed: dict[str, object] = {"gang": _gang(job, least), "per_node": job.per_node}
    changed |= {"least_nodes": least, "most_nodes": most, "required": required}
    changed |= {"model": description.model, "speeds": description.speeds}
    if all(getattr(row, name) == value for name, value in changed.items()):
        return row
    return replace(row, **changed)  # type: ignore[arg-type]


def _free(row: JobRow, job: SlurmJob, now_s: float, timing: ScheduleTiming, *, waits_for_others: bool) -> JobRow:
    """Update a job that waits and is not held: released by us, requeued by Slurm itself, or released by others."""
    if row.phase in ("waiting", "done"):
        return replace(row, phase="left", since_s=now_s)
    if row.phase == "left":
        return row
    if row.phase == "starting" and job.restarts == row.restarts:
        late = now_s - row.since_s > timing.start_s and not waits_for_others
        return held_back(row, now_s, timing) if late else row
    if row.phase == "holding":
        return row
    if row.phase == "starting":  # it ran between two polls, and Slurm requeued it
        return held_back(replace(row, starts=row.starts + 1, stops=row.stops + 1), now_s, timing)
    stopped = _with_time(row, now_s, "holding", now_s)
    return replace(stopped, placed={}, stops=row.stops + 1)


def put_off(row: JobRow, now_s: float, timing: ScheduleTiming) -> JobRow:
    """Put off a job that fits no free nodes: others go first for a while, which does not grow since nothing failed."""
    return replace(row, since_s=now_s, placed={}, not_before_s=now_s + timing.misfit_s)


def held_back(row: JobRow, now_s: float, timing: ScheduleTiming, phase: Phase = "holding") -> JobRow:
    """Put off a job whose start failed, longer each time, so that others have their turn."""
    pause = min(timing.most_retry_s, timing.retry_s * 2**row.tries)
    return replace(row, phase=phase, since_s=now_s, placed={}, tries=row.tries + 1, not_before_s=now_s + pause)
