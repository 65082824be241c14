"""One decision: the partition as it is into what is to be done, through the policy objects of `cluster/`. Pure.

1. GPUs of running and starting jobs are theirs, those of other jobs and of unusable nodes are nobody's.
2. A scheduler is made from that (`cluster/resume.py`) and asked.
3. What it answers is turned into what Slurm can do: nodes to pin, jobs to requeue. A job that a lease's end stopped and
   that gets the same nodes again, or could keep them at no loss, just goes on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stallwise.cluster.job import Job
from stallwise.cluster.policy import Policy
from stallwise.cluster.resume import Standing, Wait, patience_s, resumed
from stallwise.cluster.scheduler import Scheduler
from stallwise.slurm.facts import SlurmJob, SlurmNode
from stallwise.slurm.layout import Layout
from stallwise.slurm.room import Spare, after_start, after_stop
from stallwise.slurm.shape import Bounds, fitted
from stallwise.slurm.speeds import Speeds, rate_at
from stallwise.slurm.state import Row
from stallwise.slurm.why import Why, reasons

_UNKNOWN_WORK_S = 86400.0
_REQUEUED_S = 180.0
_SEATED = ("running", "warned", "stopping", "starting")
MISFIT = "no free nodes fit what it asks for: their number or names, its CPUs or memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Pin a job to nodes and release it."""

    key: str
    placed: Mapping[str, int]
    """GPUs by node as the policy chose them; Slurm spreads them over these nodes as it can."""
    level: int
    waited_s: float
    """Until now, all that counts for its patience."""
    kept_wait_s: float
    """That counts on after this start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do, in this order."""

    stop: tuple[str, ...] = ()
    start: tuple[Start, ...] = ()
    free: tuple[str, ...] = ()
    """Jobs without GPUs, or that Slurm alone can place: released as they are."""
    renew: tuple[str, ...] = ()
    """Running jobs whose lease goes on."""
    misfit: tuple[str, ...] = ()
    """Jobs whose turn it was and whose shape does not fit where they would be put."""
    why: Mapping[str, Why] = field(default_factory=dict)
    next_s: float = math.inf
    free_gpus: int = 0
    lost_gpus: int = 0
    """Used by jobs that are not ours, or on nodes that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Everything a decision depends on."""

    layout: Layout
    nodes: Mapping[str, SlurmNode]
    rows: Mapping[str, Row]
    jobs: Mapping[str, SlurmJob]
    policy: Policy
    speeds: Mapping[str, tuple[float, ...]]
    """Corrected, by job."""
    waits: Sequence[Wait] = ()
    now_s: float = 0.0
    counts_memory: bool = False
    """Slurm gives memory out, as it does CPUs (`SelectTypeParameters=CR_Core_Memory`)."""


def decide(here: Partition) -> Plan:
    """The plan for now."""
    barred = _barred(here)
    waiting = sorted(
        (row for row in here.rows.values() if row.phase == "waiting" and row.key not in barred),
        key=lambda row: (row.submit_s, _number(row.key)),
    )
    ours = [row for row in waiting if row.gang > 0 and not _slurms_own(row, here)]
    seats, down = _seats(here)
    standings = _standings(here, ours, seats)
    scheduler = resumed(
        here.layout.cluster,
        here.policy,
        standings,
        speed=Speeds(here.speeds),
        waits=here.waits,
        down=down,
    )
    plan = _plan(here, scheduler, seats)
    plain = tuple(row.key for row in waiting if row.gang == 0 or _slurms_own(row, here))
    why = barred | reasons(scheduler, here.layout, [row.key for row in ours], here.waits, here.now_s)
    why |= {key: Why(MISFIT) for key in plan.misfit}
    free = int(scheduler.space.free[len(here.layout.cluster.levels), 0])
    return replace(plan, free=plain, why=why, free_gpus=free, lost_gpus=len(down))


def _number(key: str) -> tuple[int, ...]:
    return tuple(int(part) for part in key.split("_"))


def _barred(here: Partition) -> dict[str, Why]:
    """Waiting jobs that may not start whatever the policy says."""
    found = {}
    for row in here.rows.values():
        job = here.jobs.get(row.key)
        if row.phase != "waiting" or job is None:
            continue
        said = _bar(row, job, here)
        if said is not None:
            found[row.key] = said
    return found


