"""Recording from inside the training code, in a plain `python train.py`.

    for batch in stallwise.batches(my_loader):    # loops that no hook can see (DALI, FFCV, own loaders)
        stallwise.step()
        ...

`batches` and `step` do nothing when nobody profiles, and load neither torch nor the recorder.

    with stallwise.profiling("runs/a"):
        train()

`profiling`, and the callbacks of `frameworks/`, observe only. With `full=True` all phases are run; then the training
ends early, because its counters went on through steps that were undone, and what it saves meanwhile goes to the run's
scratch folder. Rank 0 joins the run, in a process of its own, once all ranks have written their part.
"""

import atexit
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stallwise.errors import RunError

if TYPE_CHECKING:
    from stallwise.record.ablate._scratch import ScratchFolder
    from stallwise.record.rank.environment import RankPlace, RecordSettings
    from stallwise.record.rank.recorder import Recorder

Item = TypeVar("Item")

_OTHER_RANKS_S = 20.0
_AGREE_S = 60.0
_JOIN_S = 600.0

_recorder: "Recorder | None" = None
_session_numbers = itertools.count()


def use_recorder(recorder: "Recorder | None") -> None:
    """From now on `step` and `batches` go to `recorder`, or to nobody."""
    global _recorder
    _recorder = recorder


def step() -> None:
    """Mark the beginning of a training step; from the first call on, only these calls count as steps.

    Does nothing when nobody profiles. Needed only where steps cannot be found from optimizers.

    Examples:
        >>> import stallwise
        >>> stallwise.step()
    """
    if _recorder is not None:
        _recorder.step_marked()


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """Measure the batches of an iterable that is no `DataLoader` (DALI, FFCV, own loaders) when somebody profiles.

    Args:
        iterable: What the training loop iterates over.

    Returns:
        An iterator over the same batches.

    Examples:
        >>> import stallwise
        >>> [batch for batch in stallwise.batches([1, 2, 3])]
        [1, 2, 3]
    """
    return iter(iterable) if _recorder is None else _recorder.loaders.wrap(iterable)


class ProfilingSession:
    """A profile of what happens between `begin` and `end`, or inside a `with` block.

    With `quiet`, the recorder stops recording where it would otherwise end the `with` block.
    """

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
        self._requested_folder = folder
        self._options: dict[str, Any] = {"light": not full, "max_s": max_time_s, "max_steps": max_steps}
        self._options["allow_writes"] = allow_writes
        self._quiet = quiet
        self._recorder: Recorder | None = None
        self._scratch: ScratchFolder | None = None
        self._tracker_variables: dict[str, str | None] = {}
        self.folder: Path | None = None

    @property
    def done(self) -> bool:
        """Whether everything has been measured (only with `full`)."""
        return self._recorder is not None and self._recorder.done

    def begin(self) -> None:
        """Start to record. Does nothing where somebody records already: `stallwise profile`, another session."""
        from stallwise.record.rank.environment import WORKERS_NAME, RecordSettings, open_writer
        from stallwise.record.rank.recorder import AtEnd, Recorder
        from stallwise.run.join import rank_folder

        if _recorder is not None:
            return
        place = _place_in_group()
        self.folder = _begin_run(self._requested_folder, place)
        settings = RecordSettings(folder=str(self.folder), **self._options)
        workers = str(rank_folder(self.folder, place.rank) / WORKERS_NAME)
        at_end: AtEnd = "detach" if self._quiet else "raise once"
        recorder = self._recorder = Recorder(settings, open_writer(self.folder, place), workers, at_end=at_end)
        recorder.watch()
        use_recorder(recorder)
        self._watch_writes(settings, self.folder)
        atexit.register(self.end, "the process ended before the training did", 1)

    def end(self, reason: str | None = None, exit_code: int = 0) -> None:
        """Write what is left and, on rank 0, join the run. With a `reason`, the training ended before its time."""
        recorder, self._recorder = self._recorder, None
        if recorder is None or self.folder is None:
            return
        atexit.unregister(self.end)
        use_recorder(None)
        self._release_writes()
        if not recorder.done and reason is None:
            recorder.script_ended()
        recorder.detach()
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
        from stallwise.record.rank.recorder import ProfileDone

        ours = isinstance(error, ProfileDone) and self.done
        if kind is None or ours:
            self.end()
        else:
            self.end(f"the script raised {kind.__name__}", 1)
        return ours

    def _watch_writes(self, settings: "RecordSettings", folder: Path) -> None:
        import torch

        from stallwise.record.ablate._guards import guard_writes
        from stallwise.record.ablate._scratch import ScratchFolder, time_writes
        from stallwise.record.ablate._trackers import TRACKERS, silence_trackers
        from stallwise.run.manifest import MANIFEST_NAME

        self._save = torch.save
        if settings.light or settings.allow_writes:
            time_writes(self._saved)
            return
        self._tracker_variables = {name: os.environ.get(name) for name in TRACKERS}
        began_s = (folder / MANIFEST_NAME).stat().st_mtime
        self._scratch = ScratchFolder(folder / "scratch", began_s=began_s, run=folder)
        guard_writes(self._scratch, self._saved)
        silence_trackers(self._scratch.folder)

    def _release_writes(self) -> None:
        if self._scratch is None:
            import torch

            from stallwise.record.ablate._scratch import replace_everywhere

            replace_everywhere(torch.save, self._save)
            return
        self._scratch.release()
        for name, value in self._tracker_variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _saved(self, kind: str, start_s: float, duration_s: float, detail: str | None = None) -> None:
        if self._recorder is not None:
            self._recorder.exclude_step(kind, start_s, duration_s, detail)


