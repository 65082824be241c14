"""Replay a revocation trace on a real job of several agents on this machine, and compare it with the plan.

The trace's time is divided by a speed-up; what processes take to start, to notice a loss, to meet again and to restore
is not. A calibration first measures what those cost here (`RecoveryCosts`): a step, a host's start, and the pause when
one joins, leaves with notice, or is killed. With them the planner (`spot.plan.simulate.replay`) predicts the same trace
before it is replayed.
"""

import contextlib
import math
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stallwise.elastic.protocol import EVENTS_FILE, read_events
from stallwise.errors import InputError, StallwiseError
from stallwise.record.processes import die_with_parent
from stallwise.spot.lifetimes.log import AvailabilityTrace
from stallwise.spot.plan.closed import JobWork
from stallwise.spot.plan.simulate import delayed, replay
from stallwise.units import SECONDS_PER_HOUR

_STOP_S = 5.0


@dataclass
class LocalHost:
    """One agent, and when it began and ended."""

    process: "subprocess.Popen[bytes]"
    began_s: float
    ended_s: float | None = None


@dataclass
class LocalFleet:
    """A coordinator and hosts on this machine. All end with `close()`, or with the process that made them."""

    command: Sequence[str]
    out: Path
    max_hosts: int
    grace_s: float = 30.0
    options: Sequence[str] = ()
    hosts: list[LocalHost] = field(default_factory=list)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._coordinator = self._start("coordinator", "--port", str(self._port))

    def add(self) -> LocalHost:
        arguments = ["host", "--coordinator", f"127.0.0.1:{self._port}", "--nnodes", f"1:{self.max_hosts}"]
        arguments += ["--max-crashes", "1000", "--grace", f"{self.grace_s:g}", *self.options, *self.command]
        self.hosts.append(LocalHost(self._start(*arguments), time.monotonic()))
        return self.hosts[-1]

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with self.out.open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "stallwise.elastic", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def alive(self) -> list[LocalHost]:
        """The hosts whose process still runs."""
        for host in self.hosts:
            if host.ended_s is None and host.process.poll() is not None:
                host.ended_s = time.monotonic()
        return [host for host in self.hosts if host.ended_s is None]

    def revoke(self, host: LocalHost, *, notice: bool) -> None:
        """Revoke a host: SIGTERM and its grace, or SIGKILL."""
        host.process.send_signal(signal.SIGTERM if notice else signal.SIGKILL)
        if not notice:
            host.process.wait()
        host.ended_s = time.monotonic()

    def rented_s(self) -> float:
        """Return the machine time so far, in seconds."""
        now_s = time.monotonic()
        return sum((now_s if host.ended_s is None else host.ended_s) - host.began_s for host in self.hosts)

    def close(self) -> None:
        """Kill all hosts and the coordinator."""
        for process in [*(host.process for host in self.hosts), self._coordinator]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)


_STANDIN = Path(__file__).with_name("_standin.py")
_POLL_S = 0.02
_GIVE_UP = 10.0
_CALIBRATION = (True, False, True, False)
"""Losses with notice and without, in turns."""
_LEAST_S = 120.0
ProgressCallback = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosTrial:
    """What to replay. `work_s` is for the whole fleet, without a loss."""

    trace: AvailabilityTrace
    machines: int
    work_s: float
    interval_s: float
    notice: bool
    step_s: float = 0.05
    usd_per_h: float = 1.0
    seed: int = 1

    @property
    def samples(self) -> int:
        """Samples of the whole job: one per rank and step."""
        return max(1, round(self.work_s / self.step_s * self.machines))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCosts:
    """Seconds that events take on this machine, as calibrated."""

    step_s: float
    start_s: float
    """From the start of a host to the moment the others stop for it."""
    first_s: float
    """From the start of the first hosts to the first step."""
    join_s: float
    notice_s: float
    loss_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosMeasurement:
    """What was measured: seconds from the first step, machine time, work done again, pauses after losses."""

    finish_s: float
    rented_s: float
    losses: int
    redone_s: float
    recoveries_s: tuple[float, ...]
    rounds: int
    step_s: float | None
    """Median while all machines ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOutcome:
    """A replayed trial beside its plan."""

    trial: ChaosTrial
    lived: ChaosMeasurement
    planned_s: float
    planned_usd: float
    planned_redone_s: float

    @property
    def cost_usd(self) -> float:
        """Cost of the machine time at the trial's price."""
        return self.lived.rented_s / SECONDS_PER_HOUR * self.trial.usd_per_h

    @property
    def error(self) -> float:
        """Signed relative error of the planned finish."""
        return self.planned_s / self.lived.finish_s - 1.0


