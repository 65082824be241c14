"""Recording from inside the training code, in a plain `python train.py`: what callbacks and `profiling` are made of.

By default only watches. With `full=True` all phases are run; then the training ends early, because its counters went on
through steps that were undone, and what it saves meanwhile goes to the run's scratch folder. The run is joined on
rank 0, in a process of its own (see `run/parts.py` for why), once all ranks have written their part.
"""

import atexit
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import distributed as dist
from torch.optim import Optimizer

from stallwise.errors import RunError
from stallwise.record import marks
from stallwise.record.loader import Source
from stallwise.record.place import Place, job_name, place
from stallwise.record.rank import begin_own_record, open_writer
from stallwise.record.recorder import ProfileDone, Recorder
from stallwise.record.scratch import Scratch
from stallwise.record.settings import WORKERS_NAME, Settings
from stallwise.record.writes import TRACKERS, guard_writes, time_writes
from stallwise.run.manifest import MANIFEST_NAME
from stallwise.run.parts import find_parts, rank_folder

_OTHERS_S = 20.0
_AGREE_S = 60.0
_JOIN_S = 600.0

Result = TypeVar("Result")

_begun = itertools.count()


class InsideRecorder(Recorder):
    """A recorder that can be sent away again. With `quiet`, it falls silent where it would end the script."""

    quiet = False
    done = False

    def wants(self, source: Source) -> Any | None:
        """A fetch begins."""
        return self._or_silence(lambda: super(InsideRecorder, self).wants(source))

    def step_marked(self) -> None:
        """A step begins."""
        self._or_silence(super().step_marked)

    def _optimizer_stepped(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._or_silence(lambda: super(InsideRecorder, self)._optimizer_stepped(optimizer, _args, _kwargs))

    def _or_silence(self, heard: Callable[[], Result]) -> Result | None:
        try:
            return heard()
        except ProfileDone:
            self.done = True
            self._here = False
            if self.quiet:
                return None
            raise

    def leave(self) -> None:
        """Put everything back as a step would find it without us, and listen no longer."""
        if not self.settings.light and not self.done:
            self._leave()
        self._here = False
        self.loaders.release()


class Session:
    """A profile of what happens between `begin` and `end`, or inside a `with` block."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        full: bool = False,
        max_time_s: float = 120.0,
        max_steps: int | None = None,
        allow_writes: bool = False,
        quiet: bool = False,
    ) -> None:
        self._wanted = folder
        self._options: dict[str, Any] = {"light": not full, "max_s": max_time_s, "max_steps": max_steps}
        self._options["allow_writes"] = allow_writes
        self._quiet = quiet
        self._recorder: InsideRecorder | None = None
        self._scratch: Scratch | None = None
        self._before: dict[str, str | None] = {}
        self.folder: Path | None = None

    @property
    def done(self) -> bool:
        """Whether everything has been measured (only with `full`)."""
        return self._recorder is not None and self._recorder.done

    def begin(self) -> None:
        """Start to record. Does nothing where somebody records already: `stallwise profile`, another session."""
        if marks.is_recorded():
            return
        here = _place()
        self.folder = _begin_run(self._wanted, here)
        mine = rank_folder(self.folder, here.rank)
        settings = Settings(folder=str(self.folder), **self._options)
        recorder = self._recorder = InsideRecorder(settings, open_writer(self.folder, here), str(mine / WORKERS_NAME))
        recorder.quiet = self._quiet
        recorder.watch()
        marks.listen(recorder)
        self._watch_writes(settings, self.folder)
        atexit.register(self.end, "the process ended before the training did", 1)

    def end(self, reason: str | None = None, exit_code: int = 0) -> None:
        """Write what is left and, on rank 0, join the run. With a `reason`, the training ended before its time."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or self.folder is None:
            return
        atexit.unregister(self.end)
        marks.listen(None)
        self._leave_writes()
        if not recorder.done and reason is None:
            recorder.script_ended()
        recorder.leave()
        recorder.close(exit_code=exit_code, reason=reason)
        if recorder.writer.rank == 0:
            _join(self.folder)
            if recorder.done:
                sys.stderr.write("stallwise: the training was ended early; from here on files go where you say\n")

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        ours = isinstance(error, ProfileDone) and self.done
        if kind is None or ours:
            self.end()
        else:
            self.end(f"the script raised {kind.__name__}", 1)
        return ours

    def _watch_writes(self, settings: Settings, folder: Path) -> None:
        self._save = torch.save
        if settings.light or settings.allow_writes:
            time_writes(self._saved)
            return
        self._before = {name: os.environ.get(name) for name in TRACKERS}
        began_s = (folder / MANIFEST_NAME).stat().st_mtime
        self._scratch = Scratch(folder / "scratch", began_s=began_s, run=folder)
        guard_writes(self._scratch, self._saved)

    def _leave_writes(self) -> None:
        if self._scratch is None:
            torch.save = self._save
            return
        self._scratch.rest()
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _saved(self, kind: str, start_s: float, duration_s: float, detail: str | None = None) -> None:
        if self._recorder is not None:
            self._recorder.spoil(kind, start_s, duration_s, detail)


def profiling(
    folder: str | os.PathLike[str] | None = None,
    *,
    full: bool = False,
    max_time_s: float = 120.0,
    max_steps: int | None = None,
    allow_writes: bool = False,
) -> Session:
    """Record the training loop inside a `with` block; all ranks enter it.

    Only watches, unless `full`: then the block is left as soon as everything has been measured, after `max_time_s` or
    `max_steps` at the latest, and what it saves goes to the run's scratch folder unless `allow_writes`.
    """
    return Session(folder, full=full, max_time_s=max_time_s, max_steps=max_steps, allow_writes=allow_writes)


def _place() -> Place:
    """Rank and size from the process group where there is one: in code it usually stands already."""
    told = place()
    if not (dist.is_available() and dist.is_initialized()):
        return told
    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = told.local_size or size
    return Place(
        rank=rank, size=size, local_rank=rank % local_size, local_size=told.local_size, node=rank // local_size
    )


def _begin_run(wanted: str | os.PathLike[str] | None, here: Place) -> Path:
    """Rank 0 creates the run and tells the others where. A name that is taken gets a number: training goes on."""
    name = job_name() or time.strftime("%Y%m%d-%H%M%S")
    number = next(_begun)
    script = sys.argv[0] or "python"
    if here.rank == 0:
        first = Path(wanted or f"stallwise-runs/{Path(script).stem}-{name}").absolute()
        folder = next(path for path in _numbered(first) if not (path / MANIFEST_NAME).exists())
        begin_own_record(folder, here, name, script, sys.argv[1:])
        _tell(number, str(folder), here)
        return folder
    return Path(_hear(number))


def _numbered(first: Path) -> Iterator[Path]:
    yield first
    yield from (first.with_name(f"{first.name}-{n}") for n in itertools.count(2))


def _tell(number: int, text: str, here: Place) -> None:
    if here.size > 1:
        _store().set(f"stallwise/inside/{number}", text)


def _hear(number: int) -> str:
    key = f"stallwise/inside/{number}"
    try:
        _store().wait([key], timedelta(seconds=_AGREE_S))
    except RuntimeError:
        raise RunError(
            f"Rank 0 began no profile within {_AGREE_S:.0f} s. Every rank must enter stallwise.profiling or have the "
            "callback, or none."
        ) from None
    return str(_store().get(key), "utf-8")


def _store() -> Any:
    if not (dist.is_available() and dist.is_initialized()):
        raise RunError("Ranks find each other through the process group: set it up before the profile begins.")
    return dist.distributed_c10d._get_default_store()


def _join(folder: Path) -> None:
    """Put the run together, in another process, when the other ranks have written theirs."""
    deadline_s = time.monotonic() + _OTHERS_S
    while not _all_ended(folder) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    command = [sys.executable, "-m", "stallwise", "run", "join", str(folder)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_JOIN_S)
        said = f"the run is in {folder}; see it with: stallwise report {folder}" if not done.returncode else done.stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"the run in {folder} could not be joined ({type(error).__name__}); try: stallwise run join {folder}"
    sys.stderr.write(f"stallwise: {said.strip().removeprefix('stallwise: ')}\n")


def _all_ended(folder: Path) -> bool:
    from stallwise.run.manifest import read_manifest

    ended = [part for part in find_parts([folder]) if part.report().record.exit_code is not None]
    return len(ended) >= read_manifest(folder).world.world_size
