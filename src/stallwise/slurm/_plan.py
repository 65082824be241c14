"""One decision: from the state of the partition to a plan, through the policy objects of `cluster/`. Pure functions.

1. GPUs of running and starting jobs are theirs; those of other jobs and of unusable nodes cannot be used.
2. A scheduler is made from that (`cluster/live.py`) and decides.
3. Its actions are turned into what Slurm can do: nodes to pin, jobs to requeue. A job that the end of its lease stopped
   and that gets the same nodes again, or could keep them at no loss, continues.
4. Jobs that wait get a reason, and a time at which it ends at the latest.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from stallwise.cluster.engine.state import WAITING
from stallwise.cluster.job import Job
from stallwise.cluster.live import JobStanding, PastWait, Scheduler, patience_s, resumed
from stallwise.cluster.policies.base import Policy
from stallwise.sentences import Sentence
from stallwise.slurm._placement import NodeBounds, NodeLayout, PlacementSpeeds, fit_nodes, rate_at
from stallwise.slurm.facts import FreeResources, SlurmJob, SlurmNode, after_start, after_stop
from stallwise.slurm.state import JobRow


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits, and when that ends at the latest; infinite: it depends on other jobs."""

    text: Sentence
    until_s: float = math.inf


def wait_reasons(
    scheduler: Scheduler, layout: NodeLayout, keys: Iterable[str], waits: Sequence[PastWait], now_s: float
) -> dict[str, WaitReason]:
    """Return the reason of every job that the decision leaves waiting."""
    top = len(layout.cluster.levels)
    free_by_level = [int(scheduler.topology.free[level].max()) for level in range(top + 1)]
    reasons = {}
    for key in keys:
        index = scheduler.number[key]
        if scheduler.rows["state"][index] == WAITING:
            reasons[key] = _reason(scheduler, layout, key, free_by_level, waits, now_s)
    return reasons


def _reason(
    scheduler: Scheduler,
    layout: NodeLayout,
    key: str,
    free_by_level: Sequence[int],
    waits: Sequence[PastWait],
    now_s: float,
) -> WaitReason:
    rows, index = scheduler.rows, scheduler.number[key]
    gang = int(rows["gang"][index])
    waited = now_s - float(rows["waiting_since"][index])
    if scheduler.policy.patience.survives:
        waited += float(rows["waited"][index])
    offered = next((level for level, free in enumerate(free_by_level) if free >= gang), None)
    if offered is None:
        return WaitReason(
            Sentence(
                "job.too-few-free",
                f"needs {gang} GPUs, {free_by_level[-1]} are free",
                gpus=gang,
                free_gpus=free_by_level[-1],
            ),
            _end_of_patience(scheduler, layout, key, waits, now_s, waited),
        )
    hold = patience_s(scheduler, key, offered, waits)
    if waited < hold:
        tightest = next(level for level in range(offered + 1) if scheduler.topology.largest[level] >= gang)
        inside, across = layout.level_name(tightest), layout.level_name(max(offered - 1, 0))
        patient = Sentence(
            "job.holds-out",
            f"holds out for one {inside}; {gang} are free only across {across}s",
            gpus=gang,
            inside=inside,
            across=across,
        )
        return WaitReason(patient, now_s + hold - waited)
    return WaitReason(
        Sentence(
            "job.not-its-turn", "its turn has not come: jobs before it are not overtaken, or its place is kept for them"
        )
    )


def _end_of_patience(
    scheduler: Scheduler, layout: NodeLayout, key: str, waits: Sequence[PastWait], now_s: float, waited: float
) -> float:
    """Return when the job will take any free GPUs."""
    hold = patience_s(scheduler, key, len(layout.cluster.levels), waits)
    return now_s + max(0.0, hold - waited) if math.isfinite(hold) and hold > waited else math.inf


