"""Carrying a deflation out: the job is asked first, then its control groups hold it to what is left.

1. Look: who it is, what it may use, which of its processes are ranks that can be asked, and what it does use (`look`).
2. Check: rights, the kernel's least quota, the memory that its processes hold. Nothing has changed so far.
3. Write down what is (`journal`).
4. Ask its ranks to take a smaller part of the global batch, by the speed that is left (`door`): min(1, cores / used).
5. Limit: in its own group where it is alone in one, else in a group made for it.

A keeper (`keeper`) stays behind. It cleans up when the job ends, and undoes after `for_s`.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import stallwise
from stallwise.deflate import door, journal, look
from stallwise.deflate.cgroups import group_of, plain_name
from stallwise.deflate.door import Ask, Rank
from stallwise.deflate.journal import Journal
from stallwise.deflate.limits import Amount as Amount
from stallwise.deflate.limits import Plan, Target, cpu_plan, memory_plan
from stallwise.deflate.processes import PROC, started_at, tree_of
from stallwise.errors import InputError, StallwiseError

PERIOD_US = 10_000
_IDLE_CORES = 0.005
_HELD = 0.9
"""Who uses this much of a quota may be held by it, and would use more without."""


class GoneError(StallwiseError):
    """The target has ended, or was never there; nothing of it is left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What is to be left to the target."""

    cpu: Amount | None = None
    memory: Amount | None = None
    speed: float | None = None
    """Ask ranks for this, whatever the quota."""
    cooperative: bool = True
    period_us: int = PERIOD_US
    look_s: float | None = None
    """How long to look at what it uses; None: as long as needed."""
    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was done."""

    target: str
    had_cores: float | None
    cores: float | None
    busy_cores: float | None
    had_memory_bytes: float | None
    memory_bytes: int | None
    asked: tuple[int, ...]
    """Ranks of the job that were asked to take a smaller part."""
    speed: float | None
    not_asked: str
    """Why no rank was; empty where one was, or none was needed."""
    groups: tuple[str, ...]
    until: float | None
    """The clock's time at which it ends by itself."""
    looked_s: float
    """How long it was looked at before anything changed."""


Tell = Callable[[str], None]


def deflate(name: str, want: Want, proc: Path = PROC, tell: Tell | None = None) -> Done:
    """Take what is too much from a process with all below it, or from a control group; `tell` what takes a while."""
    with journal.locked(_plain(name, proc)):
        try:
            target = _target(name, proc)
            sweep()
            return _deflated(target, want, proc, tell)
        except OSError as error:
            raise _sentence(error, name, "Nothing was changed.") from None


def _deflated(target: Target, want: Want, proc: Path, tell: Tell | None) -> Done:
    before = target.before or Journal(target=target.name, started=target.started)
    plans = _plans(target, want, proc)
    cores = next((plan.to for plan in plans if plan.group.controller == "cpu"), None)
    ranks, folder = look.ranks_in(target, proc)
    _check_ask(want, ranks)
    begin_s = time.monotonic()
    busy = _busy_cores(target, want, before, ranks, proc, tell)
    looked_s = time.monotonic() - begin_s
    speed, why = _speed(want, before, ranks, cores, busy)
    kept = replace(
        before,
        holds=(*before.holds, *(plan.hold for plan in plans if plan.new)),
        busy_cores=busy if busy is None or _unheld(before, busy) else before.busy_cores,
        cores=cores if cores is not None else before.cores,
        memory_bytes=next((int(p.to) for p in plans if p.group.controller == "memory"), before.memory_bytes),
        asked=str(folder) if folder is not None else before.asked,
        asked_pids=_asked_pids(target, ranks, before) if folder is not None else before.asked_pids,
        speed=speed,
        batch=_explicit(want, before),
        until=time.time() + want.for_s if want.for_s is not None else before.until,
    )
    _carry_out(kept, target, plans, proc)
    return Done(
        target=target.name,
        had_cores=next((plan.had for plan in plans if plan.group.controller == "cpu"), None),
        cores=cores,
        busy_cores=busy,
        had_memory_bytes=next((plan.had for plan in plans if plan.group.controller == "memory"), None),
        memory_bytes=kept.memory_bytes,
        asked=tuple(rank.rank for rank in ranks) if speed is not None else (),
        speed=speed,
        not_asked=why,
        groups=tuple(str(plan.group.path) for plan in plans),
        until=kept.until,
        looked_s=looked_s,
    )


def _busy_cores(
    target: Target, want: Want, before: Journal, ranks: Sequence[Rank], proc: Path, tell: Tell | None
) -> float | None:
    """What it uses when nothing is taken yet, also where only ranks are asked: later it could not be seen any more.

    None where it is idle, which is no answer: the next deflation looks again.
    """
    if before.busy_cores is not None or (want.cpu is None and want.speed is None):
        return before.busy_cores
    look_s = look.long_enough_s(ranks) if want.look_s is None else want.look_s
    if tell is not None:
        tell(f"Looking for {look_s:.0f} s at what {target.name} uses …")
    busy = look.busy_cores(lambda: target.members(proc), look_s)
    return busy if busy >= _IDLE_CORES else None


