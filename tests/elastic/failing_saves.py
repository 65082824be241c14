"""Make a save fail at each of its calls in turn, and look at what is left; one line of JSON per fault and call.

A process of its own: it forks children that kill or stop themselves in the middle of a save.

    python -m tests.elastic.failing_saves FOLDER EVERY          every fault but STOP, at each EVERYth call
    python -m tests.elastic.failing_saves FOLDER EVERY stop     STOP, and a later round saves meanwhile
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stallwise.elastic import _exchange as exchange
from stallwise.elastic import _storage as storage
from stallwise.elastic._checkpoints import CheckpointSaver, own_entry
from stallwise.elastic._manifest import check_checkpoint, checkpoint_step
from stallwise.elastic._ownership import RoundIdentity
from stallwise.elastic._storage import FolderStore
from stallwise.record.processes import die_with_parent
from tests.elastic.faults import Fault, failing_call

FACTS: dict[str, Any] = {"epoch": 0, "samples": 0, "ready_order": []}


def main(root: Path, every: int, *, stop: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    exchange.gather = lambda value, _: [value]  # its threads do not survive a fork
    storage._LOCK_PATIENCE_S = 0.1
    for keep in (1,) if stop else (1, 2):
        saver = _prepare(root / "run", keep)
        with failing_call(0, Fault.STOP) as files:
            _save(saver, 30)
        for number in range(1, files.calls + 1, every):
            if stop:
                for locks in (True, False):
                    _stop(root / "run", number, keep, locks=locks)
                continue
            for fault in set(Fault) - {Fault.STOP}:
                _try(root / "run", fault, number, keep)


def _prepare(folder: Path, keep: int) -> CheckpointSaver:
    """Save steps 10 and 20 and damage the latter; returns what saves the next."""
    shutil.rmtree(folder, ignore_errors=True)
    for step in (10, 20):
        saver = _saver(folder, step, keep=2)
        _save(saver, step)
    store: Any = saver._store
    (folder / store.names()[0] / "rank-00000.safetensors").write_bytes(b"damaged")
    saver = _saver(folder, 30, keep)
    store = saver._store
    store.set_aside(store.names()[0])
    store.mark_whole(store.names()[-1])
    return saver


def _stop(folder: Path, number: int, keep: int, *, locks: bool) -> None:
    """Stop at a call of saving step 30; meanwhile a later round saves step 50, then the earlier one goes on.

    Where the earlier one holds the lock, which the later one cannot wait for, it goes on at once. Without `locks` the
    folder is on a file system that has none.
    """
    plain_lock = storage._lock
    if not locks:
        storage._lock = lambda handle, shown: None
    saver = _prepare(folder, keep)
    child = os.fork()
    if child == 0:
        die_with_parent()
        with failing_call(number, Fault.STOP):
            result = _save(saver, 30)
        os._exit(0 if result.error is None else 1)
    stopped = os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1])
    held = False
    try:
        later = _saver(folder, 40, keep)
    except OSError:
        held, stopped, status = True, False, _resume(child)
        later = _saver(folder, 40, keep)
    store: Any = later._store
    store.tidy()
    visible = _steps(store)
    for name in store.names():
        check_checkpoint(folder / name)
        store.mark_whole(name)
    error = _save(later, 50).error
    before = _steps(store)
    if stopped:
        status = _resume(child)
    line = {
        "call": number,
        "locks": locks,
        "held": held,
        "visible": visible,
        "saved": os.waitstatus_to_exitcode(status) == 0,
        "later": error,
        "before": before,
        "after": _steps(store),
        "drafts": _drafts(folder),
    }
    print(json.dumps(line), flush=True)
    storage._lock = plain_lock


def _resume(child: int) -> int:
    os.kill(child, signal.SIGCONT)
    return os.waitpid(child, 0)[1]


def _steps(store: FolderStore) -> list[int | None]:
    return [checkpoint_step(name) for name in store.names()]


def _drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith((".partial", ".replaced"))]


def _try(folder: Path, fault: Fault, number: int, keep: int) -> None:
    """Save steps 10 and 20, damage the latter, then save step 30 with the fault."""
    saver = _prepare(folder, keep)
    error: str | None = "killed"
    if fault is Fault.KILL:
        child = os.fork()
        if child == 0:
            with failing_call(number, fault):
                _save(saver, 30)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            error = None  # short of a call that is made only now and then
    else:
        with failing_call(number, fault):
            error = _save(saver, 30).error
    again = FolderStore(folder)
    again.claim(RoundIdentity("job", "coordinator", 40))
    again.tidy()
    steps = _steps(again)
    for name in again.names():
        check_checkpoint(folder / name)
    drafts = _drafts(folder)
    after = _saver(folder, 50, keep)
    for name in after._store.names():
        after._store.mark_whole(name)
    later = _save(after, 50)
    line = {
        "fault": fault.name,
        "call": number,
        "keep": keep,
        "error": error,
        "steps": steps,
        "drafts": drafts,
        "later": later.error,
        "after": _steps(after._store),
    }
    print(json.dumps(line), flush=True)


def _saver(folder: Path, round_number: int, keep: int) -> CheckpointSaver:
    store = FolderStore(folder)
    saver = CheckpointSaver(store, None, keep)
    saver.fence = store.claim(RoundIdentity("job", "coordinator", round_number))
    return saver


def _save(saver: CheckpointSaver, step: int) -> Any:
    saver._run(step, {"model.weight": torch.full((1000,), float(step)), own_entry(0): b"x"}, FACTS)
    return saver.take_result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), stop=sys.argv[3:] == ["stop"])
