"""Carry a deflation out: request a lower speed from the job's ranks, then limit its control groups.

1. Look: the target, what it may use, which of its processes are ranks that listen, and what it does use (`processes`).
2. Check: rights, the kernel's minimum quota, the memory that its processes hold. Nothing has changed so far.
3. Record the state (`journal`).
4. Request that its ranks take a smaller part of the global batch (`requests`), by the speed that is left:
   min(1, cores / used).
5. Limit: in its own group where it is alone in one, else in a group made for it.

A keeper (`journal.keep`) stays behind. It cleans up when the job ends, and undoes after `for_s`.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

from stallwise.deflate._limits import Amount as Amount
from stallwise.deflate._limits import DeflationTarget, LimitPlan, cpu_plan, memory_plan
from stallwise.deflate.cgroups import group_of, plain_name
from stallwise.deflate.journal import (
    STATE_VARIABLE,
    DeflationRecord,
    all_records,
    lock_target,
    read_record,
    release_hold,
    state_folder,
    undo_if_over,
    undo_record,
)
from stallwise.deflate.processes import PROC, busy_cores, seconds_since_boot, started_at, tree_of
from stallwise.deflate.requests import (
    ListeningRank,
    SlowdownRequest,
    adjustable,
    is_trusted,
    measuring_time_s,
    ranks_among,
    remove_stale_files,
    request_folder,
    withdraw_request,
    write_request,
)
from stallwise.errors import InputError, StallwiseError
from stallwise.sentences import Sentence

PERIOD_US = 10_000
_IDLE_CORES = 0.005
_AT_QUOTA = 0.9
"""A target that uses this fraction of a quota may be limited by it, and would use more without."""


class TargetGoneError(StallwiseError):
    """The target has ended, or never existed; nothing of it is left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationRequest:
    """What to leave to the target."""

    cpu: Amount | None = None
    memory: Amount | None = None
    speed: float | None = None
    """Request this speed from ranks, whatever the quota."""
    cooperative: bool = True
    period_us: int = PERIOD_US
    look_s: float | None = None
    """How long to measure what it uses; None: as long as needed."""
    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflationResult:
    """What was limited and requested."""

    target: str
    had_cores: float | None
    cores: float | None
    busy_cores: float | None
    had_memory_bytes: float | None
    memory_bytes: int | None
    asked: tuple[int, ...]
    """Ranks of the job that take a smaller part of the batch on request."""
    speed: float | None
    not_asked: Sentence | None
    """Why none does; None where one does, or none needs to."""
    groups: tuple[str, ...]
    until: float | None
    """Unix time at which it ends by itself."""
    looked_s: float
    """How long its use was measured before anything changed."""


Notify = Callable[[str], None]


def deflate(name: str, request: DeflationRequest, proc: Path = PROC, notify: Notify | None = None) -> DeflationResult:
    """Limit a process with all below it, or a control group; `notify` is called before what takes a while."""
    with lock_target(_plain(name, proc)):
        try:
            target = _target(name, proc)
            sweep()
            return _carry_out(target, request, proc, notify)
        except OSError as error:
            raise _as_sentence(error, name, "Nothing was changed.") from None


