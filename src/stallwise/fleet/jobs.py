"""The job on a fleet's machines: elastic training, or a stand-in whose progress is computed from machines' lives."""

import contextlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stallwise.elastic.protocol import CHECKPOINTS, EVENTS_FILE, INTERVAL, MACHINE
from stallwise.elastic.wire import SECRET_VARIABLE, CoordinatorClient, CoordinatorRefusedError, Look
from stallwise.fleet._backend import ReportedMachine
from stallwise.fleet.plan import FleetPlan
from stallwise.fleet.state import Role

_HOST_DONE, _HOST_STOPPED, _HOST_USAGE = 0, 1, 2
_ASK_S = 5.0
_TAIL_CHARS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProgress:
    """How far the job is."""

    fraction: float | None = None
    """Of the whole job; None: not known."""
    full_rate: float | None = None
    """Fraction of the job per second on the full fleet, as measured; None: not yet."""
    training: int = 0
    """Machines that train now."""
    members: frozenset[str] | None = None
    """Machines that take part or wait to; None: not known."""
    done: bool = False
    done_s: float | None = None
    """When it was done, where the job knows."""
    failure: str = ""
    """Why it cannot go on."""
    first_s: float | None = None
    """When it first trained."""
    redone_s: float = 0.0
    """Seconds of work done twice, at the speed of the full fleet."""


