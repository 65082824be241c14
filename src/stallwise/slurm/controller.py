"""The controller: look, reconcile, decide, act, again and again.

Beside slurmctld, not inside it: every look asks Slurm for everything, and every decision is made from that and from
the database. Nothing is kept in memory that the next look could not find out.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stallwise.cluster.job import Job
from stallwise.cluster.policies import policy_named
from stallwise.cluster.policy import Policy
from stallwise.cluster.resume import Standing, resumed
from stallwise.cluster.topology import Cluster
from stallwise.errors import InputError
from stallwise.slurm.ask import Ask, ask_in
from stallwise.slurm.carry import Hands
from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import SlurmError, SlurmJob, SlurmNode
from stallwise.slurm.journal import Journal
from stallwise.slurm.layout import Layout, layout_of
from stallwise.slurm.metrics import Figures
from stallwise.slurm.plan import MISFIT, Partition, Plan, decide
from stallwise.slurm.reading import Reader, Wanted
from stallwise.slurm.reconcile import Timing, View, reconcile
from stallwise.slurm.snapshot import write_snapshot
from stallwise.slurm.speeds import corrected, learned, rate_at
from stallwise.slurm.state import Row, Seen, State

_OBSERVE_EVERY_S = 30.0
_LAYOUT_EVERY_S = 60.0
_FORGET_EVERY_S = 3600.0
_LONGEST_PAUSE_S = 60.0
_NONE = Row(key="", submit_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the administrator chose."""

    partition: str
    policy: str = "patient"
    interval_s: float = 2.0
    """Between two looks; a wait or a lease that ends sooner is looked at when it ends."""
    grace_s: float | None = None
    """From TERM to KILL when a lease ends; None: Slurm's KillWait."""
    timing: Timing = field(default_factory=Timing)
    dry_run: bool = False
    observe_s: float = _OBSERVE_EVERY_S


def policy_for_slurm(text: str) -> Policy:
    """The policy of that name as Slurm can carry it out: two jobs never share a GPU."""
    policy = policy_named(text)
    if policy.admission.demand < float("inf"):
        raise InputError("A job that Slurm has accepted is in the queue: admit= cannot be carried out there.")
    return replace(policy, preemption=replace(policy.preemption, pack=0.0))