def _unheld(before: Journal, busy: float) -> bool:
    """Whether an earlier deflation left it free to use what it was seen to."""
    return before.speed is None and (before.cores is None or busy < _HELD * before.cores)


def _plans(target: Target, want: Want, proc: Path) -> list[Plan]:
    wanted = {"cpu": want.cpu, "memory": want.memory}
    together = [name for name, amount in wanted.items() if amount is not None]
    plans = [cpu_plan(target, want.cpu, want.period_us, together, proc)] if want.cpu is not None else []
    plans += [memory_plan(target, want.memory, together, proc)] if want.memory is not None else []
    if target.pid is None and plans and not any(plan.group.everyone() for plan in plans):
        raise InputError(f"There is no process in {plans[0].group.path}, so there is nothing to deflate.")
    return plans


def undo(name: str) -> tuple[str, ...]:
    """Give everything back; a sentence for each thing that was gone."""
    plain = _plain(name, PROC)
    with journal.locked(plain):
        found = journal.read(plain)
        if found is None:
            raise InputError(f"{name} is not deflated, as far as this user knows ({journal.state_folder()}).")
        alive = found.alive
        try:
            said = journal.undo(found)
        except PermissionError as error:
            raise InputError(f"No right to write {error.filename}. Undo it as the user who deflated it.") from None
        except OSError as error:
            raise InputError(
                f"{name} has not everything back: {error.strerror} ({error.filename}). What was before is still known: "
                "look at what is in the way, and --undo tries again."
            ) from None
    return said if alive else (*said, f"{name} has ended; what was left of its deflation is removed.")


def sweep() -> None:
    """Undo what is over, should a keeper have been killed; not where somebody is at it."""
    own = door.folder_of(os.geteuid())
    if door.trusted(own, os.geteuid()):
        door.sweep(own)
    for found in journal.all_of_them():
        if found.over:
            with contextlib.suppress(OSError, StallwiseError):
                journal.undo_if_over(found.target, wait=False)


def _plain(name: str, proc: Path) -> str:
    return name if name.isdigit() else plain_name(name, proc)


def _target(name: str, proc: Path) -> Target:
    plain = _plain(name, proc)
    before = journal.read(plain)
    if before is not None and before.over:
        gone = not before.alive
        journal.undo(before)
        before = None
        if gone and not name.isdigit():
            raise GoneError(f"The control group {name} is gone or empty; what was left of its deflation is removed.")
    if not name.isdigit():
        return Target(plain, None, None, before)
    started = started_at(int(name), proc)
    if started is None:
        raise GoneError(f"There is no process {name}: it has ended. Nothing was changed.")
    if int(name) in (1, os.getpid()):
        raise InputError(f"Process {name} is not one to deflate.")
    return Target(plain, int(name), started, before)


def _check_ask(want: Want, ranks: Sequence[Rank]) -> None:
    """Whether there is somebody to hear an ask that was asked for by name."""
    if want.speed is None:
        return
    if not want.cooperative:
        raise InputError("--batch asks the job's ranks, and --no-cooperative asks nobody. Give one of them.")
    if not look.able(ranks):
        raise InputError(f"No rank can be asked to take a part of the batch: {_unable(ranks)}. Nothing was changed.")


def _unable(ranks: Sequence[Rank]) -> str:
    why = next((rank.why for rank in ranks if rank.why), "")
    return why or ("the job has one rank" if ranks else "no rank of a stallwise.elastic session is in it")


def _speed(
    want: Want, before: Journal, ranks: Sequence[Rank], cores: float | None, busy: float | None
) -> tuple[float | None, str]:
    """What to ask for, or why nothing: what was said now, else the stricter of what was said before and the quota's."""
    if not want.cooperative:
        return None, "not wanted"
    if want.speed is not None:
        return _if_less(want.speed)
    if want.cpu is None:  # memory alone changes nothing about it
        return before.speed, "" if before.speed is not None else "nothing that ranks could help with is taken"
    if before.batch is None and not look.able(ranks):
        return None, _unable(ranks)
    told = [] if before.batch is None else [before.batch]
    if cores is not None and busy:
        return _if_less(min(cores / busy, *told, 1.0))
    return _if_less(before.batch) if before.batch is not None else (None, "it was idle")


def _if_less(speed: float) -> tuple[float | None, str]:
    return (speed, "") if speed < 1.0 else (None, "what is left is enough")


def _explicit(want: Want, before: Journal) -> float | None:
    """What the ranks were asked for by name: stays until another is, or nobody is to be asked."""
    if not want.cooperative:
        return None
    return before.batch if want.speed is None else want.speed


