"""The controller of a partition: poll, reconcile, decide, act, again and again.

It runs beside slurmctld, not inside it: every poll reads all jobs and nodes from Slurm, and every decision is made from
that and from the database. Nothing is kept in memory that the next poll could not restore.
"""

import contextlib
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stallwise.cluster.job import Job
from stallwise.cluster.live import JobStanding, resumed
from stallwise.cluster.policies.base import Policy
from stallwise.cluster.policies.catalog import policy_named
from stallwise.cluster.topology import Cluster
from stallwise.deflate.processes import seconds_since_boot
from stallwise.errors import InputError
from stallwise.slurm._placement import NodeLayout, corrected_speeds, layout_of, rate_at, with_reading
from stallwise.slurm._plan import MISFIT, Partition, SchedulePlan, decide
from stallwise.slurm.actions import PlanExecutor
from stallwise.slurm.commands import Slurm
from stallwise.slurm.facts import JobDescription, SlurmError, SlurmJob, SlurmNode, description_in
from stallwise.slurm.metrics import ControllerMetrics
from stallwise.slurm.observation import ReadRequest, RecordReader, SpeedReading
from stallwise.slurm.reconciliation import Reconciliation, ScheduleTiming, reconcile
from stallwise.slurm.snapshot import snapshot_of, write_snapshot
from stallwise.slurm.state import ControllerState, DecisionLog, JobRow, ObservedSpeed, is_damage

_OBSERVE_EVERY_S = 30.0
_LAYOUT_EVERY_S = 60.0
_FORGET_EVERY_S = 3600.0
_LONGEST_PAUSE_S = 60.0
_NONE = JobRow(key="", submit_s=0.0)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the administrator."""

    partition: str
    policy: str = "patient"
    interval_s: float = 2.0
    """Between two polls; a wait or a lease that ends sooner brings the next poll forward."""
    grace_s: float | None = None
    """From TERM to KILL when a lease ends; None: Slurm's KillWait."""
    timing: ScheduleTiming = field(default_factory=ScheduleTiming)
    dry_run: bool = False
    observe_s: float = _OBSERVE_EVERY_S


def policy_for_slurm(text: str) -> Policy:
    """Return the policy as Slurm can carry it out: two jobs never share a GPU."""
    policy = policy_named(text)
    if policy.admission.demand < float("inf"):
        raise InputError("A job that Slurm has accepted is in the queue: admit= cannot be carried out there.")
    return replace(policy, preemption=replace(policy.preemption, pack=0.0))


