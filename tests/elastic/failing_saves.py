"""Make a save fail at each of its calls in turn, and look at what is left; one line of JSON per fault and call.

A process of its own: it forks children that kill themselves in the middle of a save.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stallwise.elastic import _exchange as exchange
from stallwise.elastic._checkpoints import CheckpointSaver, own_entry
from stallwise.elastic._manifest import check_checkpoint, checkpoint_step
from stallwise.elastic._ownership import RoundIdentity
from stallwise.elastic._storage import FolderStore
from tests.elastic.faults import Fault, failing_call

FACTS: dict[str, Any] = {"epoch": 0, "samples": 0, "ready_order": []}


def main(root: Path, every: int) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    exchange.gather = lambda value, _: [value]  # its threads do not survive a fork
    for keep in (1, 2):
        for fault in Fault:
            calls = _try(root / "run", Fault.SHORT_WRITE, 0, keep)  # none fails
            for number in range(1, calls + 1, every):
                _try(root / "run", fault, number, keep)


def _try(folder: Path, fault: Fault, number: int, keep: int) -> int:
    """Save steps 10 and 20, damage the latter, then save step 30 with the fault; returns how many calls it made."""
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
    error: str | None = "killed"
    if fault is Fault.KILL:
        child = os.fork()
        if child == 0:
            with failing_call(number, fault):
                _save(saver, 30)
            os._exit(0)
        calls = 0
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            error = None  # short of a call that is made only now and then
    else:
        with failing_call(number, fault) as files:
            result = _save(saver, 30)
        calls, error = files.calls, result.error
    again = FolderStore(folder)
    again.claim(RoundIdentity("job", "coordinator", 40))
    again.tidy()
    steps = [checkpoint_step(name) for name in again.names()]
    for name in again.names():
        check_checkpoint(folder / name)
    drafts = [path.name for path in folder.iterdir() if path.name.startswith((".partial", ".replaced"))]
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
        "after": [checkpoint_step(name) for name in after._store.names()],
    }
    print(json.dumps(line), flush=True)
    return calls


def _saver(folder: Path, round_number: int, keep: int) -> CheckpointSaver:
    store = FolderStore(folder)
    saver = CheckpointSaver(store, None, keep)
    saver.fence = store.claim(RoundIdentity("job", "coordinator", round_number))
    return saver


def _save(saver: CheckpointSaver, step: int) -> Any:
    saver._run(step, {"model.weight": torch.full((1000,), float(step)), own_entry(0): b"x"}, FACTS)
    return saver.take_result()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