def _carry_out(
    target: DeflationTarget, request: DeflationRequest, proc: Path, notify: Notify | None
) -> DeflationResult:
    before = target.before or DeflationRecord(target=target.name, started=target.started)
    plans = _plans(target, request, proc)
    cores = next((plan.to for plan in plans if plan.group.controller == "cpu"), None)
    ranks, folder = _ranks_of(target, proc)
    _check_request(request, ranks)
    begin_s = time.monotonic()
    busy = _busy_cores(target, request, before, ranks, proc, notify)
    measured_s = time.monotonic() - begin_s
    speed, why = _speed(request, before, ranks, cores, busy)
    record = replace(
        before,
        holds=(*before.holds, *(plan.hold for plan in plans if plan.new)),
        busy_cores=busy if busy is None or _was_free(before, busy) else before.busy_cores,
        cores=cores if cores is not None else before.cores,
        memory_bytes=next((int(p.to) for p in plans if p.group.controller == "memory"), before.memory_bytes),
        asked=str(folder) if folder is not None else before.asked,
        asked_pids=_addressed_pids(target, ranks, before) if folder is not None else before.asked_pids,
        speed=speed,
        batch=_explicit_speed(request, before),
        until=time.time() + request.for_s if request.for_s is not None else before.until,
        until_boot_s=seconds_since_boot() + request.for_s if request.for_s is not None else before.until_boot_s,
    )
    _apply(record, target, plans, proc)
    return DeflationResult(
        target=target.name,
        had_cores=next((plan.had for plan in plans if plan.group.controller == "cpu"), None),
        cores=cores,
        busy_cores=busy,
        had_memory_bytes=next((plan.had for plan in plans if plan.group.controller == "memory"), None),
        memory_bytes=record.memory_bytes,
        asked=tuple(rank.rank for rank in ranks) if speed is not None else (),
        speed=speed,
        not_asked=why,
        groups=tuple(str(plan.group.path) for plan in plans),
        until=record.until,
        looked_s=measured_s,
    )


def _ranks_of(target: DeflationTarget, proc: Path) -> tuple[list[ListeningRank], Path | None]:
    try:
        members = target.members(proc)
    except OSError:
        return [], None
    return ranks_among(members, target.pid)


def _busy_cores(
    target: DeflationTarget,
    request: DeflationRequest,
    before: DeflationRecord,
    ranks: Sequence[ListeningRank],
    proc: Path,
    notify: Notify | None,
) -> float | None:
    """Measure what the target uses before anything is taken, since it cannot be measured later.

    None where it is idle, which is no answer: the next deflation measures again.
    """
    if before.busy_cores is not None or (request.cpu is None and request.speed is None):
        return before.busy_cores
    duration_s = measuring_time_s(ranks) if request.look_s is None else request.look_s
    if notify is not None:
        notify(f"Measuring for {duration_s:.0f} s what {target.name} uses …")
    busy = busy_cores(lambda: target.members(proc), duration_s)
    return busy if busy >= _IDLE_CORES else None


def _was_free(before: DeflationRecord, busy: float) -> bool:
    """Tell whether no earlier deflation limited what the target was measured to use."""
    return before.speed is None and (before.cores is None or busy < _AT_QUOTA * before.cores)


def _plans(target: DeflationTarget, request: DeflationRequest, proc: Path) -> list[LimitPlan]:
    amounts = {"cpu": request.cpu, "memory": request.memory}
    together = [name for name, amount in amounts.items() if amount is not None]
    plans = [cpu_plan(target, request.cpu, request.period_us, together, proc)] if request.cpu is not None else []
    plans += [memory_plan(target, request.memory, together, proc)] if request.memory is not None else []
    if target.pid is None and plans and not any(plan.group.all_processes() for plan in plans):
        raise InputError(f"There is no process in {plans[0].group.path}, so there is nothing to deflate.")
    return plans


def undo(name: str) -> tuple[str, ...]:
    """Restore everything; returns a sentence for each thing that was gone."""
    plain = _plain(name, PROC)
    with lock_target(plain):
        record = read_record(plain)
        if record is None:
            raise InputError(f"{name} is not deflated by this user ({state_folder()}).")
        alive = record.alive
        try:
            sentences = undo_record(record)
        except PermissionError as error:
            raise InputError(f"No right to write {error.filename}. Undo it as the user who deflated it.") from None
        except OSError as error:
            raise InputError(
                f"{name} could not be restored: {error.strerror} ({error.filename}). Its earlier state is still "
                "recorded: remove what is in the way, and undo it again."
            ) from None
    return sentences if alive else (*sentences, f"{name} has ended; what was left of its deflation is removed.")


def sweep() -> None:
    """Undo deflations that are over and whose keeper was killed, unless another process is at it."""
    own = request_folder(os.geteuid())
    if is_trusted(own, os.geteuid()):
        remove_stale_files(own)
    for record in all_records():
        if record.over:
            with contextlib.suppress(OSError, StallwiseError):
                undo_if_over(record.target, wait=False)


def _plain(name: str, proc: Path) -> str:
    return name if name.isdigit() else plain_name(name, proc)