@dataclass(slots=True)
class Controller:
    """One partition under one policy."""

    settings: Settings
    slurm: Slurm
    state: State
    journal: Journal
    folder: Path
    """Of the state; the snapshot for `stallwise queue` goes there."""
    figures: Figures = field(default_factory=Figures)
    clock: Callable[[], float] = time.time
    policy: Policy = field(init=False)
    _layout: Layout | None = None
    _nodes_seen: tuple[tuple[str, int], ...] = ()
    _layout_s: float = 0.0
    _observed_s: float = 0.0
    _forgot_s: float = 0.0
    _read_s: dict[str, float] = field(default_factory=dict)
    """When a job's record was last read with profit; only what was written since counts again."""
    _reader: Reader = field(default_factory=Reader)

    def __post_init__(self) -> None:
        self.policy = policy_for_slurm(self.settings.policy)

    def warm_up(self) -> None:
        """Load the compiled passes before the first look: the very first use compiles them, which takes a minute."""
        one = Standing(job=Job(id="0", arrival_s=0.0, gpus=1, work_s=1.0), asked_s=0.0)
        resumed(Cluster.counts(gpus=2, machines=2, racks=2), self.policy, [one]).decide(1.0)

    def run(self, stop: Callable[[float], bool]) -> None:
        """Until `stop(seconds)`, which waits, says so. A look that fails is told and tried again, later each time."""
        failed = 0
        while True:
            pause = self.settings.interval_s
            try:
                plan = self.once()
                failed = 0
                pause = min(pause, max(0.05, plan.next_s - self.clock()))
            except (SlurmError, InputError, OSError) as error:
                failed += 1
                self.figures.failed_looks += 1
                self.journal.write("blind", why=str(error))
                pause = min(_LONGEST_PAUSE_S, pause * 2 ** min(failed, 6))
            if stop(pause):
                self._reader.close()
                return

    def once(self) -> Plan:
        """One look, one decision, carried out."""
        began = time.perf_counter()
        jobs, nodes = self.slurm.jobs(), self.slurm.nodes()
        now_s = self.clock()
        looked_s = time.perf_counter() - began
        layout = self._laid_out(nodes, now_s)
        here = [node for node in nodes if node.name in layout.numbers]
        view = self._agreed(jobs, layout, now_s)
        partition = Partition(
            layout=layout,
            nodes={node.name: node for node in here},
            rows=view.rows,
            jobs={job.key: job for job in jobs if job.partition == self.settings.partition},
            policy=_informed(self.policy, view.rows),
            speeds=self._speeds(view.rows, jobs, layout),
            waits=self.state.waits(),
            now_s=now_s,
            counts_memory="memory" in self.slurm.setting("SelectTypeParameters").lower(),
        )
        thinking = time.perf_counter()
        plan = decide(partition)
        self.figures.decided(time.perf_counter() - thinking, looked_s)
        self._act(plan, partition)
        write_snapshot(self.folder, partition, plan, self.settings, dry_run=self.settings.dry_run)
        self.figures.looked(partition, plan, self.slurm, now_s)
        return plan

    def _laid_out(self, nodes: list[SlurmNode], now_s: float) -> Layout:
        """Asked for again when nodes came or went, and now and then for the switches."""
        seen = tuple(sorted((node.name, node.gpus) for node in nodes if self.settings.partition in node.partitions))
        if self._layout is None or seen != self._nodes_seen or now_s - self._layout_s > _LAYOUT_EVERY_S:
            self._layout = layout_of(nodes, self.slurm.topology(), self.settings.partition)
            self._nodes_seen, self._layout_s = seen, now_s
        return self._layout

    def _agreed(self, jobs: list[SlurmJob], layout: Layout, now_s: float) -> View:
        """Rows that agree with Slurm, written down; jobs that must not start are held."""

        def rate(row: Row) -> float:
            return rate_at(row.speeds, layout.level(row.placed))

        view = reconcile(self.state.rows(), jobs, self.settings.partition, now_s, self.settings.timing, rate)
        self.state.save(view.changed)
        for key, what in view.events:
            self.journal.write("seen", job=key, phase=what)
            self.figures.seen(what)
        if not self.settings.dry_run:
            hands = self._hands()
            hands.hold_all(view.hold)
            hands.end_warnings(view.rows, now_s)
        if now_s - self._forgot_s > _FORGET_EVERY_S:
            self.state.forget(now_s)
            self._forgot_s = now_s
            self._read_s = {key: at for key, at in self._read_s.items() if view.rows.get(key, _NONE).phase == "running"}
        return view

    def _speeds(self, rows: Mapping[str, Row], jobs: list[SlurmJob], layout: Layout) -> dict[str, tuple[float, ...]]:
        """What jobs said of themselves, corrected by what was seen of their kind."""
        asks = {job.key: ask_in(job.comment) for job in jobs if job.key in rows}
        self._observe(rows, asks, layout)
        seen: dict[tuple[str, int], dict[int, float]] = {}
        for entry in self.state.seen():
            seen.setdefault((entry.model, entry.gang), {})[entry.level] = entry.steps_per_s
        levels, found = len(layout.cluster.levels), {}
        for key, row in rows.items():
            if row.phase == "done":
                continue
            ask = asks.get(key)
            known = seen.get((_kind(row), row.gang), {})
            found[key] = corrected(row.speeds, known, levels, ask.step_s if ask else None)
        return found

    def _observe(self, rows: Mapping[str, Row], asks: Mapping[str, Ask | None], layout: Layout) -> None:
        """Take what was read from records since the last look, and ask for more when it is time."""
        collected = self._reader.collect()
        seen = {(entry.model, entry.gang, entry.level): entry for entry in self.state.seen()} if collected else {}
        for found in collected:
            row = rows.get(found.job)
            # A job that was stopped and started again meanwhile may lie elsewhere now.
            if row is not None and row.phase == "running" and found.since_s >= row.granted_s:
                self._read_s[row.key] = found.read_s
                self._learn(row, found.steps_per_s, layout, seen)
        now_s = self.clock()
        if now_s - self._observed_s < self.settings.observe_s or self._reader.busy or self.settings.dry_run:
            return
        self._observed_s = now_s
        wanted = []
        for key, row in rows.items():
            ask = asks.get(key)
            if row.phase == "running" and ask is not None and ask.record is not None:
                wanted.append(Wanted(key, ask.record, max(row.granted_s, self._read_s.get(key, 0.0))))
        self._reader.ask(wanted)

    def _learn(self, row: Row, steps_per_s: float, layout: Layout, seen: dict[tuple[str, int, int], Seen]) -> None:
        """One record's speed into what was `seen` of its kind."""
        key = _kind(row), row.gang, layout.level(row.placed)
        entry = seen[key] = learned(seen.get(key), *key, steps_per_s)
        self.state.see([entry])
        self.journal.write("learn", job=row.key, level=layout.level_name(key[2]), steps_per_s=round(steps_per_s, 4))

    def _act(self, plan: Plan, here: Partition) -> None:
        if self.settings.dry_run:
            for what, key, more in told(plan, here):
                self.journal.write(f"would {what}", job=key, **more)
            return
        # A decision takes time; what is done from here on is done now.
        self._hands().carry_out(plan, here.rows, here.jobs, here.layout, self.clock())

    def _hands(self) -> Hands:
        kill_wait_s = self.slurm.seconds("KillWait", 30.0)

        def tell(what: str, job: str, **more: object) -> None:
            self.figures.did(what)
            self.journal.write(what, job=job, **more)

        return Hands(
            self.slurm,
            self.state,
            self.settings.timing,
            tell,
            self.policy.preemption.lease_s,
            kill_wait_s if self.settings.grace_s is None else self.settings.grace_s,
        )