@dataclass(slots=True)
class Controller:
    """One partition under one policy."""

    settings: ControllerSettings
    slurm: Slurm
    state: ControllerState
    log: DecisionLog
    folder: Path
    """Folder of the state; the snapshot for `stallwise queue` goes there."""
    metrics: ControllerMetrics = field(default_factory=ControllerMetrics)
    clock: Callable[[], float] = time.time
    """The wall clock, in which Slurm gives its times. It may be set while this runs (`_now`)."""
    steady: Callable[[], float] = seconds_since_boot
    boot: str = field(default_factory=lambda: _boot_id())
    policy: Policy = field(init=False)
    _layout: NodeLayout | None = None
    _layout_nodes: tuple[tuple[str, int], ...] = ()
    _layout_s: float = -math.inf
    _observed_s: float = -math.inf
    _forgot_s: float = -math.inf
    """Of the steady clock, like the two above."""
    _read_s: dict[str, float] = field(default_factory=dict)
    """When a job's record last gave a speed; only what was written since counts again."""
    _reader: RecordReader = field(default_factory=RecordReader)

    def __post_init__(self) -> None:
        self.policy = policy_for_slurm(self.settings.policy)

    def warm_up(self) -> None:
        """Load the compiled kernels before the first poll: the very first use compiles them, which takes a minute."""
        standing = JobStanding(job=Job(id="0", arrival_s=0.0, gpus=1, work_s=1.0), waiting_since_s=0.0)
        resumed(Cluster.counts(gpus=2, machines=2, racks=2), self.policy, [standing]).decide(1.0)

    def run(self, stop: Callable[[float], bool]) -> None:
        """Run until `stop(seconds)`, which waits, returns True. Failed polls are logged and repeated ever later."""
        failed = 0
        if self.state.damaged is not None:
            self.log.write("rebuilt", damaged=str(self.state.damaged))
        while True:
            pause = self.settings.interval_s
            try:
                plan = self.once()
                failed = 0
                pause = min(pause, max(0.05, plan.next_s - self.clock()))
            except (SlurmError, InputError, OSError, sqlite3.Error) as error:
                failed += 1
                self.metrics.failed_looks += 1
                self.log.write("blind", why=str(error))
                if isinstance(error, sqlite3.Error) and is_damage(error):
                    self._rebuild()
                pause = min(_LONGEST_PAUSE_S, pause * 2 ** min(failed, 6))
            if stop(pause):
                self._reader.close()
                return

    def _rebuild(self) -> None:
        """Begin with an empty state where the database is damaged; where that fails too, the next poll tries again."""
        try:
            self.state.rebuild()
        except (InputError, OSError, sqlite3.Error) as error:
            self.log.write("blind", why=str(error))
        else:
            self.log.write("rebuilt", damaged=str(self.state.damaged))

    def _now(self) -> float:
        """Return the wall clock's time, after all times in the state were moved by as much as it was set."""
        now_s = self.clock()
        step_s = self.state.follow_clock(now_s, self.steady(), self.boot)
        if step_s:
            self.log.write("clock", set_by_s=round(step_s, 3))
            self._read_s.clear()
        return now_s

    def once(self) -> SchedulePlan:
        """Poll once, decide, and carry the plan out."""
        began = time.perf_counter()
        jobs, nodes = self.slurm.jobs(), self.slurm.nodes()
        polled_s = time.perf_counter() - began
        now_s = self._now()
        layout = self._current_layout(nodes)
        view = self._reconcile(jobs, layout, now_s)
        partition = Partition(
            layout=layout,
            nodes={node.name: node for node in nodes if node.name in layout.numbers},
            rows=view.rows,
            jobs={job.key: job for job in jobs if job.partition == self.settings.partition},
            policy=_with_history(self.policy, view.rows),
            speeds=self._speeds(view.rows, jobs, layout),
            waits=self.state.waits(),
            now_s=now_s,
            counts_memory="memory" in self.slurm.setting("SelectTypeParameters").lower(),
        )
        began = time.perf_counter()
        plan = decide(partition)
        self.metrics.count_decision(time.perf_counter() - began, polled_s)
        self._act(plan, partition)
        if not self.settings.dry_run:
            settings = self.settings
            snapshot = snapshot_of(partition, plan, settings.partition, settings.policy, settings.interval_s)
            write_snapshot(self.folder, snapshot)
        self.metrics.update(partition, plan, self.slurm, now_s)
        return plan

    def _current_layout(self, nodes: list[SlurmNode]) -> NodeLayout:
        """Return the layout, made anew when nodes came or went, and now and then for the switches."""
        steady_s = self.steady()
        present = tuple(sorted((node.name, node.gpus) for node in nodes if self.settings.partition in node.partitions))
        if self._layout is None or present != self._layout_nodes or steady_s - self._layout_s > _LAYOUT_EVERY_S:
            self._layout = layout_of(nodes, self.slurm.topology(), self.settings.partition)
            self._layout_nodes, self._layout_s = present, steady_s
        return self._layout

    def _reconcile(self, jobs: list[SlurmJob], layout: NodeLayout, now_s: float) -> Reconciliation:
        """Make rows agree with Slurm and save them; hold jobs that must not start."""

        def rate(row: JobRow) -> float:
            return rate_at(row.speeds, layout.level(row.placed))

        lease_s = self.policy.preemption.lease_s
        view = reconcile(self.state.rows(), jobs, self.settings.partition, now_s, self.settings.timing, rate, lease_s)
        self.state.save(view.changed)
        for key, what in view.events:
            self.log.write("seen", job=key, phase=what)
            self.metrics.count_event(what)
        if not self.settings.dry_run:
            executor = self._executor()
            executor.hold_all(view.hold)
            executor.end_warnings(view.rows, now_s)
        if self.steady() - self._forgot_s > _FORGET_EVERY_S:
            self.state.forget(now_s)
            self._forgot_s = self.steady()
            self._read_s = {key: at for key, at in self._read_s.items() if view.rows.get(key, _NONE).phase == "running"}
        return view

    def _speeds(
        self, rows: Mapping[str, JobRow], jobs: list[SlurmJob], layout: NodeLayout
    ) -> dict[str, tuple[float, ...]]:
        """Return speeds that jobs state, corrected by those observed of their kind."""
        descriptions = {job.key: description_in(job.comment) for job in jobs if job.key in rows}
        users = {job.key: job.user for job in jobs}
        self._observe(rows, descriptions, users, layout)
        observed: dict[tuple[str, str, int], dict[int, float]] = {}
        for entry in self.state.observed_speeds():
            observed.setdefault((entry.user, entry.model, entry.gang), {})[entry.level] = entry.steps_per_s
        levels, speeds = len(layout.cluster.levels), {}
        for key, row in rows.items():
            if row.phase == "done":
                continue
            description = descriptions.get(key)
            of_kind = observed.get(_kind(row, users), {})
            step_s = description.step_s if description else None
            speeds[key] = corrected_speeds(row.speeds, of_kind, levels, step_s)
        return speeds

    def _observe(
        self,
        rows: Mapping[str, JobRow],
        descriptions: Mapping[str, JobDescription | None],
        users: Mapping[str, str],
        layout: NodeLayout,
    ) -> None:
        """Learn from records that were read since the last poll, and start reading more when it is time."""
        readings = self._reader.collect()
        known = self.state.observed_speeds() if readings else ()
        observed = {(entry.user, entry.model, entry.gang, entry.level): entry for entry in known}
        for reading in readings:
            row = rows.get(reading.job)
            # A job that was stopped and started again meanwhile may lie elsewhere now.
            if row is not None and row.phase == "running" and reading.since_s >= row.granted_s:
                self._read_s[row.key] = reading.read_s
                kind = *_kind(row, users), layout.level(row.placed)
                observed[kind] = self._learn(row, reading, layout, observed.get(kind) or _unobserved(*kind))
        steady_s = self.steady()
        if steady_s - self._observed_s < self.settings.observe_s or self._reader.busy or self.settings.dry_run:
            return
        self._observed_s = steady_s
        requests = []
        for key, row in rows.items():
            description = descriptions.get(key)
            if row.phase == "running" and description is not None and description.record is not None:
                requests.append(ReadRequest(key, description.record, max(row.granted_s, self._read_s.get(key, 0.0))))
        self._reader.start(requests)

    def _learn(self, row: JobRow, reading: SpeedReading, layout: NodeLayout, before: ObservedSpeed) -> ObservedSpeed:
        """Add one reading to the observed speed of a job's kind."""
        entry = with_reading(before, reading.steps_per_s)
        self.state.save_speeds([entry])
        level = layout.level_name(entry.level)
        self.log.write("learn", job=row.key, level=level, steps_per_s=round(reading.steps_per_s, 4))
        return entry

    def _act(self, plan: SchedulePlan, here: Partition) -> None:
        if self.settings.dry_run:
            for what, key, more in plan_lines(plan, here):
                self.log.write(f"would {what}", job=key, **more)
            return
        # A decision takes time; what is done from here on is done now.
        self._executor().carry_out(plan, here.rows, here.jobs, here.layout, self.clock())

    def _executor(self) -> PlanExecutor:
        kill_wait_s = self.slurm.seconds("KillWait", 30.0)

        def log(what: str, job: str, **more: object) -> None:
            self.metrics.count_action(what)
            self.log.write(what, job=job, **more)

        return PlanExecutor(
            self.slurm,
            self.state,
            self.settings.timing,
            log,
            self.policy.preemption.lease_s,
            kill_wait_s if self.settings.grace_s is None else self.settings.grace_s,
        )