def _target(name: str, proc: Path) -> DeflationTarget:
    plain = _plain(name, proc)
    before = read_record(plain)
    if before is not None and before.over:
        gone = not before.alive
        undo_record(before)
        before = None
        if gone and not name.isdigit():
            raise TargetGoneError(
                f"The control group {name} is gone or empty; what was left of its deflation is removed."
            )
    if not name.isdigit():
        return DeflationTarget(plain, None, None, before)
    started = started_at(int(name))
    if started is None:
        raise TargetGoneError(f"There is no process {name}: it has ended. Nothing was changed.")
    if int(name) in (1, os.getpid()):
        raise InputError(f"Process {name} cannot be deflated: it is the machine's first or this one.")
    return DeflationTarget(plain, int(name), started, before)


def _check_request(request: DeflationRequest, ranks: Sequence[ListeningRank]) -> None:
    """Refuse an explicit speed where no rank can take it."""
    if request.speed is None:
        return
    if not request.cooperative:
        raise InputError(
            "A speed is requested from the job's ranks, and ranks are not to be involved. Drop one of the two.",
            fields=("batch", "no_cooperative"),
        )
    if not adjustable(ranks):
        raise InputError(f"No rank can take a smaller part of the batch: {_unable(ranks)}. Nothing was changed.")


def _unable(ranks: Sequence[ListeningRank]) -> Sentence:
    why = next((rank.why for rank in ranks if rank.why), "")
    if why:
        return Sentence("ranks.unable", why)
    if ranks:
        return Sentence("ranks.one", "the job has one rank")
    return Sentence("ranks.none", "no rank of a stallwise.elastic session is in it")


def _speed(
    request: DeflationRequest,
    before: DeflationRecord,
    ranks: Sequence[ListeningRank],
    cores: float | None,
    busy: float | None,
) -> tuple[float | None, Sentence | None]:
    """Return the speed to request, or why none: an explicit one, else the lower of an earlier one and the quota's."""
    if not request.cooperative:
        return None, Sentence("ranks.left-alone", "not wanted")
    if request.speed is not None:
        return _if_less(request.speed)
    if request.cpu is None:  # memory alone changes nothing about it
        useless = Sentence("ranks.cannot-help", "nothing that ranks could help with is taken")
        return before.speed, None if before.speed is not None else useless
    if before.batch is None and not adjustable(ranks):
        return None, _unable(ranks)
    earlier = [] if before.batch is None else [before.batch]
    if cores is not None and busy:
        return _if_less(min(cores / busy, *earlier, 1.0))
    return _if_less(before.batch) if before.batch is not None else (None, Sentence("job.idle", "it was idle"))


def _if_less(speed: float) -> tuple[float | None, Sentence | None]:
    return (speed, None) if speed < 1.0 else (None, Sentence("job.has-enough", "what is left is enough"))


def _explicit_speed(request: DeflationRequest, before: DeflationRecord) -> float | None:
    """Return the speed requested explicitly: it stays until another is, or ranks are not to be involved."""
    if not request.cooperative:
        return None
    return before.batch if request.speed is None else request.speed


def _addressed_pids(
    target: DeflationTarget, ranks: Sequence[ListeningRank], before: DeflationRecord
) -> tuple[int, ...]:
    """Return whom to address: a process for all below it; in a group the ranks in it now, and those before."""
    now = (target.pid,) if target.pid is not None else tuple(rank.pid for rank in ranks)
    return tuple(sorted({*before.asked_pids, *now}))


def _apply(record: DeflationRecord, target: DeflationTarget, plans: Sequence[LimitPlan], proc: Path) -> None:
    try:
        record.write()
        record = _with_keeper(record)
        record.write()
        _request_speed(record)
        for plan in plans:
            record = _limit(record, plan, target, proc)
    except StallwiseError:
        _take_back(target, plans)
        raise
    except OSError as error:
        raise _as_sentence(error, target.name, _take_back(target, plans)) from None
    if not record.alive:
        undo_record(record)
        raise TargetGoneError(f"{target.name} ended while it was deflated; what was made for it is removed.")