def _bar(row: Row, job: SlurmJob, here: Partition) -> Why | None:
    if job.reason == "JobHeldAdmin":
        return Why("held by an administrator")
    if job.depends:
        return Why("depends on other jobs")
    # Slurm itself puts a requeued job off by two minutes; what is later somebody wants.
    put_off = _REQUEUED_S if row.starts or row.stops or job.restarts else 0.0
    if job.eligible_s > here.now_s + put_off:
        return Why("its begin time has not come", job.eligible_s)
    if row.gang > here.layout.cluster.gpus:
        return Why(f"asks for {row.gang} GPUs; the partition has {here.layout.cluster.gpus}")
    if row.not_before_s > here.now_s and row.tries:
        return Why(f"could not be started {row.tries}×; tried again later", row.not_before_s)
    return Why(MISFIT) if row.not_before_s > here.now_s else None


def _slurms_own(row: Row, here: Partition) -> bool:
    """Whether only Slurm knows where it may run."""
    return here.jobs[row.key].special


def _seats(here: Partition) -> tuple[dict[str, tuple[int, ...]], list[int]]:
    """GPU numbers of our running and starting jobs, and those that nobody may have.

    Slurm tells how many GPUs of a node a job has, not which are left: ours come first, then what others use.
    """
    taken: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)
    started: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)
    seats: dict[str, tuple[int, ...]] = {}
    for row in sorted(here.rows.values(), key=lambda row: row.phase == "starting"):
        if row.phase not in _SEATED:
            continue
        numbers = _take(here.layout, row.placed, taken)
        if numbers is None:
            continue
        seats[row.key] = numbers
        if row.phase == "starting":
            for node, count in row.placed.items():
                started[node] += count
    down: list[int] = []
    for name, every in here.layout.numbers.items():
        host = here.nodes.get(name)
        others = 0 if host is None else max(0, host.used - (taken[name] - started[name]))
        free = len(every) - taken[name]
        lost = free if host is None or not host.usable else min(free, others)
        down += every[taken[name] : taken[name] + lost]
    return seats, down


def _take(layout: Layout, placed: Mapping[str, int], taken: dict[str, int]) -> tuple[int, ...] | None:
    """Numbers for a job's GPUs; None where its nodes have not so many (it is counted with the others then)."""
    if not placed or any(
        node not in layout.numbers or taken[node] + count > len(layout.numbers[node]) for node, count in placed.items()
    ):
        return None
    found: list[int] = []
    for node, count in placed.items():
        found += layout.numbers[node][taken[node] : taken[node] + count]
        taken[node] += count
    return tuple(found)


def _standings(here: Partition, waiting: Sequence[Row], seats: Mapping[str, tuple[int, ...]]) -> list[Standing]:
    running = [here.rows[key] for key in seats]
    both = sorted([*waiting, *running], key=lambda row: (row.submit_s, _number(row.key)))
    return [_standing(here, row, seats.get(row.key, ())) for row in both]


def _standing(here: Partition, row: Row, gpus: tuple[int, ...]) -> Standing:
    job = here.jobs.get(row.key)
    work = (job.limit_s if job is not None else None) or _UNKNOWN_WORK_S
    granted = row.granted_s if row.phase != "starting" else row.since_s
    # Who is only just starting, already told to go, or could not come back, is not on the table.
    lease = row.lease_s if row.phase == "running" and (job is None or job.requeues) else math.inf
    return Standing(
        job=Job(
            id=row.key,
            arrival_s=row.submit_s,
            gpus=len(gpus) or row.gang,
            work_s=max(work, row.done_s + 1.0),
            model=row.model,
        ),
        asked_s=row.asked_s,
        waited_s=row.waited_s,
        ran_s=row.ran_s,
        done_s=row.done_s,
        first_s=row.first_s,
        gpus=gpus,
        granted_s=granted,
        lease_s=lease,
    )  # fmt: skip


def _plan(here: Partition, scheduler: Scheduler, seats: Mapping[str, tuple[int, ...]]) -> Plan:
    before = {key: row for key, row in here.rows.items() if key in seats and row.phase == "running"}
    actions = scheduler.decide(here.now_s)
    stopped = {action.job for action in actions if action.what in ("stop", "move")} & set(before)
    placed = {
        action.job: here.layout.places(action.gpus)
        for action in actions
        if action.what in ("start", "move") and scheduler.gpus_of(action.job)
    }
    renewed = [key for key in stopped if _goes_on(here, scheduler, key, seats[key], placed.get(key))]
    renewed += [key for key, row in before.items() if key not in stopped and row.lease_s <= here.now_s]
    renewed += [key for key in stopped if key not in renewed and key in here.jobs and not here.jobs[key].requeues]
    stops = [key for key in stopped if key not in renewed]
    moved = {key for key in placed if key in before}  # they start elsewhere once they are back in the queue
    starts, misfits = _fit(here, scheduler, {key: places for key, places in placed.items() if key not in moved}, stops)
    if misfits:  # nobody is stopped for a job that does not come
        wanted = {node for start in starts for node in start.placed}
        spared = [key for key in stops if key not in moved and not wanted & set(here.rows[key].placed)]
        stops, renewed = [key for key in stops if key not in spared], renewed + spared
    return Plan(
        stop=tuple(stops),
        start=tuple(starts),
        renew=tuple(renewed),
        misfit=tuple(misfits),
        next_s=scheduler.next_s(),
    )