def profiling(
    folder: str | os.PathLike[str] | None = None,
    *,
    full: bool = False,
    max_time_s: float = 120.0,
    max_steps: int | None = None,
    allow_writes: bool = False,
) -> ProfilingSession:
    """Record the training loop inside a `with` block; all ranks enter it.

    Args:
        folder: Folder of the run; a name that is taken gets a number. Default: `stallwise-runs/SCRIPT-TIME`.
        full: Measure everything that `stallwise profile` does, and leave the block as soon as that is done. By default
            the block observes only.
        max_time_s: With `full`: seconds to measure at most.
        max_steps: With `full`: steps to measure at most.
        allow_writes: With `full`: what the script saves meanwhile goes where it says, not to the run's scratch folder.

    Returns:
        A context manager; `folder` is where the run is, `done` whether everything has been measured.

    Examples:
        >>> import stallwise
        >>> session = stallwise.profiling("runs/a", full=True, max_time_s=60)
        >>> session.done
        False
    """
    return ProfilingSession(folder, full=full, max_time_s=max_time_s, max_steps=max_steps, allow_writes=allow_writes)


def _place_in_group() -> "RankPlace":
    """Rank and size from the process group where there is one: inside training code it usually exists already."""
    from torch import distributed as dist

    from stallwise.record.rank.environment import RankPlace, rank_place

    place = rank_place()
    if not (dist.is_available() and dist.is_initialized()):
        return place
    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = place.local_size or size
    return RankPlace(
        rank=rank, size=size, local_rank=rank % local_size, local_size=place.local_size, node=rank // local_size
    )


def _begin_run(requested: str | os.PathLike[str] | None, place: "RankPlace") -> Path:
    """Rank 0 creates the run and tells the others where. A name that is taken gets a number: training goes on."""
    from stallwise.record.rank.environment import begin_own_record, job_name
    from stallwise.run.manifest import MANIFEST_NAME

    name = job_name() or time.strftime("%Y%m%d-%H%M%S")
    key = f"stallwise/inside/{next(_session_numbers)}"
    script = sys.argv[0] or "python"
    if place.rank != 0:
        return Path(_await_key(key))
    first = Path(requested or f"stallwise-runs/{Path(script).stem}-{name}").absolute()
    folder = next(path for path in _numbered(first) if not (path / MANIFEST_NAME).exists())
    begin_own_record(folder, place, name, script, sys.argv[1:])
    if place.size > 1:
        _store().set(key, str(folder))
    return folder


def _numbered(first: Path) -> Iterator[Path]:
    yield first
    yield from (first.with_name(f"{first.name}-{n}") for n in itertools.count(2))


def _await_key(key: str) -> str:
    try:
        _store().wait([key], timedelta(seconds=_AGREE_S))
    except RuntimeError:
        raise RunError(
            f"Rank 0 began no profile within {_AGREE_S:.0f} s. Every rank must enter stallwise.profiling or have the "
            "callback, or none."
        ) from None
    return str(_store().get(key), "utf-8")


def _store() -> Any:
    from torch import distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise RunError("Ranks find each other through the process group: set it up before the profile begins.")
    return dist.distributed_c10d._get_default_store()


def _join(folder: Path) -> None:
    """Join the run in another process, when the other ranks have written theirs."""
    deadline_s = time.monotonic() + _OTHER_RANKS_S
    while not _all_ended(folder) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    command = [sys.executable, "-m", "stallwise.record.join", str(folder)]
    try:
        joined = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_JOIN_S)
        message = (
            joined.stderr if joined.returncode else f"the run is in {folder}; see it with: stallwise report {folder}"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"the run in {folder} could not be joined ({type(error).__name__}); try: stallwise run join {folder}"
    sys.stderr.write(f"stallwise: {message.strip().removeprefix('stallwise: ')}\n")


def _all_ended(folder: Path) -> bool:
    from stallwise.run.join import find_parts
    from stallwise.run.manifest import read_manifest

    ended = [part for part in find_parts([folder]) if part.report().record.exit_code is not None]
    return len(ended) >= read_manifest(folder).world.world_size