def compressed_trace(
    trace: AvailabilityTrace, speed_up: float, machines: int, begin_s: float = 0.0
) -> AvailabilityTrace:
    """Return the trace from `begin_s` on, its time divided by `speed_up`, with 1 to `machines` machines."""
    first = max(0, int(np.searchsorted(trace.at_s, begin_s, side="right")) - 1)
    at_s = np.maximum(trace.at_s[first:] - begin_s, 0.0) / speed_up
    counts = np.clip(trace.counts[first:], 1, machines)
    keep = np.append(True, np.diff(counts) != 0)
    return AvailabilityTrace(at_s[keep], counts[keep], max((trace.end_s - begin_s) / speed_up, float(at_s[-1])))


def random_trace(machines: int, mean_life_s: float, away_s: float, length_s: float, seed: int) -> AvailabilityTrace:
    """Draw a trace of machines with exponential lifetimes that return after `away_s`; never fewer than one."""
    draw = random.Random(seed)  # noqa: S311
    changes: list[tuple[float, int]] = []
    for _ in range(machines):
        at_s = draw.expovariate(1.0 / mean_life_s)
        while at_s < length_s:
            changes += [(at_s, -1), (at_s + away_s, 1)]
            at_s += away_s + draw.expovariate(1.0 / mean_life_s)
    at, counts = [0.0], [machines]
    present = machines
    for moment_s, change in sorted(changes):
        present += change
        at.append(moment_s)
        counts.append(max(1, present))
    times, numbers = np.array(at), np.array(counts, dtype=np.int64)
    keep = np.append(True, np.diff(numbers) != 0)
    return AvailabilityTrace(times[keep], numbers[keep], max(length_s, float(times[-1])))


def plan_trial(trial: ChaosTrial, costs: RecoveryCosts) -> tuple[float, float, float]:
    """Return the planner's finish, dollars and work done again, for the same trace."""
    # A new machine trains from when it has started; the fleet that is there at first needs no start.
    trace = delayed(trial.trace, costs.start_s)
    if len(trace.at_s) and trace.counts[0] != trial.trace.counts[0]:
        raise InputError(
            "The trace changes before its first machines have started. Use a smaller speed-up.", fields=("speed_up",)
        )
    work_s = trial.samples / trial.machines * costs.step_s
    work = JobWork(
        work_s=work_s,
        # A session saves by the clock, the planner by work, which fewer machines do more slowly.
        interval_s=trial.interval_s * _mean_machines(trace, 2 * work_s) / trial.machines,
        save_s=0.0,
        provision_s=0.0,
        restart_s=costs.notice_s if trial.notice else costs.loss_s,
        join_s=costs.join_s,
        redo=not trial.notice,
    )
    # The planner begins with the join of the first machines; measured time is counted from the first step.
    at_s = np.concatenate([trace.at_s[:1], trace.at_s[1:] + costs.join_s])
    begin = AvailabilityTrace(at_s, trace.counts, max(trace.end_s + costs.join_s, 100 * work.work_s))
    simulation = replay(work, begin, trial.machines, np.zeros(1), on_loss="shrink", threads=1)
    finish_s = float(simulation.finish_s[0]) - costs.join_s
    return finish_s, rent_usd(trial.trace, finish_s, trial.usd_per_h), float(simulation.redone_s[0])


def _mean_machines(trace: AvailabilityTrace, until_s: float) -> float:
    """Return the mean number of machines."""
    return rent_usd(trace, until_s, SECONDS_PER_HOUR) / until_s


def rent_usd(trace: AvailabilityTrace, until_s: float, usd_per_h: float) -> float:
    """Return the rent until `until_s`; a machine is paid for from when it is there, also while it starts."""
    edges_s = np.minimum(np.append(trace.at_s, max(trace.end_s, until_s)), until_s)
    return float((trace.counts * np.diff(edges_s)).sum()) / SECONDS_PER_HOUR * usd_per_h