_UNKNOWN_WORK_S = 86400.0
_REQUEUED_S = 180.0
_SEATED = ("running", "warned", "stopping", "starting")
MISFIT = Sentence("job.misfit", "no free nodes fit what it requests: their number or names, its CPUs or memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Pin a job to nodes and release it."""

    key: str
    placed: Mapping[str, int]
    """GPUs by node as the policy chose them; Slurm spreads them over these nodes as it can."""
    level: int
    waited_s: float
    """Until now, all that counts towards its patience."""
    kept_wait_s: float
    """The wait that still counts after this start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePlan:
    """Actions, in this order."""

    stop: tuple[str, ...] = ()
    start: tuple[Start, ...] = ()
    free: tuple[str, ...] = ()
    """Jobs without GPUs, or that Slurm alone can place: released as they are."""
    renew: tuple[str, ...] = ()
    """Running jobs whose lease continues."""
    misfit: tuple[str, ...] = ()
    """Jobs whose turn it was and whose request fits no free nodes."""
    why: Mapping[str, WaitReason] = field(default_factory=dict)
    next_s: float = math.inf
    free_gpus: int = 0
    lost_gpus: int = 0
    """Used by jobs that are not ours, or on nodes that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The state of the partition that a decision depends on."""

    layout: NodeLayout
    nodes: Mapping[str, SlurmNode]
    rows: Mapping[str, JobRow]
    jobs: Mapping[str, SlurmJob]
    policy: Policy
    speeds: Mapping[str, tuple[float, ...]]
    """Corrected speeds by job."""
    waits: Sequence[PastWait] = ()
    now_s: float = 0.0
    counts_memory: bool = False
    """Slurm gives memory out, as it does CPUs (`SelectTypeParameters=CR_Core_Memory`)."""


def decide(here: Partition) -> SchedulePlan:
    """Return the plan for the present state."""
    barred = _barred(here)
    waiting = sorted(
        (row for row in here.rows.values() if row.phase == "waiting" and row.key not in barred),
        key=lambda row: (row.submit_s, _number(row.key)),
    )
    ours = [row for row in waiting if row.gang > 0 and not _placed_by_slurm(row, here)]
    seats, down = _seats(here)
    standings = _standings(here, ours, seats)
    scheduler = resumed(
        here.layout.cluster,
        here.policy,
        standings,
        speed=PlacementSpeeds(here.speeds),
        waits=here.waits,
        down=down,
    )
    plan = _plan(here, scheduler, seats)
    plain = tuple(row.key for row in waiting if row.gang == 0 or _placed_by_slurm(row, here))
    why = barred | wait_reasons(scheduler, here.layout, [row.key for row in ours], here.waits, here.now_s)
    why |= {key: WaitReason(MISFIT) for key in plan.misfit}
    free = int(scheduler.topology.free[len(here.layout.cluster.levels), 0])
    return replace(plan, free=plain, why=why, free_gpus=free, lost_gpus=len(down))


def _number(key: str) -> tuple[int, ...]:
    return tuple(int(part) for part in key.split("_"))


def _barred(here: Partition) -> dict[str, WaitReason]:
    """Return waiting jobs that may not start whatever the policy decides, with the reason."""
    barred = {}
    for row in here.rows.values():
        job = here.jobs.get(row.key)
        if row.phase != "waiting" or job is None:
            continue
        reason = _bar(row, job, here)
        if reason is not None:
            barred[row.key] = reason
    return barred


def _bar(row: JobRow, job: SlurmJob, here: Partition) -> WaitReason | None:
    if job.reason == "JobHeldAdmin":
        return WaitReason(Sentence("job.held", "held by an administrator"))
    if job.depends:
        return WaitReason(Sentence("job.depends", "depends on other jobs"))
    # Slurm itself puts a requeued job off by two minutes; a later time is the user's.
    put_off = _REQUEUED_S if row.starts or row.stops or job.restarts else 0.0
    if job.eligible_s > here.now_s + put_off:
        return WaitReason(Sentence("job.begins-later", "its begin time has not come"), job.eligible_s)
    if row.gang > here.layout.cluster.gpus:
        total = here.layout.cluster.gpus
        large = f"requests {row.gang} GPUs; the partition has {total}"
        return WaitReason(Sentence("job.too-large", large, gpus=row.gang, partition_gpus=total))
    if row.not_before_s > here.now_s and row.tries:
        failed = f"could not be started {row.tries}×; tried again later"
        return WaitReason(Sentence("job.start-failed", failed, tries=row.tries), row.not_before_s)
    return WaitReason(MISFIT) if row.not_before_s > here.now_s else None


def _placed_by_slurm(row: JobRow, here: Partition) -> bool:
    """Tell whether only Slurm can place the job."""
    return here.jobs[row.key].special


def _seats(here: Partition) -> tuple[dict[str, tuple[int, ...]], list[int]]:
    """Return GPU numbers of our running and starting jobs, and those that cannot be used.

    Slurm reports the number of GPUs of a node that a job has, not which: ours come first, then what others use.
    """
    taken: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)
    started: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)
    seats: dict[str, tuple[int, ...]] = {}
    for row in sorted(here.rows.values(), key=lambda row: row.phase == "starting"):
        if row.phase not in _SEATED:
            continue
        seat = _take(here.layout, row.placed, taken)
        if seat is None:
            continue
        seats[row.key] = seat
        if row.phase == "starting":
            for node, count in row.placed.items():
                started[node] += count
    down: list[int] = []
    for name, numbers in here.layout.numbers.items():
        host = here.nodes.get(name)
        others = 0 if host is None else max(0, host.used - (taken[name] - started[name]))
        free = len(numbers) - taken[name]
        lost = free if host is None or not host.usable else min(free, others)
        down += numbers[taken[name] : taken[name] + lost]
    return seats, down


def _take(layout: NodeLayout, placed: Mapping[str, int], taken: dict[str, int]) -> tuple[int, ...] | None:
    """Return numbers for a job's GPUs; None where its nodes have too few (it is counted with the others then)."""
    if not placed or any(
        node not in layout.numbers or taken[node] + count > len(layout.numbers[node]) for node, count in placed.items()
    ):
        return None
    numbers: list[int] = []
    for node, count in placed.items():
        numbers += layout.numbers[node][taken[node] : taken[node] + count]
        taken[node] += count
    return tuple(numbers)


def _standings(here: Partition, waiting: Sequence[JobRow], seats: Mapping[str, tuple[int, ...]]) -> list[JobStanding]:
    running = [here.rows[key] for key in seats]
    both = sorted([*waiting, *running], key=lambda row: (row.submit_s, _number(row.key)))
    return [_standing(here, row, seats.get(row.key, ())) for row in both]


def _standing(here: Partition, row: JobRow, gpus: tuple[int, ...]) -> JobStanding:
    job = here.jobs.get(row.key)
    work = (job.limit_s if job is not None else None) or _UNKNOWN_WORK_S
    granted = row.granted_s if row.phase != "starting" else row.since_s
    # A job that is only just starting, is stopping already, or could not be requeued, is not to be stopped.
    lease = row.lease_s if row.phase == "running" and (job is None or job.requeues) else math.inf
    return JobStanding(
        job=Job(
            id=row.key,
            arrival_s=row.submit_s,
            gpus=len(gpus) or row.gang,
            work_s=max(work, row.done_s + 1.0),
            model=row.model,
        ),
        waiting_since_s=row.asked_s,
        waited_s=row.waited_s,
        ran_s=row.ran_s,
        done_s=row.done_s,
        first_s=row.first_s,
        gpus=gpus,
        granted_s=granted,
        lease_s=lease,
    )  # fmt: skip


def _plan(here: Partition, scheduler: Scheduler, seats: Mapping[str, tuple[int, ...]]) -> SchedulePlan:
    running = {key: row for key, row in here.rows.items() if key in seats and row.phase == "running"}
    actions = scheduler.decide(here.now_s)
    stopped = {action.job for action in actions if action.what in ("stop", "move")} & set(running)
    placed = {
        action.job: here.layout.gpus_by_node(action.gpus)
        for action in actions
        if action.what in ("start", "move") and scheduler.gpus_of(action.job)
    }
    renewed = _renewed(here, scheduler, seats, running, stopped, placed)
    stops = [key for key in stopped if key not in renewed]
    moved = {key for key in placed if key in running}  # they start elsewhere once they are back in the queue
    starts, misfits = _fit(here, scheduler, {key: nodes for key, nodes in placed.items() if key not in moved}, stops)
    if misfits:  # no job is stopped for one that does not start
        spared = _spared(here, starts, [key for key in stops if key not in moved])
        stops, renewed = [key for key in stops if key not in spared], renewed + spared
    return SchedulePlan(
        stop=tuple(stops),
        start=tuple(starts),
        renew=tuple(renewed),
        misfit=tuple(misfits),
        next_s=scheduler.next_s(),
    )


def _renewed(
    here: Partition,
    scheduler: Scheduler,
    seats: Mapping[str, tuple[int, ...]],
    running: Mapping[str, JobRow],
    stopped: set[str],
    placed: Mapping[str, Mapping[str, int]],
) -> list[str]:
    """Return running jobs that keep their nodes for another lease: at no loss, or because they cannot be requeued."""
    renewed = [key for key in stopped if _keeps_nodes(here, scheduler, key, seats[key], placed.get(key))]
    renewed += [key for key, row in running.items() if key not in stopped and row.lease_s <= here.now_s]
    renewed += [key for key in stopped if key not in renewed and key in here.jobs and not here.jobs[key].requeues]
    return renewed


def _spared(here: Partition, starts: Sequence[Start], stops: Sequence[str]) -> list[str]:
    """Return jobs whose nodes no start needs."""
    needed = {node for start in starts for node in start.placed}
    return [key for key in stops if not needed & set(here.rows[key].placed)]


def _fit(
    here: Partition, scheduler: Scheduler, placed: Mapping[str, Mapping[str, int]], stops: Sequence[str]
) -> tuple[list[Start], list[str]]:
    """Return starts on nodes that the jobs' requests allow and that have the CPUs and memory, and jobs without such.

    GPUs that the policy chose for jobs without such nodes stay free, so these jobs are tried once more with them: the
    only node with enough memory must not be reserved by a job that cannot start either.
    """
    free = _free_resources(here, stops)
    bounds = NodeBounds(
        layout=here.layout, nodes=here.nodes, free=free,
        wholes={name: node.whole(counts_memory=here.counts_memory) for name, node in here.nodes.items()},
    )  # fmt: skip
    starts: list[Start] = []
    shifted: dict[str, int] = dict.fromkeys(here.layout.numbers, 0)

    def start(key: str, released: Mapping[str, int]) -> bool:
        """Start a job where it fits, on what is free and what is released; returns whether it fits."""
        chosen = placed[key]
        free_gpus = partial(_free_gpus, here, scheduler, released, shifted)
        widen = partial(_may_widen, here, scheduler, key)
        shape = fit_nodes(here.rows[key], here.jobs[key], chosen, free_gpus, bounds, widen)
        if shape is None:
            return False
        starts.append(_start(here, scheduler, key, shape))
        free.update(after_start(here.jobs[key].need, shape, free))
        for node in {*shape, *chosen}:
            shifted[node] += shape.get(node, 0) - chosen.get(node, 0)
        return True

    misfits = [key for key, chosen in placed.items() if not start(key, chosen)]
    for key in tuple(misfits) if len(misfits) > 1 else ():
        if start(key, sum((Counter(placed[other]) for other in misfits), Counter())):
            misfits.remove(key)
    return starts, misfits


def _free_resources(here: Partition, stops: Sequence[str]) -> dict[str, FreeResources]:
    """Return CPUs and memory by node as they will be after starts under way and these stops."""
    free = {name: node.free(counts_memory=here.counts_memory) for name, node in here.nodes.items()}
    for row in here.rows.values():
        if row.phase == "starting" and row.key in here.jobs:
            free.update(after_start(here.jobs[row.key].need, row.placed, free))
    staying = [row for row in here.rows.values() if row.phase in _SEATED and row.key not in stops]
    others = {node for row in staying for node in row.placed}
    for key in stops:
        free.update(after_stop(here.jobs[key].need, here.rows[key].placed, free, others))
    return free


def _keeps_nodes(
    here: Partition, scheduler: Scheduler, key: str, seat: tuple[int, ...], placed: Mapping[str, int] | None
) -> bool:
    """Tell whether a job whose lease ended keeps its nodes: they are its again, or stay free and are as good."""
    if placed is None:
        return False
    row = here.rows[key]
    if dict(placed) == dict(row.placed):
        return True
    index = scheduler.number[key]
    untouched = all(scheduler.topology.owner[gpu] in (-1, index) for gpu in seat)
    speeds = here.speeds.get(key, ())
    gain = rate_at(speeds, here.layout.level(placed)) / rate_at(speeds, here.layout.level(row.placed))
    return untouched and gain <= 1.0


def _free_gpus(
    here: Partition, scheduler: Scheduler, chosen: Mapping[str, int], shifted: Mapping[str, int]
) -> dict[str, int]:
    """Return free GPUs by node as they will be, `chosen` ones included, less what jobs before it took elsewhere."""
    free = {
        node: sum(1 for gpu in numbers if scheduler.topology.owner[gpu] == -1)
        for node, numbers in here.layout.numbers.items()
    }
    return {node: count + chosen.get(node, 0) - shifted[node] for node, count in free.items()}


def _may_widen(here: Partition, scheduler: Scheduler, key: str, level: int) -> bool:
    """Tell whether a job has waited long enough to span a level."""
    row = here.rows[key]
    waited = here.now_s - row.asked_s + (row.waited_s if here.policy.patience.survives else 0.0)
    return waited >= patience_s(scheduler, key, level, here.waits)


def _start(here: Partition, scheduler: Scheduler, key: str, placed: Mapping[str, int]) -> Start:
    row, index = here.rows[key], scheduler.number[key]
    kept_wait_s = float(scheduler.rows["waited"][index]) if here.policy.patience.survives else 0.0
    before = row.waited_s if here.policy.patience.survives else 0.0
    return Start(
        key=key,
        placed=placed,
        level=here.layout.level(placed),
        waited_s=here.now_s - row.asked_s + before,
        kept_wait_s=kept_wait_s,
    )