def _fit(
    here: Partition, scheduler: Scheduler, placed: Mapping[str, Mapping[str, int]], stops: Sequence[str]
) -> tuple[list[Start], list[str]]:
    """Starts on nodes that the jobs' own words allow and that have the CPUs and memory, and jobs without such."""
    spares = _spares(here, stops)
    bounds = Bounds(
        layout=here.layout, nodes=here.nodes, spares=spares,
        wholes={name: node.whole(counts_memory=here.counts_memory) for name, node in here.nodes.items()},
    )  # fmt: skip
    starts, misfits = [], []
    shifted: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)
    for key, chosen in placed.items():
        room = partial(_room, here, scheduler, chosen, shifted)
        widen = partial(_may_widen, here, scheduler, key)
        shape = fitted(here.rows[key], here.jobs[key], chosen, room, bounds, widen)
        if shape is None:
            misfits.append(key)
        else:
            starts.append(_start(here, scheduler, key, shape))
            spares.update(after_start(here.jobs[key].need, shape, spares))
            for node in {*shape, *chosen}:
                shifted[node] += shape.get(node, 0) - chosen.get(node, 0)
    return starts, misfits


def _spares(here: Partition, stops: Sequence[str]) -> dict[str, Spare]:
    """CPUs and memory by node as they will be: jobs on their way have theirs, stopped ones give theirs back."""
    spares = {name: node.spare(counts_memory=here.counts_memory) for name, node in here.nodes.items()}
    for row in here.rows.values():
        if row.phase == "starting" and row.key in here.jobs:
            spares.update(after_start(here.jobs[row.key].need, row.placed, spares))
    staying = [row for row in here.rows.values() if row.phase in _SEATED and row.key not in stops]
    others = {node for row in staying for node in row.placed}
    for key in stops:
        spares.update(after_stop(here.jobs[key].need, here.rows[key].placed, spares, others))
    return spares


def _goes_on(
    here: Partition, scheduler: Scheduler, key: str, seat: tuple[int, ...], anew: Mapping[str, int] | None
) -> bool:
    """Whether a job whose lease ended keeps its nodes: it got them again, or nobody took them and no better."""
    if anew is None:
        return False
    row = here.rows[key]
    if dict(anew) == dict(row.placed):
        return True
    index = scheduler.number[key]
    untouched = all(scheduler.space.owner[gpu] in (-1, index) for gpu in seat)
    speeds = here.speeds.get(key, ())
    gain = rate_at(speeds, here.layout.level(anew)) / rate_at(speeds, here.layout.level(row.placed))
    return untouched and gain <= 1.0


def _room(
    here: Partition, scheduler: Scheduler, chosen: Mapping[str, int], shifted: Mapping[str, int]
) -> dict[str, int]:
    """Free GPUs by node as they will be, what was chosen included, less what jobs before it took elsewhere."""
    free = {
        node: sum(1 for gpu in numbers if scheduler.space.owner[gpu] == -1)
        for node, numbers in here.layout.numbers.items()
    }
    return {node: count + chosen.get(node, 0) - shifted[node] for node, count in free.items()}


def _may_widen(here: Partition, scheduler: Scheduler, key: str, level: int) -> bool:
    """Whether a job has waited long enough to lie as wide as a level."""
    row = here.rows[key]
    waited = here.now_s - row.asked_s + (row.waited_s if here.policy.patience.survives else 0.0)
    return waited >= patience_s(scheduler, key, level, here.waits)


def _start(here: Partition, scheduler: Scheduler, key: str, placed: Mapping[str, int]) -> Start:
    row, index = here.rows[key], scheduler.number[key]
    kept = float(scheduler.book["waited"][index]) if here.policy.patience.survives else 0.0
    before = row.waited_s if here.policy.patience.survives else 0.0
    return Start(
        key=key,
        placed=placed,
        level=here.layout.level(placed),
        waited_s=here.now_s - row.asked_s + before,
        kept_wait_s=kept,
    )
