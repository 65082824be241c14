"""One rank of a profiled job: set up the recorder, run the script, say how it ended."""

import gc
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stallwise.errors import StallwiseError
from stallwise.record.processes import die_with_parent
from stallwise.record.script import run_module, run_script
from stallwise.record.settings import WORKERS_NAME, Settings

if TYPE_CHECKING:
    from stallwise.record.recorder import Recorder
    from stallwise.run.writer import RankWriter

Item = TypeVar("Item")

_recorder: "Recorder | None" = None


def step() -> None:
    """Say that a training step begins; does nothing when nobody profiles."""
    if _recorder is not None:
        _recorder.step_marked()


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """Hand through the batches of any iterable, measured when somebody profiles."""
    return iter(iterable) if _recorder is None else _recorder.loaders.wrap(iterable)


def main(arguments: Sequence[str]) -> int:
    """Run `train.py …` or `-m module …`; the exit code is the script's own, 0 when the profile ended it."""
    if not arguments:
        sys.stderr.write("usage: python -m stallwise.record train.py [args...]\n")
        return 2
    die_with_parent()
    try:
        settings = Settings.from_environment() or _own_settings()
        recorder = _start(settings)
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        return 2
    return _run(recorder, arguments)


def _start(settings: Settings) -> "Recorder":
    global _recorder
    from stallwise.record.recorder import Recorder
    from stallwise.record.watchdog import watch_for_hangs
    from stallwise.record.writes import Scratch, guard_writes, time_writes
    from stallwise.run.parts import rank_folder

    folder = Path(settings.folder)
    rank = int(os.environ.get("RANK", "0"))
    mine = rank_folder(folder, rank)
    recorder = Recorder(settings, _open_writer(folder, rank), str(mine / WORKERS_NAME))
    recorder.watch()
    if settings.light or settings.allow_writes:
        time_writes(recorder.spoil)
    else:
        guard_writes(Scratch(folder.absolute() / "scratch"), recorder.spoil)
    watch_for_hangs(recorder, mine)
    _recorder = recorder
    return recorder


def _open_writer(folder: Path, rank: int) -> "RankWriter":
    import torch

    from stallwise.record.machine import this_node
    from stallwise.run.writer import RankWriter

    node = int(os.environ.get("GROUP_RANK", "0"))
    software = {"python": platform.python_version(), "torch": str(torch.__version__), "system": platform.system()}
    if torch.version.cuda:
        software["cuda"] = torch.version.cuda
    first_here = int(os.environ.get("LOCAL_RANK", "0")) == 0
    hardware = this_node(node) if first_here else None
    return RankWriter.open(folder, rank, node=node, hardware=hardware, software=software, clock_zero_s=time.monotonic())


def _run(recorder: "Recorder", arguments: Sequence[str]) -> int:
    from stallwise.record.recorder import ProfileDone

    code, reason = 0, None
    try:
        if arguments[0] == "-m":
            run_module(arguments[1], arguments[2:])
        else:
            run_script(arguments[0], arguments[1:])
        recorder.script_ended()
    except ProfileDone as done:
        # The script's frames hold its loaders; letting go of them ends their workers in good order.
        traceback.clear_frames(done.__traceback__)
    except SystemExit as leaving:
        code = _exit_code(leaving)
        reason = None if code == 0 else f"the script called sys.exit({leaving.code!r})"
        recorder.script_ended()
    except KeyboardInterrupt:
        code, reason = 130, "it was interrupted"
    except StallwiseError as error:
        sys.stderr.write(f"stallwise: {error}\n")
        code, reason = 2, str(error)
    except BaseException as error:
        _print_as_python_would(error)
        code, reason = 1, f"the script raised {type(error).__name__}"
    recorder.close(exit_code=code, reason=reason)
    _shut_down(peaceful=reason is None)
    return code


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _print_as_python_would(error: BaseException) -> None:
    """The script's own traceback, without the frames that led into it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != sys.modules["__main__"].__file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _shut_down(*, peaceful: bool) -> None:
    """End what a script that was stopped in mid-loop could not end itself."""
    import faulthandler

    from torch import distributed as dist

    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    if peaceful and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _own_settings() -> Settings:
    """Settings of a rank that another launcher started: the run's folder from a variable, the rest by default."""
    name = os.environ.get("TORCHELASTIC_RUN_ID") or os.environ.get("SLURM_JOB_ID") or time.strftime("%Y%m%d-%H%M%S")
    folder = Path(os.environ.get("STALLWISE_RUN", f"stallwise-runs/{name}"))
    from stallwise.record.launch import begin_record

    begin_record(folder, script="(started by another launcher)", arguments=(), launcher=None, exist_ok=True)
    return Settings(folder=str(folder))
