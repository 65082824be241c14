"""One rank of a profiled job: set up the recorder, run the script, say how it ended."""

import atexit
import contextlib
import gc
import itertools
import os
import platform
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
from stallwise.record import marks
from stallwise.record.place import Place, job_name, place
from stallwise.record.processes import die_with_parent
from stallwise.record.script import run_module, run_script
from stallwise.record.settings import WORKERS_NAME, Settings

if TYPE_CHECKING:
    from stallwise.record.recorder import Recorder
    from stallwise.record.watchdog import Watchdog
    from stallwise.run.writer import RankWriter

INTERRUPTED = 130
"""The exit code in the record of a rank that was interrupted."""

# A script stopped in mid-loop may have left threads that nobody will ever end.
_LEAVE_AFTER_S = 10.0

_OURS = (os.path.dirname(__file__),)
# They call what the script meant to call; what fails there is the script's.
_PASSING_ON = tuple(os.path.join(_OURS[0], name) for name in ("rank.py", "script.py", "scratch.py", "writes.py"))


def main(arguments: Sequence[str]) -> int:
    """Run `train.py …` or `-m module …`; the exit code is the script's own, 0 when the profile ended it."""
    if not arguments or (arguments[0] == "-m" and len(arguments) == 1):
        sys.stderr.write("usage: python -m stallwise.record train.py [args...]\n")
        return 2
    try:
        settings = Settings.from_environment()
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
    if not launched and recorder.writer.rank == 0:
        folder = recorder.settings.folder
        sys.stderr.write(f"stallwise: the ranks wrote to {folder}; put it together with: stallwise run join {folder}\n")
    # To torchrun an interrupted rank has ended well: it would print a page about each otherwise.
    code = 0 if launched and interrupts.came else ending.code
    if ending.by_us:
        _leave(code)
    return code


def _start(settings: Settings, *, launched: bool) -> "tuple[Recorder, Watchdog]":
    from stallwise.record.children import Ranks
    from stallwise.record.recorder import Recorder
    from stallwise.record.scratch import Scratch
    from stallwise.record.watchdog import Watchdog
    from stallwise.record.writes import guard_writes, time_writes
    from stallwise.run.manifest import MANIFEST_NAME
    from stallwise.run.parts import rank_folder

    # Absolute: the script may change its working directory.
    folder = Path(settings.folder).absolute()
    here = place()
    mine = rank_folder(folder, here.rank)
    recorder = Recorder(settings, open_writer(folder, here), str(mine / WORKERS_NAME))
    recorder.watch()
    if not settings.light:
        Ranks(folder, here.size).watch(starts_some=launched and here.size == 1)
    watchdog = Watchdog(recorder, mine)
    if (settings.light and not settings.trial) or settings.allow_writes:
        time_writes(recorder.spoil)
    else:
        began_s = (folder / MANIFEST_NAME).stat().st_mtime  # the same for all ranks
        guard_writes(Scratch(folder / "scratch", began_s=began_s, run=folder), recorder.spoil)
    # Registered before the script's own handlers, so it runs after them: they may still want to talk.
    atexit.register(_end_process_group)
    marks.listen(recorder)
    return recorder, watchdog


def open_writer(folder: Path, here: Place) -> "RankWriter":
    """Begin this rank's part of the run."""
    import torch

    from stallwise.record.machine import this_node
    from stallwise.run.writer import RankWriter

    software = {"python": platform.python_version(), "torch": str(torch.__version__), "system": platform.system()}
    if torch.version.cuda:
        software["cuda"] = torch.version.cuda
    return RankWriter.open(
        folder,
        here.rank,
        node=here.node,
        hardware=this_node(here.node) if here.local_rank == 0 else None,
        software=software,
        clock_zero_s=time.monotonic(),
    )


class _Interrupts:
    """Ctrl-C raises KeyboardInterrupt while the script runs, as ever; once it is over, it is only noted."""

    def __init__(self) -> None:
        self.came = False
        self.script_is_over = False
        # A launcher in the background of a shell hands on SIGINT ignored; ours must get through all the same.
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        if not self.script_is_over:
            raise KeyboardInterrupt


class _Ending(NamedTuple):
    """How the script ended: its exit code, why that was before its time, and whether it was we who ended it."""

    code: int
    reason: str | None = None
    by_us: bool = False


def _run(recorder: "Recorder", arguments: Sequence[str], interrupts: _Interrupts) -> _Ending:
    from stallwise.record.recorder import ProfileDone

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
    """The script's own traceback, without our frames, through the script's own hook if it has one."""
    shown: BaseException | None = error
    while shown is not None:
        shown.__traceback__ = _without_our_frames(shown.__traceback__)
        shown = shown.__cause__ or shown.__context__
    sys.excepthook(type(error), error, error.__traceback__)


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Frames that led into the script or passed a call of it on; all stay where the error is our own making."""
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    if found and _is_in(found[-1], _OURS) and not _is_in(found[-1], _PASSING_ON):
        return found[0]
    theirs = [one for one in found if not _is_in(one, _OURS)]
    for one, following in itertools.zip_longest(theirs, theirs[1:]):
        one.tb_next = following
    return theirs[0] if theirs else None


def _is_in(trace: TracebackType, places: tuple[str, ...]) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(places)


def _close(recorder: "Recorder", watchdog: "Watchdog", ending: _Ending) -> None:
    """Write what is left, and end what a script that was stopped in mid-loop could not end itself."""
    watchdog.stop()
    try:
        recorder.close(exit_code=ending.code, reason=ending.reason)
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
    gc.collect()
    if ending.by_us:
        timer = threading.Timer(_LEAVE_AFTER_S, os._exit, (ending.code,))
        timer.daemon = True
        timer.start()
    elif ending.code:
        atexit.unregister(_end_process_group)  # the other ranks may never answer


def _leave(code: int) -> NoReturn:
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


def _own_settings(arguments: Sequence[str]) -> Settings:
    """Settings of a rank that another launcher started: the run's folder from a variable, the rest by default."""
    module = arguments[0] == "-m"
    script, rest = (arguments[1], arguments[2:]) if module else (arguments[0], arguments[1:])
    here, name = place(), _job_name(place())
    folder = Path(os.environ.get("STALLWISE_RUN") or f"stallwise-runs/{Path(script).stem}-{name}")
    begin_own_record(folder, here, name, script, rest, module=module)
    return Settings(folder=str(folder))


def begin_own_record(
    folder: Path, here: Place, name: str, script: str, arguments: Sequence[str], *, module: bool = False
) -> None:
    """Create the run of a job that we did not launch; of several ranks the first does, and the others find it."""
    from stallwise.record.launch import begin_record
    from stallwise.run.manifest import WorldRecord

    begin_record(
        folder,
        script=script,
        arguments=tuple(arguments),
        launcher=None,
        module=module,
        world=WorldRecord(world_size=here.size, nnodes=here.nodes),
        run_id=name if here.size > 1 else None,
        exist_ok=here.size > 1,
    )


def _job_name(here: Place) -> str:
    """The same in all ranks of a job: its launcher's name for it, or when that launcher was started."""
    import psutil

    began_s = time.time() if here.size == 1 else psutil.Process(os.getppid()).create_time()
    return job_name() or time.strftime("%Y%m%d-%H%M%S", time.localtime(began_s))
