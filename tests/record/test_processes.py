"""Processes of a job: what a forked one leaves alone."""

import gc
import os
from pathlib import Path

from stallwise.record.processes import keep_garbage_in_the_parent


class _Event:
    """Says in which process it was destroyed, from a cycle that only the garbage collector breaks."""

    def __init__(self, log: Path) -> None:
        self.log, self.itself = log, self

    def __del__(self) -> None:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()}\n")


def test_garbage_of_a_rank_is_not_collected_in_its_workers(tmp_path: Path) -> None:
    keep_garbage_in_the_parent()
    gc.collect()
    assert gc.isenabled()
    log = tmp_path / "destroyed"
    _Event(log)
    child = os.fork()
    if child == 0:
        gc.collect()
        own = _Event(tmp_path / "own")
        del own
        gc.collect()
        os._exit(0 if gc.isenabled() and (tmp_path / "own").exists() else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child's own garbage is collected"
    assert gc.isenabled()
    gc.collect()
    assert log.read_text() == f"{os.getpid()}\n", "the rank destroyed it, nobody else"


def test_a_collector_that_is_off_stays_off() -> None:
    keep_garbage_in_the_parent()
    gc.disable()
    try:
        child = os.fork()
        if child == 0:
            os._exit(int(gc.isenabled()))
        assert os.waitpid(child, 0)[1] == 0
        assert not gc.isenabled()
    finally:
        gc.enable()
