"""One rank of a profiled job: set up the recorder, run the script, record how it ended."""

import atexit
import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from stallwise.errors import StallwiseError
from stallwise.record.api import use_recorder
from stallwise.record.processes import die_with_parent
from stallwise.record.rank.environment import (
    WORKERS_NAME,
    RankPlace,
    RecordSettings,
    begin_own_record,
    job_name,
    open_writer,
    rank_place,
)
from stallwise.record.rank.script import run_module, run_script

if TYPE_CHECKING:
    from stallwise.record.rank._watchdog import Watchdog
    from stallwise.record.rank.recorder import Recorder

INTERRUPTED = 130
"""The exit code in the record of a rank that was interrupted."""

# A script stopped in mid-loop may have left threads that never end.
_EXIT_AFTER_S = 10.0

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_OUR_FILES = (_PACKAGE + os.sep,)
# They call what the script meant to call; what fails there is the script's.
_FORWARDERS = tuple(
    os.path.join(_PACKAGE, name)
    for name in ("rank/main.py", "rank/script.py", *(f"ablate/_{name}.py" for name in ("scratch", "guards", "layers")))
)


def main(arguments: Sequence[str]) -> int:
    """Run `train.py …` or `-m module …`; the exit code is the script's own, 0 when the profile ended it."""
    if not arguments or (arguments[0] == "-m" and len(arguments) == 1):
        sys.stderr.write("usage: python -m stallwise.record train.py [args...]\n")
        return 2
    try:
        settings = RecordSettings.from_environment()
        launched = settings is not None
        if launched:
            # Only below our own launcher: another one may start ranks from a thread that ends.
            die_with_parent()
        interrupts = _Interrupts()
        recorder, watchdog = _start(settings or _own_settings(arguments), launched=launched)
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    ending = _run(recorder, arguments, interrupts)
    _close(recorder, watchdog, ending)
    if launched:
        from stallwise.record.launch import wait_for_ranks

        # Ranks that a framework started from this one die with it, and may not have written their reports yet.
        wait_for_ranks(Path(recorder.settings.folder))
    if not launched and recorder.writer.rank == 0:
        folder = recorder.settings.folder
        sys.stderr.write(f"stallwise: the ranks wrote to {folder}; join them with: stallwise run join {folder}\n")
    # To torchrun an interrupted rank has ended well: it would print a page about each otherwise.
    code = 0 if launched and interrupts.came else ending.code
    if ending.by_us:
        _exit_now(code)
    return code


def _start(settings: RecordSettings, *, launched: bool) -> "tuple[Recorder, Watchdog]":
    from stallwise.record.ablate._guards import guard_writes
    from stallwise.record.ablate._layers import rename_between_layers
    from stallwise.record.ablate._scratch import ScratchFolder, time_writes
    from stallwise.record.ablate._trackers import silence_trackers
    from stallwise.record.frameworks._spawned import RecordedRanks
    from stallwise.record.rank._watchdog import Watchdog
    from stallwise.record.rank.recorder import Recorder
    from stallwise.run.join import rank_folder
    from stallwise.run.manifest import MANIFEST_NAME

    # Absolute: the script may change its working directory.
    folder = Path(settings.folder).absolute()
    place = rank_place()
    own_folder = rank_folder(folder, place.rank)
    recorder = Recorder(settings, open_writer(folder, place), str(own_folder / WORKERS_NAME))
    recorder.watch()
    if not settings.light:
        RecordedRanks(folder, place.size).watch(starts_some=launched and place.size == 1)
    watchdog = Watchdog(recorder, own_folder)
    if (settings.light and not settings.trial) or settings.allow_writes:
        time_writes(recorder.exclude_step)
    elif settings.overlaid:
        time_writes(recorder.exclude_step)
        rename_between_layers()
    else:
        began_s = (folder / MANIFEST_NAME).stat().st_mtime  # the same for all ranks
        guard_writes(ScratchFolder(folder / "scratch", began_s=began_s, run=folder), recorder.exclude_step)
    if not settings.allow_writes and (not settings.light or settings.trial):
        silence_trackers(folder / "scratch")
    # Registered before the script's own handlers, so it runs after them: they may still communicate.
    atexit.register(_end_process_group)
    use_recorder(recorder)
    return recorder, watchdog


class _Interrupts:
    """Handles Ctrl-C: raises KeyboardInterrupt while the script runs; once it is over, only notes the signal."""

    def __init__(self) -> None:
        self.came = False
        self.script_is_over = False
        # A launcher in the background of a shell hands on SIGINT ignored; ours must get through nevertheless.
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.script_is_over:
            raise KeyboardInterrupt