def _asked_pids(target: Target, ranks: Sequence[Rank], before: Journal) -> tuple[int, ...]:
    """All below a process hear what it is asked; of a group, the ranks that are in it now, and those asked before."""
    now = (target.pid,) if target.pid is not None else tuple(rank.pid for rank in ranks)
    return tuple(sorted({*before.asked_pids, *now}))


def _carry_out(kept: Journal, target: Target, plans: Sequence[Plan], proc: Path) -> None:
    try:
        kept.write()
        kept = _with_keeper(kept)
        kept.write()
        _ask(kept)
        for plan in plans:
            kept = _limit(kept, plan, target, proc)
    except StallwiseError:
        _taken_back(target, plans)
        raise
    except OSError as error:
        raise _sentence(error, target.name, _taken_back(target, plans)) from None
    if not kept.alive:
        journal.undo(kept)
        raise GoneError(f"{target.name} ended while it was deflated; what was made for it is removed.")


def _ask(kept: Journal) -> None:
    """Those who live for the speed that they will have, or for nothing any more."""
    for pid in kept.asked_pids:
        started = started_at(pid)
        if kept.speed is None or started is None:
            door.withdraw(Path(kept.asked or ""), pid)
        else:
            door.write_ask(Path(kept.asked or ""), pid, Ask(speed=kept.speed, started=started))


def _limit(kept: Journal, plan: Plan, target: Target, proc: Path) -> Journal:
    """Where processes are moved, the journal knows before from where."""
    if plan.hold.home is not None:
        plan.group.path.mkdir(exist_ok=True)
    plan.group.write(plan.limits)
    if plan.hold.home is None or target.pid is None:
        return kept
    while True:  # until none was started meanwhile
        outside = set(tree_of(target.pid, proc)) - set(plan.group.processes)
        homes = {pid: home for pid in sorted(outside) if (home := _home_of(pid, plan, proc)) is not None}
        if not homes:
            return kept
        kept = _knows(kept, plan, homes)
        for pid in homes:
            plan.group.take(pid)


def _home_of(pid: int, plan: Plan, proc: Path) -> str | None:
    """Where a process lives; None where it has ended."""
    try:
        return str(group_of(pid, plan.group.controller, proc).path) if started_at(pid, proc) is not None else None
    except (FileNotFoundError, ProcessLookupError):
        return None


def _knows(kept: Journal, plan: Plan, homes: dict[int, str]) -> Journal:
    named = {str(pid): home for pid, home in homes.items()}
    holds = [replace(h, homes=h.homes | named) if h.path == plan.hold.path and h.home else h for h in kept.holds]
    kept = replace(kept, holds=tuple(holds))
    kept.write()
    return kept


def _taken_back(target: Target, plans: Sequence[Plan]) -> str:
    """After a failure, to what was before: an earlier deflation stays. Returns what to say about it."""
    try:
        now = journal.read(target.name)
        if target.before is None and now is not None:
            journal.undo(now)
        elif target.before is not None and now is not None:
            _restore(target.before, now, plans)
    except (OSError, StallwiseError):
        return "Not everything could be taken back: --undo tries again."
    return "Nothing was changed."


def _restore(before: Journal, now: Journal, plans: Sequence[Plan]) -> None:
    for hold in now.holds[len(before.holds) :]:
        journal.release(hold)
    for plan in plans:
        if not plan.new:
            plan.group.write(plan.was)
    for pid in set(now.asked_pids) - set(before.asked_pids):
        door.withdraw(Path(now.asked or ""), pid)
    _ask(before)
    # Who was moved meanwhile is known from now on, too.
    replace(before, holds=now.holds[: len(before.holds)], keeper=now.keeper, asked=now.asked).write()


def _sentence(error: OSError, name: str, now: str) -> StallwiseError:
    if isinstance(error, PermissionError):
        return InputError(f"No right to write {error.filename}. Run this as root. {now}")
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return GoneError(f"{name} or its control group has vanished meanwhile ({error.filename}). {now}")
    if error.errno is not None and "quota" in str(error.filename):
        return InputError(f"The kernel refuses this quota for {name}: a group around it has a smaller one. {now}")
    return InputError(f"{name} could not be deflated: {error}. {now}")


def _with_keeper(kept: Journal) -> Journal:
    """Started before anything changes; one that waits already goes on."""
    if kept.keeper is not None and started_at(kept.keeper) is not None:
        return kept
    command = [sys.executable, "-m", "stallwise.deflate.keeper", kept.target]
    # It lives in another folder, from which relative paths lead nowhere.
    paths = [str(Path(stallwise.__file__).absolute().parents[1]), os.environ.get("PYTHONPATH", "")]
    known = {
        **os.environ,
        journal.FOLDER: str(journal.state_folder()),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    begun = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", env=known, check=False
    )
    if not begun.stdout.strip().isdigit():
        why = begun.stderr.strip().splitlines()[-1:] or [f"code {begun.returncode}"]
        raise InputError(f"The keeper that would undo it in the end does not start ({why[0]}). Nothing was changed.")
    return replace(kept, keeper=int(begun.stdout))