def calibrate(machines: int, step_s: float, interval_s: float, progress: ProgressCallback) -> RecoveryCosts:
    """Measure a fleet short of one host: one joins, leaves with notice, joins, is killed; means of two passes."""
    joins: list[tuple[float, float]] = []
    pauses: dict[bool, list[float]] = {True: [], False: []}
    with _fleet(machines, step_s, interval_s, samples=10_000_000) as (fleet, events):
        began_s = time.time()
        for _ in range(max(1, machines - 1)):
            fleet.add()
        _until(lambda: bool(_began(events)) and _began(events)[-1]["world"] == max(1, machines - 1), fleet)
        first_s = _began(events)[-1]["at"] - began_s
        for done, notice in enumerate(_CALIBRATION):
            progress("losses calibrated", done, len(_CALIBRATION))
            _wait_for_pace(fleet, events, 2)
            joins.append(_join(fleet, events))
            _wait_for_pace(fleet, events, 2)
            pauses[notice].append(_lose(fleet, events, notice=notice))
        steps = [event["step_s"] for event in events() if event["kind"] == "pace" and event["world"] == machines]
    return RecoveryCosts(
        step_s=statistics.median(steps),
        start_s=statistics.fmean(start_s for start_s, _ in joins),
        first_s=first_s,
        join_s=statistics.fmean(join_s for _, join_s in joins),
        notice_s=statistics.fmean(pauses[True]),
        loss_s=statistics.fmean(pauses[False]),
    )


def _wait_for_pace(fleet: LocalFleet, events: "_Events", seconds: int) -> None:
    """Wait for this many "pace" events of the present round; there is one a second."""
    before = _paces(events)
    _until(lambda: _paces(events) >= before + seconds, fleet)


def _join(fleet: LocalFleet, events: "_Events") -> tuple[float, float]:
    """Add a host; returns seconds until the others stop for it, and from there until all go on."""
    before, added_s = len(_began(events)), time.time()
    fleet.add()
    _until(lambda: len(_began(events)) > before, fleet)
    stopped_s = next(event["at"] for event in reversed(events()) if event["kind"] == "notice")
    return stopped_s - added_s, _began(events)[-1]["at"] - stopped_s


def _lose(fleet: LocalFleet, events: "_Events", *, notice: bool) -> float:
    """Revoke the oldest host, likely with rank 0; returns the seconds until the next round."""
    before, lost_s = len(_began(events)), time.time()
    fleet.revoke(fleet.alive[0], notice=notice)
    _until(lambda: len(_began(events)) > before, fleet)
    return float(_began(events)[-1]["at"] - lost_s)


def run_trial(trial: ChaosTrial, costs: RecoveryCosts, progress: ProgressCallback) -> ChaosOutcome:
    """Plan the trial, then replay it on real hosts."""
    planned_s, planned_usd, planned_redone_s = plan_trial(trial, costs)
    with _fleet(trial.machines, trial.step_s, trial.interval_s, trial.samples) as (fleet, events):
        for _ in range(int(trial.trace.counts[0])):
            fleet.add()
        _until(lambda: bool(_began(events)) and _began(events)[-1]["world"] == trial.trace.counts[0], fleet)
        begin = _began(events)[-1]
        before_s = fleet.rented_s()
        revoked = _follow(trial, fleet, events, begin, planned_s, progress)
        done = [event for event in events() if event["kind"] == "done"]
        if not done:
            raise StallwiseError(f"The job did not end; its output ends: …{_tail(fleet.out)}")
        measurement = ChaosMeasurement(
            finish_s=done[-1]["at"] - begin["at"],
            rented_s=fleet.rented_s() - before_s,
            losses=len(revoked),
            redone_s=_redone_s(events(), costs.step_s),
            recoveries_s=tuple(_recoveries(revoked, _began(events), costs.start_s)),
            rounds=len(_began(events)),
            step_s=_step_s(events(), trial.machines),
        )
    return ChaosOutcome(
        trial=trial, lived=measurement, planned_s=planned_s, planned_usd=planned_usd, planned_redone_s=planned_redone_s
    )