def _informed(policy: Policy, rows: Mapping[str, Row]) -> Policy:
    """Gittins' order judges by the service of jobs that ended, which a rebuilt scheduler must be told."""
    if policy.order.by != "gittins" or policy.order.history_gpu_s:
        return policy
    ended = tuple(row.ran_s * row.gang for row in rows.values() if row.phase == "done" and row.ran_s > 0)
    return replace(policy, order=replace(policy.order, history_gpu_s=ended))


def _kind(row: Row) -> str:
    """Whose speeds are learned together: the model's; a job without one learns for itself alone."""
    return row.model if row.model is not None else f"job {row.key}"


def told(plan: Plan, here: Partition) -> Iterator[tuple[str, str, dict[str, object]]]:
    """A plan in words, for those who only want to see it."""
    for key in plan.stop:
        yield "stop", key, {"nodes": here.rows[key].placed}
    for start in plan.start:
        yield "start", start.key, {
            "gpus": here.rows[start.key].gang,
            "nodes": dict(start.placed),
            "level": here.layout.level_name(start.level),
            "waited_s": round(start.waited_s, 1),
        }  # fmt: skip
    for key in plan.free:
        yield "release", key, {"why": "Slurm alone places it"}
    for key in plan.renew:
        yield "renew", key, {"nodes": here.rows[key].placed}
    for key in plan.misfit:
        yield "misfit", key, {"why": MISFIT}


def check_partition(slurm: Slurm, partition: str) -> Layout:
    """The partition's GPUs, or a sentence why there are none."""
    nodes = slurm.nodes()
    known = sorted({name for node in nodes for name in node.partitions})
    if partition not in known:
        raise InputError(f"Slurm has no partition {partition!r}. It has {', '.join(known) or 'none'}.")
    return layout_of(nodes, slurm.topology(), partition)


@contextlib.contextmanager
def closing(state: State) -> Iterator[State]:
    """Close the database however the controller ends."""
    try:
        yield state
    finally:
        state.close()
