"""What we know of jobs against what Slurm says: Slurm wins, and everything in between has a rule. Pure functions.

A row changes only here and in `carry.py`, which writes down what is about to be done. Whatever happened while nobody
looked (a kill between writing and doing, a job cancelled, edited, released or requeued by hand, a node that died) is
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

Lost: it left after a TERM with work undone, and Slurm forgot it (`MinJobAge`) before it was put back; the log says so.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stallwise.slurm.ask import Ask, ask_in
from stallwise.slurm.facts import SlurmJob
from stallwise.slurm.state import Phase, Row

_LIVE = ("running", "warned", "stopping")
_ID_REUSED_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long things may take before something is done about them."""

    start_s: float = 20.0
    """A released job that does not start is held back."""
    stop_s: float = 20.0
    """A requeue that was asked for and did not begin is asked for again."""
    retry_s: float = 10.0
    """A job that was held back is not tried again before this, and doubling."""
    most_retry_s: float = 120.0
    misfit_s: float = 3.0
    """A job that no free nodes fit lets others go first for so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The partition as it is: rows that agree with Slurm, and what must be done to make Slurm agree with them."""

    rows: Mapping[str, Row]
    changed: tuple[Row, ...]
    hold: tuple[str, ...]
    """Jobs that Slurm could start on nodes that are no longer meant: hold them."""
    events: tuple[tuple[str, str], ...]
    """(job, what happened), for the log."""


def reconcile(
    rows: Mapping[str, Row],
    jobs: Iterable[SlurmJob],
    partition: str,
    now_s: float,
    timing: Timing,
    rate: Callable[[Row], float] = lambda row: 1.0,
) -> View:
    """Bring rows up to what Slurm says. `rate` is the speed of a running job where it is."""
    found = {job.key: job for job in jobs if job.partition == partition}
    view: dict[str, Row] = {}
    events: list[tuple[str, str]] = []
    hold: list[str] = []
    busy = _busy_nodes(rows.values())
    for key, job in found.items():
        old = rows.get(key)
        row = _taken_up(job) if old is None or _another(old, job) else old
        if row is None:
            continue
        new = _step(row, job, now_s, timing, waits_for_others=bool(busy & set(row.placed)))
        new = _credited(row, new, rate)
        if new.phase == "holding" and job.pending and not job.held:
            hold.append(key)
        if new.phase != row.phase or old is None:
            events.append((key, new.phase if old is not None else "new"))
        view[key] = new
    for key, row in rows.items():
        if key not in view:
            view[key] = row if row.phase == "done" else _credited(row, _over(row, now_s), rate)
            if view[key] is not row:
                events.append((key, "lost" if row.phase == "returning" else "done"))
    changed = tuple(row for key, row in view.items() if rows.get(key) != row)
    return View(rows=view, changed=changed, hold=tuple(hold), events=tuple(events))


def _busy_nodes(rows: Iterable[Row]) -> set[str]:
    """Nodes that jobs of ours are just leaving."""
    return {node for row in rows if row.phase in ("warned", "stopping", "ending") for node in row.placed}


def _another(row: Row, job: SlurmJob) -> bool:
    """A number that was given again to another job (slurmctld lost its state)."""
    return (
        row.phase in ("done", "left")
        and job.restarts == 0
        and abs(job.submit_s - row.submit_s) > _ID_REUSED_S
        and job.held
    )


def _taken_up(job: SlurmJob) -> Row | None:
    """A row for a job seen for the first time: only held ones are ours, and not those an administrator holds."""
    if not job.held or job.reason == "JobHeldAdmin":
        return None
    ask = ask_in(job.comment) or Ask()
    least, most, required = asked(job)
    return Row(
        key=job.key,
        submit_s=job.submit_s,
        since_s=job.submit_s,
        gang=_gang(job, least),
        per_node=job.per_node,
        least_nodes=least,
        most_nodes=most,
        required=required,
        asked_s=max(job.submit_s, 0.0),
        model=ask.model,
        speeds=ask.speeds,
    )


def asked(job: SlurmJob) -> tuple[int, int, tuple[str, ...]]:
    """Least nodes, most nodes and nodes by name as the user wants them: what our pin wrote over is in its mark.

    What differs from the pin somebody has changed since, and counts. Of a job that has run Slurm tells the number of
    nodes it had instead of the number it may have: then the mark's counts.
    """
    mark = job.mark
    if mark is None:
        return job.least_nodes, job.most_nodes, job.required
    ours = job.restarts > 0 or (job.least_nodes, job.most_nodes) == (mark.nodes, mark.nodes)
    least, most = (mark.least, mark.most) if ours else (job.least_nodes, job.most_nodes)
    return least, most, mark.required if mark.pinned_to(job.required) else job.required


def _gang(job: SlurmJob, least: int) -> int:
    """GPUs in all; where a job only says how many per node, a pin to other nodes must not change that."""
    return job.gang if not job.per_node or job.in_all else job.per_node * least