def _follow(
    trial: ChaosTrial,
    fleet: LocalFleet,
    events: "_Events",
    begin: dict[str, Any],
    planned_s: float,
    progress: ProgressCallback,
) -> list[tuple[float, float]]:
    """Revoke and add hosts as the trace says until the job is done; returns time of loss and of start by loss."""
    draw = random.Random(trial.seed)  # noqa: S311
    changes = list(zip(trial.trace.at_s[1:].tolist(), np.diff(trial.trace.counts).tolist(), strict=True))
    revoked: list[tuple[float, float]] = []
    give_up_s = _GIVE_UP * planned_s + _LEAST_S
    while fleet.alive:
        now_s = time.time() - begin["at"]
        if now_s > give_up_s:
            raise StallwiseError(f"The job takes more than {give_up_s:.0f} s; its output ends: …{_tail(fleet.out)}")
        while changes and changes[0][0] <= now_s and not _done(events):
            change = changes.pop(0)[1]
            for _ in range(change):
                fleet.add()
            for _ in range(-change):
                victim = draw.choice(fleet.alive)
                fleet.revoke(victim, notice=trial.notice)
                revoked.append((time.time(), victim.began_s))
        progress("seconds lived", round(now_s), round(planned_s))
        time.sleep(_POLL_S)
    return revoked


def _done(events: "_Events") -> bool:
    return any(event["kind"] == "done" for event in events())


_Events = Callable[[], list[dict[str, Any]]]


@contextmanager
def _fleet(max_hosts: int, step_s: float, interval_s: float, samples: int) -> Iterator[tuple[LocalFleet, _Events]]:
    root = Path(tempfile.mkdtemp(prefix="stallwise-chaos-"))
    command = [str(_STANDIN), "--folder", str(root / "run"), "--samples", str(samples)]
    command += ["--step", str(step_s), "--interval", str(interval_s)]
    fleet = LocalFleet(command, root / "out.txt", max_hosts)
    try:
        yield fleet, lambda: list(read_events(root / "run" / EVENTS_FILE))
    finally:
        fleet.close()
        shutil.rmtree(root, ignore_errors=True)


def _until(ready: Callable[[], bool], fleet: LocalFleet) -> None:
    until_s = time.monotonic() + _LEAST_S
    while not ready():
        if time.monotonic() > until_s or not fleet.alive:
            raise StallwiseError(f"The local job does not get going; its output ends: …{_tail(fleet.out)}")
        time.sleep(_POLL_S)


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-500:].strip() if path.exists() else ""


def _began(events: _Events) -> list[dict[str, Any]]:
    return [event for event in events() if event["kind"] == "began"]


def _paces(events: _Events) -> int:
    return sum(event["kind"] == "pace" for event in events())


def _recoveries(
    revoked: Sequence[tuple[float, float]], began: Sequence[dict[str, Any]], start_s: float
) -> Iterator[float]:
    """Yield seconds from each loss to the next round; a machine that had not joined yet is no loss to the job."""
    now_s, clock_s = time.monotonic(), time.time()
    for lost_s, since_s in revoked:
        after = [event["at"] for event in began if event["at"] > lost_s]
        life_s = lost_s - (clock_s - (now_s - since_s))
        if after and life_s > start_s + 1.0:
            yield min(after) - lost_s


def _step_s(events: Sequence[dict[str, Any]], machines: int) -> float | None:
    times_s = [event["step_s"] for event in events if event["kind"] == "pace" and event["world"] == machines]
    return statistics.median(times_s) if times_s else None


def _redone_s(events: Sequence[dict[str, Any]], step_s: float) -> float:
    """Return the time of steps that were made again: the last logged step of a round, against where the next began.

    A round is logged once a second; the steps after its last line are not counted, half a second on average.
    """
    redone = 0.0
    furthest = 0
    for event in events:
        if event["kind"] == "began":
            redone += max(0, furthest - event["step"]) * step_s
            furthest = event["step"]
        elif "step" in event:
            furthest = max(furthest, event["step"])
    return redone


def mean_error(outcomes: Sequence[ChaosOutcome]) -> float:
    """Return the mean of absolute errors of the planned finish."""
    return statistics.fmean(abs(outcome.error) for outcome in outcomes) if outcomes else math.nan