class FleetJob(Protocol):
    """What the manager asks of a job."""

    coordinated: bool
    """Whether it needs a coordinator beside its hosts."""

    def command(self, role: Role, machine: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """The command of a machine, and its environment."""

    def progress(self, now_s: float, machines: Sequence[ReportedMachine]) -> FleetProgress:
        """How far the job is, from what the back end reports of this fleet's hosts, ended ones included."""


@dataclass
class ElasticJob:
    """A script with an elastic session, on a coordinator at this computer."""

    plan: FleetPlan
    script: tuple[str, ...]
    checkpoints: Path
    port: int
    secret: str
    address: str = "127.0.0.1"
    coordinated: bool = True
    _position: int = 0
    _last: dict[str, dict[str, Any]] = field(default_factory=dict)
    _furthest: int = 0
    _redone: int = 0
    _first_at: float | None = None
    _client: CoordinatorClient | None = None

    def command(self, role: Role, machine: str) -> tuple[tuple[str, ...], dict[str, str]]:
        program: tuple[str, ...] = (sys.executable, "-m", "stallwise.elastic")
        environment = {SECRET_VARIABLE: self.secret, MACHINE: machine}
        if role == "coordinator":
            return (*program, "coordinator", "--address", self.address, "--port", str(self.port)), environment
        # On-demand machines come before spot machines go, so there may be twice as many for a while.
        options: tuple[str, ...] = (
            "--coordinator",
            f"{self.address}:{self.port}",
            "--nnodes",
            f"1:{2 * self.plan.machines}",
        )
        options += ("--nproc-per-node", str(self.plan.ranks), "--job", self.plan.name)
        environment |= {CHECKPOINTS: str(self.checkpoints), INTERVAL: f"{self.plan.interval_s:.6g}"}
        environment["OMP_NUM_THREADS"] = "1"
        return (*program, "host", *options, *self.script), environment

    def progress(self, now_s: float, machines: Sequence[ReportedMachine]) -> FleetProgress:
        self._read_events()
        members, training = self._members()
        codes = [one.exit_code for one in machines if one.exit_code is not None]
        pace, began = self._last.get("pace"), self._last.get("began")
        fraction = full_rate = None
        if self.plan.samples:
            samples = max((one.get("samples", 0) for one in self._last.values()), default=0)
            fraction = min(1.0, samples / self.plan.samples)
            if pace and pace.get("samples_per_s") and pace.get("world"):
                ranks = self.plan.machines * self.plan.ranks
                full_rate = pace["samples_per_s"] * ranks / pace["world"] / self.plan.samples
        done = _HOST_DONE in codes
        if training is None:
            training = 0 if began is None else min(began["world"] // self.plan.ranks, len(machines))
        return FleetProgress(
            fraction=1.0 if done else fraction,
            full_rate=full_rate,
            training=training,
            members=members,
            done=done,
            failure="" if done else self._failure(machines),
            first_s=None if self._first_at is None else now_s,
            redone_s=self._redone * pace["step_s"] if pace else 0.0,
        )

    def _failure(self, machines: Sequence[ReportedMachine]) -> str:
        for one in machines:
            if one.exit_code == _HOST_STOPPED:
                return f"the job was stopped on {one.name}: its ranks crashed more often than allowed"
            if one.exit_code == _HOST_USAGE:
                return f"the job cannot start on {one.name}: bad input"
        return ""

    def _read_events(self) -> None:
        """Take in what was appended to the session's log."""
        with contextlib.suppress(FileNotFoundError), (self.checkpoints / EVENTS_FILE).open("rb") as file:
            file.seek(self._position)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._position += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                    self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind, step = event["kind"], int(event.get("step", 0))
        if kind != "began" and event.get("round") != self._last.get("began", event).get("round"):
            return  # of an earlier round, whose rank was stopped and goes on
        if kind == "began":
            self._redone += max(0, self._furthest - step)
            self._furthest = step
            self._first_at = self._first_at or event["at"]
        self._furthest = max(self._furthest, step)
        if kind in ("pace", "began"):
            self._last[kind] = event
            if kind == "began":  # what was done again does not count twice
                self._last.pop("pace", None)

    def _members(self) -> tuple[frozenset[str] | None, int | None]:
        """Ask the coordinator who takes part; a client that fails is made anew at the next look."""
        try:
            if self._client is None:
                self._client = CoordinatorClient(self.address, self.port, self.secret.encode(), self.plan.name, _ASK_S)
            status = self._client.status(Look("manager"))
        except (OSError, CoordinatorRefusedError):
            if self._client is not None:
                self._client.close()
            self._client = None
            return None, None
        names = frozenset(name.rsplit("-", 2)[0] for name, _ in status.members)
        # Who waits for the next round is not named; while anybody does, nobody counts as silent.
        return (None if status.waiting else names), min(status.present, len(status.members))


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInCosts:
    """Seconds that a stand-in job takes for what happens to its machines."""

    start_s: float
    """From a machine that is ready until it is taken in."""
    join_s: float
    notice_s: float
    loss_s: float
    save_s: float


@dataclass
class StandInJob:
    """A job that does nothing but take its time: a pure function of the lives of machines, also across managers."""

    plan: FleetPlan
    costs: StandInCosts
    command_line: tuple[str, ...] = ("sleep", "1000000")
    coordinated: bool = False

    def command(self, role: Role, machine: str) -> tuple[tuple[str, ...], dict[str, str]]:
        return self.command_line, {}

    def progress(self, now_s: float, machines: Sequence[ReportedMachine]) -> FleetProgress:
        replay = _Replay(self.plan, self.costs)
        changes: list[tuple[float, int, bool]] = []
        for one in machines:
            if one.ready_s is None:
                continue
            joined_s, left_s = one.ready_s + self.costs.start_s, one.ended_s
            if left_s is not None and left_s <= joined_s:
                continue
            if joined_s <= now_s:
                changes.append((joined_s, 1, True))
            if left_s is not None and left_s <= now_s:
                changes.append((left_s, -1, one.why == "stopped" or one.notice))
        for at_s, change, noticed in sorted(changes):
            replay.advance(at_s)
            replay.change(change, noticed=noticed)
        replay.advance(now_s)
        names = frozenset(one.name for one in machines if one.state == "running")
        return FleetProgress(
            fraction=replay.work_s / replay.total_s,
            full_rate=1.0 / replay.total_s,
            training=replay.active,
            members=names,
            done=replay.done_s is not None,
            done_s=replay.done_s,
            first_s=replay.first_s,
            redone_s=replay.redone_s,
        )


class _Replay:
    """Work done by machines that come and go."""

    def __init__(self, plan: FleetPlan, costs: StandInCosts) -> None:
        self._plan, self._costs = plan, costs
        self.total_s = plan.work_s or math.inf
        self.active = 0
        self.work_s = self.redone_s = 0.0
        self.done_s: float | None = None
        self.first_s: float | None = None
        self._saved_s = self._now_s = 0.0
        self._resume_s = 0.0
        self._save_s = math.inf

    def change(self, by: int, *, noticed: bool) -> None:
        """A machine comes (1) or goes (-1); all save before, except at a loss without notice."""
        if self.done_s is not None:
            return
        if noticed:
            self._saved_s = self.work_s
        else:
            self.redone_s += self.work_s - self._saved_s
            self.work_s = self._saved_s
        pause_s = self._costs.join_s if by > 0 else self._costs.notice_s if noticed else self._costs.loss_s
        self.active += by
        self._resume_s = max(self._resume_s, self._now_s + pause_s)
        self._save_s = self._resume_s + self._plan.interval_s
        if self.first_s is None:
            self.first_s = self._now_s

    def advance(self, until_s: float) -> None:
        """Work, save and pause until a moment."""
        while self._now_s < until_s and self.done_s is None:
            if self.active == 0 or self._now_s < self._resume_s:
                self._now_s = until_s if self.active == 0 else min(until_s, self._resume_s)
                continue
            speed = self.active / self._plan.machines
            end_s = self._now_s + (self.total_s - self.work_s) / speed
            next_s = min(until_s, self._save_s, end_s)
            self.work_s += (next_s - self._now_s) * speed
            self._now_s = next_s
            if next_s == end_s:
                self.work_s, self.done_s = self.total_s, end_s
            elif next_s == self._save_s:
                self._saved_s = self.work_s
                self._resume_s = next_s + self._costs.save_s
                self._save_s = self._resume_s + self._plan.interval_s