def _with_history(policy: Policy, rows: Mapping[str, JobRow]) -> Policy:
    """Give Gittins' order the service of jobs that ended, which a scheduler made anew does not have."""
    if policy.order.by != "gittins" or policy.order.history_gpu_s:
        return policy
    ended = tuple(row.ran_s * row.gang for row in rows.values() if row.phase == "done" and row.ran_s > 0)
    return replace(policy, order=replace(policy.order, history_gpu_s=ended))


def _kind(row: JobRow, users: Mapping[str, str]) -> tuple[str, str, int]:
    """Return what observed speeds are shared by: user, model and gang; a job without a model stands alone."""
    model = row.model if row.model is not None else f"job {row.key}"
    return users.get(row.key, ""), model, row.gang


def _unobserved(user: str, model: str, gang: int, level: int) -> ObservedSpeed:
    return ObservedSpeed(user=user, model=model, gang=gang, level=level)


def _boot_id() -> str:
    """Return what names the present boot of this machine; empty where the kernel does not give it."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def plan_lines(plan: SchedulePlan, here: Partition) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Yield the lines of a plan, for a dry run."""
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
        yield "misfit", key, {"why": str(MISFIT)}


def check_partition(slurm: Slurm, partition: str) -> NodeLayout:
    """Return the partition's layout, or raise with the reason why there is none."""
    nodes = slurm.nodes()
    names = sorted({name for node in nodes for name in node.partitions})
    if partition not in names:
        raise InputError(f"Slurm has no partition {partition!r}. It has {', '.join(names) or 'none'}.")
    return layout_of(nodes, slurm.topology(), partition)


@contextlib.contextmanager
def closing(state: ControllerState) -> Iterator[ControllerState]:
    """Close the database however the controller ends."""
    try:
        yield state
    finally:
        state.close()
