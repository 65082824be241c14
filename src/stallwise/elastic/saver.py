"""Writing a checkpoint beside training: torch.distributed.checkpoint in a thread, on a process group of its own.

The training thread only copies (`Stage`). The thread writes this rank's files, syncs them, sums them up; when all ranks
have, rank 0 writes the manifest and makes the checkpoint visible. A failure anywhere (disk full, a rank gone) leaves
what was there before, is told to all ranks, and training goes on.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from stallwise.elastic import manifest
from stallwise.elastic.manifest import FileFact, Manifest
from stallwise.elastic.place import Place
from stallwise.elastic.state import State

_METADATA = ".metadata"


@dataclass(frozen=True, slots=True)
class Saved:
    """How a save ended: visible at `step`, or why not."""

    step: int
    write_s: float
    bytes: int
    error: str | None = None


class Saver:
    """At most one checkpoint under way."""

    def __init__(self, place: Place, group: dist.ProcessGroup | None, keep: int, tag: str) -> None:
        self._place, self._group, self._keep, self._tag = place, group, keep, tag
        self._rank = dist.get_rank()
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread: threading.Thread | None = None
        self._result: Saved | None = None
        self._tries = 0

    @property
    def busy(self) -> bool:
        """Whether one is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, step: int, mine: State, facts: dict[str, Any]) -> None:
        """Write this rank's part, beside whatever else happens. All ranks, for the same step."""
        self.wait()
        self._tries += 1
        self._thread = threading.Thread(target=self._run, args=(step, mine, facts), name="stallwise-save", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until the one under way has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def ended(self) -> Saved | None:
        """The result of the last save, once; None while it is under way or was already asked for."""
        if self.busy:
            return None
        result, self._result, self._thread = self._result, None, None
        return result

    def _run(self, step: int, mine: State, facts: dict[str, Any]) -> None:
        begin_s = time.monotonic()
        draft = self._place.draft(f"{manifest.step_name(step)}@{self._tag}.{self._tries}")
        try:
            size, error = self._written(draft, step, mine, facts), None
            self._place.drop(draft)  # what a bucket was filled from; a folder's has been renamed
        except (Exception, CheckpointException) as failure:  # a disk, a network, a peer; training must go on
            size, error = 0, _said(failure)
            self._place.drop(draft)
            if self._rank == 0 and "No space left" in error and self._keep > 1:
                self._place.make_room()  # for the next try
        self._result = Saved(step, time.monotonic() - begin_s, size, error)

    def _written(self, draft: Path, step: int, mine: State, facts: dict[str, Any]) -> int:
        writer = FileSystemWriter(draft, single_file_per_rank=True, sync_files=True)
        with _beside_training(self._gpu):
            dcp_save(mine, storage_writer=writer, process_group=self._group)
        own, refused = None, None
        try:
            own = self._delivered(draft)
        except OSError as error:
            refused = _said(error)
        all_own: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(all_own, (own, refused), group=self._group)
        for rank, (_, why) in enumerate(all_own):
            if why is not None:
                raise OSError(f"rank {rank}: {why}")
        parts = [part for part, _ in all_own]
        files = {name: FileFact(bytes=size, checksum=sum_) for part in parts for name, (size, sum_) in part.items()}
        self._together(lambda: self._commit(draft, step, files, facts))
        return sum(fact.bytes for fact in files.values())

    def _delivered(self, draft: Path) -> dict[str, tuple[int, str]]:
        """This rank's files: summed up and brought to their place."""
        kind = manifest.algorithm()
        names = [name for name in os.listdir(draft) if name.startswith(f"__{self._rank}_")]  # noqa: PTH208
        names += [_METADATA] if self._rank == 0 else []
        facts = {name: manifest.fact_of(draft / name, kind) for name in names}
        self._place.deliver(draft, names)
        return {name: (fact.bytes, fact.checksum) for name, fact in facts.items()}

    def _commit(self, draft: Path, step: int, files: dict[str, FileFact], facts: dict[str, Any]) -> None:
        written = Manifest(
            format=manifest.FORMAT,
            step=step,
            saved_at=time.time(),
            world=dist.get_world_size(),
            algorithm=manifest.algorithm(),
            files=files,
            facts=facts,
        )
        self._place.commit(draft, written)
        self._place.prune(self._keep)

    def _together(self, act: Callable[[], None]) -> None:
        """Rank 0 acts; all learn whether it went well."""
        said: list[str | None] = [None]
        if self._rank == 0:
            try:
                act()
            except OSError as error:
                said = [_said(error)]
        dist.broadcast_object_list(said, src=0, group=self._group)
        if said[0] is not None:
            raise OSError(f"rank 0: {said[0]}")


def _beside_training(gpu: int | None) -> AbstractContextManager[Any]:
    """A stream of this thread's own: DCP waits for the current one, on which training has steps queued. (A new thread's
    current GPU is the first, whatever the rank's is.)"""
    if gpu is None:
        return nullcontext()
    own: Any = torch.cuda.Stream(gpu)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(own)


def _said(error: BaseException) -> str:
    """The first telling line of an error, or of the first of several ranks' errors."""
    failures = getattr(error, "failures", None)  # DCP's CheckpointException
    if isinstance(failures, dict) and failures:
        rank, (inner, _) = next(iter(failures.items()))
        return f"rank {rank}: {_said(inner)}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