class _Ending(NamedTuple):
    """How the script ended: its exit code, the reason where it ended early, and whether the profile ended it."""

    code: int
    reason: str | None = None
    by_us: bool = False


def _run(recorder: "Recorder", arguments: Sequence[str], interrupts: _Interrupts) -> _Ending:
    from stallwise.record.rank.recorder import ProfileDone

    try:
        try:
            if arguments[0] == "-m":
                run_module(arguments[1], arguments[2:])
            else:
                run_script(arguments[0], arguments[1:])
        finally:
            # A plain assignment: Python looks for signals only at calls and jumps, so none gets in between.
            interrupts.script_is_over = True
        ending = _Ending(0)
    except ProfileDone as done:
        # The script's frames hold its loaders; letting go of them ends their workers in good order.
        traceback.clear_frames(done.__traceback__)
        if recorder.failure is not None:
            return _Ending(1, f"an error of Stallwise itself: {recorder.failure}", by_us=True)
        return _Ending(0, by_us=True)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        ending = _Ending(code, None if code == 0 else f"the script called sys.exit({leaving.code!r})")
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        return _Ending(2, str(error).rstrip("."))
    except BaseException as error:
        if not interrupts.came:
            _print_as_python_would(error)
            return _Ending(
                INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1,
                f"the script raised {type(error).__name__}",
            )
    if interrupts.came:
        # Also where the interrupt showed as something else: a collective that failed because the others left.
        return _Ending(INTERRUPTED, "it was interrupted", by_us=True)
    recorder.script_ended()
    return ending


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return int(leaving.code)
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _print_as_python_would(error: BaseException) -> None:
    """Print the script's own traceback, without our frames, through the script's own hook if it has one."""
    shown: BaseException | None = error
    while shown is not None:
        shown.__traceback__ = _without_our_frames(shown.__traceback__)
        shown = shown.__cause__ or shown.__context__
    sys.excepthook(type(error), error, error.__traceback__)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Drop frames that led into the script or forwarded its call; keep all where the error is our own."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if frames and _is_in(frames[-1], _OUR_FILES) and not _is_in(frames[-1], _FORWARDERS):
        return frames[0]
    theirs = [frame for frame in frames if not _is_in(frame, _OUR_FILES)]
    for frame, following in itertools.zip_longest(theirs, theirs[1:]):
        frame.tb_next = following
    return theirs[0] if theirs else None


def _is_in(trace: TracebackType, files: tuple[str, ...]) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(files)


def _close(recorder: "Recorder", watchdog: "Watchdog", ending: _Ending) -> None:
    """Write what is left, and make sure that a script stopped in mid-loop does not keep the process alive."""
    watchdog.stop()
    try:
        recorder.close(exit_code=ending.code, reason=ending.reason)
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
    gc.collect()
    if ending.by_us:
        timer = threading.Timer(_EXIT_AFTER_S, os._exit, (ending.code,))
        timer.daemon = True
        timer.start()
    elif ending.code:
        atexit.unregister(_end_process_group)  # the other ranks may never answer


def _exit_now(code: int) -> NoReturn:
    """End a script that was stopped in mid-loop without taking down what it left behind.

    Its process groups still have threads, and an interpreter that destroys them aborts now and then (FSDP over gloo:
    "terminate called without an active exception").
    """
    atexit.unregister(_end_process_group)
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _end_process_group() -> None:
    from torch import distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _own_settings(arguments: Sequence[str]) -> RecordSettings:
    """Settings of a rank that another launcher started: the run's folder from a variable, the rest by default."""
    module = arguments[0] == "-m"
    script, rest = (arguments[1], arguments[2:]) if module else (arguments[0], arguments[1:])
    place = rank_place()
    name = _job_name(place)
    folder = Path(os.environ.get("STALLWISE_RUN") or f"stallwise-runs/{Path(script).stem}-{name}")
    begin_own_record(folder, place, name, script, rest, module=module)
    return RecordSettings(folder=str(folder))


def _job_name(place: RankPlace) -> str:
    """The same in all ranks of a job: its launcher's name for it, or when that launcher was started."""
    import psutil

    began_s = time.time() if place.size == 1 else psutil.Process(os.getppid()).create_time()
    return job_name() or time.strftime("%Y%m%d-%H%M%S", time.localtime(began_s))