def _request_speed(record: DeflationRecord) -> None:
    """Write (or withdraw) the slowdown request of every process that is addressed and still alive."""
    for pid in record.asked_pids:
        started = started_at(pid)
        if record.speed is None or started is None:
            withdraw_request(Path(record.asked or ""), pid)
        else:
            request = SlowdownRequest(speed=record.speed, started=started)
            write_request(Path(record.asked or ""), pid, request)


def _limit(record: DeflationRecord, plan: LimitPlan, target: DeflationTarget, proc: Path) -> DeflationRecord:
    """Write a limit and move the target's processes into its group; where each was is recorded first."""
    if plan.hold.home is not None:
        plan.group.path.mkdir(exist_ok=True)
    plan.group.write(plan.limits)
    if plan.hold.home is None or target.pid is None:
        return record
    while True:  # until none was started meanwhile
        outside = set(tree_of(target.pid)) - set(plan.group.processes)
        homes = {pid: home for pid in sorted(outside) if (home := _home_of(pid, plan, proc)) is not None}
        if not homes:
            return record
        record = _with_homes(record, plan, homes)
        for pid in homes:
            plan.group.take(pid)


def _home_of(pid: int, plan: LimitPlan, proc: Path) -> str | None:
    """Return the group a process is in; None where it has ended."""
    try:
        return str(group_of(pid, plan.group.controller, proc).path) if started_at(pid) is not None else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def _with_homes(record: DeflationRecord, plan: LimitPlan, homes: dict[int, str]) -> DeflationRecord:
    named = {str(pid): home for pid, home in homes.items()}
    holds = [replace(h, homes=h.homes | named) if h.path == plan.hold.path and h.home else h for h in record.holds]
    record = replace(record, holds=tuple(holds))
    record.write()
    return record


def _take_back(target: DeflationTarget, plans: Sequence[LimitPlan]) -> str:
    """Restore the state before a failure, an earlier deflation included. Returns a sentence about it."""
    try:
        now = read_record(target.name)
        if target.before is None and now is not None:
            undo_record(now)
        elif target.before is not None and now is not None:
            _restore(target.before, now, plans)
    except (OSError, StallwiseError):
        return "Not everything could be taken back: undo it again."
    return "Nothing was changed."


def _restore(before: DeflationRecord, now: DeflationRecord, plans: Sequence[LimitPlan]) -> None:
    for hold in now.holds[len(before.holds) :]:
        release_hold(hold)
    for plan in plans:
        if not plan.new:
            plan.group.write(plan.was)
    for pid in set(now.asked_pids) - set(before.asked_pids):
        withdraw_request(Path(now.asked or ""), pid)
    _request_speed(before)
    # Processes that were moved meanwhile stay in the record.
    replace(before, holds=now.holds[: len(before.holds)], keeper=now.keeper, asked=now.asked).write()


def _as_sentence(error: OSError, name: str, state: str) -> StallwiseError:
    if isinstance(error, PermissionError):
        return InputError(f"No right to write {error.filename}. Run this as root. {state}")
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return TargetGoneError(f"{name} or its control group has vanished meanwhile ({error.filename}). {state}")
    if error.errno is not None and "quota" in str(error.filename):
        return InputError(f"The kernel refuses this quota for {name}: a group around it has a smaller one. {state}")
    return InputError(f"{name} could not be deflated: {error}. {state}")


def _with_keeper(record: DeflationRecord) -> DeflationRecord:
    """Start a keeper before anything changes; one that runs already goes on."""
    if record.keeper is not None and started_at(record.keeper) is not None:
        return record
    command = [sys.executable, "-m", "stallwise.deflate.journal", record.target]
    # It runs in another folder, from which relative paths lead nowhere.
    paths = [str(Path(str(files("stallwise"))).absolute().parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        STATE_VARIABLE: str(state_folder()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    started = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", env=environment, check=False
    )
    if not started.stdout.strip().isdigit():
        why = started.stderr.strip().splitlines()[-1:] or [f"code {started.returncode}"]
        raise InputError(f"The keeper that would undo it in the end does not start ({why[0]}). Nothing was changed.")
    return replace(record, keeper=int(started.stdout))