def _step(row: Row, job: SlurmJob, now_s: float, timing: Timing, *, waits_for_others: bool) -> Row:
    if job.over and row.phase in ("warned", "returning") and job.exit_code != 0 and job.state != "CANCELLED":
        return _settled(row, _end(job, now_s), "returning", row.since_s)  # it saved itself and left: not done
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
    return _settled(_ran_between(row, job), _end(job, now_s), "ending", now_s)


def _end(job: SlurmJob, now_s: float) -> float:
    return job.end_s if 0 < job.end_s <= now_s else now_s


def _ran_between(row: Row, job: SlurmJob) -> Row:
    """A released job that started and ended between two looks."""
    if row.phase in ("starting", "holding") and job.start_s >= row.since_s - 1 and job.end_s >= job.start_s > 0:
        return _began(row, job)
    return row


def _began(row: Row, job: SlurmJob) -> Row:
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


def _settled(row: Row, end_s: float, phase: Phase, now_s: float) -> Row:
    """Book the time a running job had; it waits from then on."""
    if row.phase not in _LIVE:
        return replace(row, phase=phase, since_s=now_s)
    spent = max(0.0, end_s - row.granted_s)
    return replace(row, phase=phase, since_s=now_s, ran_s=row.ran_s + spent, asked_s=end_s)


def _credited(old: Row, new: Row, rate: Callable[[Row], float]) -> Row:
    """Book the work done in the time that was booked."""
    spent = new.ran_s - old.ran_s
    return replace(new, done_s=new.done_s + spent * rate(old if old.placed else new)) if spent > 0 else new


def _over(row: Row, now_s: float, job: SlurmJob | None = None) -> Row:
    if row.phase == "done":
        return row
    return _settled(row, now_s if job is None else _end(job, now_s), "done", now_s)


def _running(row: Row, job: SlurmJob, now_s: float, timing: Timing) -> Row:
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
    held = dict(job.held_gpus)
    return replace(row, placed=held) if held and held != row.placed else row


def _held(row: Row, job: SlurmJob, now_s: float, timing: Timing) -> Row:
    edited = _edited(row, job)
    if row.phase == "waiting":
        return edited
    if row.phase in ("starting", "holding"):  # the release never came through, or it was held back
        tries = row.tries + (row.phase == "starting")
        return replace(edited, phase="waiting", since_s=now_s, placed={}, tries=tries)
    stopped = _settled(edited, now_s, "waiting", now_s)
    if row.phase in _LIVE and job.restarts == row.restarts:
        # No requeue brought it here: slurmctld came back with an older state and has yet to end what runs.
        stopped = replace(stopped, not_before_s=now_s + timing.retry_s)
    asked = now_s if row.phase in ("done", "left") else stopped.asked_s
    counts = row.phase not in ("done", "left")
    return replace(stopped, placed={}, asked_s=asked, stops=row.stops + counts)


def _edited(row: Row, job: SlurmJob) -> Row:
    """What a user changed on a waiting job: its GPUs, its nodes, what it says about itself."""
    ask = ask_in(job.comment) or Ask()
    # Without a mark a pin, or what Slurm tells of a job that has run, is no user's word: what was first seen stays.
    untouched = row.phase == "waiting" and not (row.starts or row.stops or row.tries or job.restarts)
    plain = job.mark is not None or (job.markable and untouched)
    least, most, required = asked(job) if plain else (row.least_nodes, row.most_nodes, row.required)
    changed: dict[str, object] = {"gang": _gang(job, least), "per_node": job.per_node}
    changed |= {"least_nodes": least, "most_nodes": most, "required": required}
    changed |= {"model": ask.model, "speeds": ask.speeds}
    if all(getattr(row, name) == value for name, value in changed.items()):
        return row
    return replace(row, **changed)  # type: ignore[arg-type]


def _free(row: Row, job: SlurmJob, now_s: float, timing: Timing, *, waits_for_others: bool) -> Row:
    """Waiting and not held: just released by us, or requeued by Slurm itself, or released by somebody."""
    if row.phase in ("waiting", "done"):
        return replace(row, phase="left", since_s=now_s)
    if row.phase == "left":
        return row
    if row.phase == "starting" and job.restarts == row.restarts:
        late = now_s - row.since_s > timing.start_s and not waits_for_others
        return held_back(row, now_s, timing) if late else row
    if row.phase == "holding":
        return row
    if row.phase == "starting":  # it ran, between two looks, and Slurm took it back
        return held_back(replace(row, starts=row.starts + 1, stops=row.stops + 1), now_s, timing)
    stopped = _settled(row, now_s, "holding", now_s)
    return replace(stopped, placed={}, stops=row.stops + 1)


def put_off(row: Row, now_s: float, timing: Timing) -> Row:
    """Its turn came and no free nodes fit its words: others go first for a while. Nothing failed, so no longer."""
    return replace(row, since_s=now_s, placed={}, not_before_s=now_s + timing.misfit_s)


def held_back(row: Row, now_s: float, timing: Timing, phase: Phase = "holding") -> Row:
    """A start that came to nothing: wait a while, longer each time, so that others have their turn."""
    pause = min(timing.most_retry_s, timing.retry_s * 2**row.tries)
    return replace(row, phase=phase, since_s=now_s, placed={}, tries=row.tries + 1, not_before_s=now_s + pause)
