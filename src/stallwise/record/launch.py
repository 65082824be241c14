"""Starting a job under the recorder, staying with it to its end, and joining what its ranks wrote.

The job runs in a session of its own, so a Ctrl-C reaches only us; we pass it on to the ranks, give them time to write
what they have, and end whatever is left of the job's processes. If we are killed ourselves, the kernel ends the job.
"""

import contextlib
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from stallwise.errors import InputError, MissingFeatureError, RunError
from stallwise.record.costs import collect_batches
from stallwise.record.place import place
from stallwise.record.processes import adopt_orphans, descendants, die_with_parent, end_all, is_alive, signal_process
from stallwise.record.settings import PROCESS_NAME, PROGRESS_NAME, STACKS_NAME, WORKERS_NAME, Settings
from stallwise.run.join import join
from stallwise.run.manifest import JobRecord, Manifest, WorldRecord, new_manifest, read_manifest
from stallwise.run.parts import PARTS_NAME, RANK_NAME, RankParts, find_parts
from stallwise.run.redact import redact
from stallwise.run.writer import start_run

_POLL_S = 0.2
_PATIENCE_S = 20.0
_STACKS_S = 2.0
_OTHER_NODES_S = 20.0
_OTHER_RANKS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run and how. `torchrun` holds torchrun's own options; without them the script runs as one process."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    torchrun: tuple[str, ...] = ()
    world: WorldRecord = field(default_factory=WorldRecord)
    node_rank: int = 0
    run_id: str | None = None
    settings: Settings
    entry: str = "stallwise.record"
    """The module that runs the script in every rank."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the job besides ours."""

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return Path(self.settings.folder)

    def command(self) -> list[str]:
        """The command line of the job."""
        target = ["-m", self.script] if self.module else [self.script]
        recorded = ["-m", self.entry, *target, *self.arguments]
        if not self.torchrun:
            return [sys.executable, *recorded]
        return [sys.executable, "-m", "torch.distributed.run", *self.torchrun, *recorded]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 is doing."""

    phase: str
    round: int
    steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a profile ended: the record, the job's exit code, and why the record is not whole, if so."""

    manifest: Manifest
    exit_code: int
    interrupted: bool
    hung: bool


def run_profile(
    launch: Launch,
    progress: Callable[[Progress], None],
    job_stdout: int | None = None,
    job_stderr: int | None = None,
) -> Outcome:
    """Start the job, wait for it, join its record. The job's output goes to ours, or to the files given."""
    _check_target(launch)
    _check_alone(launch)
    if importlib.util.find_spec("torch") is None:
        raise MissingFeatureError(
            "Profiling needs PyTorch, which is not installed here: pip install 'stallwise[torch]'"
        )
    begin_record(
        launch.folder,
        script=launch.script,
        arguments=launch.arguments,
        module=launch.module,
        launcher="torchrun" if launch.torchrun else "python",
        world=launch.world,
        run_id=launch.run_id,
        exist_ok=launch.world.nnodes > 1,
    )
    # The script's output is to be seen while it runs, also through a pipe.
    environment = os.environ | launch.environment | launch.settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    adopt_orphans()
    not_ours = [process.pid for process in descendants()]
    with _signals_raise() as signals:
        job = subprocess.Popen(
            launch.command(),
            env=environment,
            stdout=job_stdout,
            stderr=job_stderr,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            hung = _stay_with(job, launch, progress)
            interrupted = False
            if job.poll() == 0:
                _let_ranks_end(launch.folder)
        except KeyboardInterrupt:
            hung, interrupted = False, True
            _interrupt(job, launch.folder)
        finally:
            signals.only_noted = True
            end_all(descendants(besides=not_ours))
        job.wait()
        return _finish(launch, job.returncode, interrupted=interrupted or signals.came, hung=hung)


def _check_target(launch: Launch) -> None:
    if not launch.module and not Path(launch.script).is_file():
        raise InputError(f"There is no script {launch.script}. Give the path of the training script.")
    if launch.module:
        # Only the topmost package: looking further would import it here.
        top = launch.script.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
            raise InputError(f"There is no module {top}. Give a module that python -m would run from this folder.")


def _check_alone(launch: Launch) -> None:
    """Several tasks of srun or mpirun are the ranks themselves: each needs a recorder, not a launcher."""
    size = place().size
    if size > 1 and not launch.torchrun:
        raise InputError(
            f"stallwise profile starts a job's processes itself, and here {size} of it were started at once. Start "
            f"each rank as `python -m stallwise.record {launch.script}` instead, then run `stallwise run join`."
        )


def begin_record(
    folder: Path,
    *,
    script: str,
    arguments: Sequence[str],
    launcher: str | None,
    module: bool = False,
    world: WorldRecord | None = None,
    run_id: str | None = None,
    exist_ok: bool = False,
) -> None:
    """Create the run. With `exist_ok`, another node may have created it first in a shared folder."""
    job = JobRecord(script=script, arguments=tuple(redact(list(arguments))), launcher=launcher, module=module)
    try:
        start_run(folder, new_manifest(job, world=world, run_id=run_id))
    except RunError:
        if not exist_ok or read_manifest(folder).state != "recording":
            raise


def _stay_with(job: "subprocess.Popen[bytes]", launch: Launch, progress: Callable[[Progress], None]) -> bool:
    """Wait until the job ends or hangs; whether it hangs."""
    seen = b""
    while job.poll() is None:
        time.sleep(_POLL_S)
        seen = _report(launch.folder, seen, progress)
        # Light mode only watches: it leaves the stacks in the record and the job alone.
        if (not launch.settings.light or launch.settings.trial) and _hanging(launch.folder):
            _ask_for_stacks(launch.folder)
            return True
    return False


def _let_ranks_end(folder: Path) -> None:
    """Ranks that the script started itself end at the same step, but not in the same moment."""
    deadline_s = time.monotonic() + _OTHER_RANKS_S
    while any(map(is_alive, _rank_processes(folder).values())) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S / 4)


def _interrupt(job: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Let the ranks write what they have. torchrun itself is not told: it would print a page about it."""
    told = [signal_process(pid, signal.SIGINT) for pid in _rank_processes(folder).values()]
    if any(told):
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # asked twice: at once
            job.wait(timeout=_PATIENCE_S)


def _ask_for_stacks(folder: Path) -> None:
    """A rank that is waited for need not be stuck itself; its stacks say most."""
    from stallwise.record.watchdog import STACKS_SIGNAL

    time.sleep(_STACKS_S)  # ranks that got stuck at the same time write their own
    for rank, pid in _rank_processes(folder).items():
        if not (rank.folder / STACKS_NAME).stat().st_size:
            signal_process(pid, STACKS_SIGNAL)
    time.sleep(_STACKS_S / 2)


def _rank_processes(folder: Path) -> dict[RankParts, int]:
    """The ranks of this run on this machine that still live."""
    below = {process.pid for process in descendants()}
    found = {}
    for part in find_parts([folder]):
        with contextlib.suppress(OSError, ValueError):
            found[part] = int((part.folder / PROCESS_NAME).read_text())
    return {part: pid for part, pid in found.items() if pid in below}


def _report(folder: Path, seen: bytes, progress: Callable[[Progress], None]) -> bytes:
    for part in find_parts([folder])[:1]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            data = (part.folder / PROGRESS_NAME).read_bytes()
            if data != seen:
                progress(msgspec.json.decode(data, type=Progress))
            return data
    return seen


def _hanging(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"parts/rank-*/{STACKS_NAME}"))


class _Signals:
    """Ctrl-C and SIGTERM, both of which mean: stop, and write what was measured."""

    def __init__(self) -> None:
        self.came = False
        self.only_noted = False  # once the job is over its record is written whatever comes

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.came = True
        if not self.only_noted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _signals_raise() -> Iterator[_Signals]:
    handler = _Signals()
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield handler
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _finish(launch: Launch, code: int, *, interrupted: bool, hung: bool) -> Outcome:
    folder = launch.folder
    notes = _save_stacks(folder)
    parts = find_parts([folder])
    exit_code = _exit_code(parts) or code
    reason = "The profile was interrupted." if interrupted else _hang_sentence(launch) if hung else None
    if launch.node_rank != 0:
        manifest = _leave_to_node_0(launch, parts)
    else:
        _wait_for_other_nodes(launch)
        manifest = join_parts(folder, exit_code=exit_code, reason=reason, notes=notes)
    return Outcome(manifest=manifest, exit_code=exit_code, interrupted=interrupted, hung=hung)


def _exit_code(parts: Sequence[RankParts]) -> int:
    """The script's own, which torchrun does not tell: that of the rank that ended first with one."""
    ended = [((part.folder / RANK_NAME).stat().st_mtime, part.report().record.exit_code or 0) for part in parts]
    return next((code for _, code in sorted(ended) if code), 0)


def _hang_sentence(launch: Launch) -> str:
    return (
        f"The job hung: no rank began a step for {launch.settings.hang_after_s:.0f} s, so it was ended; "
        f"where each rank stood is in {launch.folder / 'stacks'}."
    )


def _leave_to_node_0(launch: Launch, parts: Sequence[RankParts]) -> Manifest:
    """In a shared folder node 0 joins; on a disk of its own this node leaves its part to be carried there."""
    if all(part.report().record.node == launch.node_rank for part in parts):
        for part in parts:
            collect_batches(part)
    return read_manifest(launch.folder)


def _wait_for_other_nodes(launch: Launch) -> None:
    """In a shared folder, until the ranks of the other nodes have ended too; they end at the same step as ours."""
    deadline_s = time.monotonic() + _OTHER_NODES_S
    while launch.world.nnodes > 1 and time.monotonic() < deadline_s:
        records = [part.report().record for part in find_parts([launch.folder])]
        if all(record.finished or record.exit_code is not None for record in records if record.node):
            return
        time.sleep(_POLL_S)


def join_parts(
    folder: Path,
    *,
    others: tuple[Path, ...] = (),
    exit_code: int | None = None,
    reason: str | None = None,
    notes: Sequence[str] = (),
) -> Manifest:
    """Join a run, what its loader workers wrote included. The folders in `others` are only read."""
    with tempfile.TemporaryDirectory(prefix="stallwise-join-") as aside:
        copies = tuple(_with_batches(other, Path(aside, str(n))) for n, other in enumerate(others))
        for part in find_parts([folder]):
            collect_batches(part)
        return join(folder, others=copies, exit_code=exit_code, reason=reason, notes=notes)


def _with_batches(folder: Path, copy: Path) -> Path:
    """`folder`, or a copy of it where there still is something to collect."""
    read_manifest(folder)  # says in a sentence if it is no run
    if not any(folder.glob(f"{PARTS_NAME}/rank-*/{WORKERS_NAME}/*.costs")):
        return folder
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("scratch"))
    for part in find_parts([copy]):
        collect_batches(part)
    return copy


def _save_stacks(folder: Path) -> list[str]:
    """Out of the parts, which do not outlive joining."""
    into = folder / "stacks"
    for part in find_parts([folder]):
        found = part.folder / STACKS_NAME
        if found.exists() and found.stat().st_size:
            into.mkdir(exist_ok=True)
            shutil.copy(found, into / f"rank-{part.rank}.txt")
    if not into.exists():
        return []
    return ["No rank began a step for a long time; the stacks of all threads are in stacks/ of this run."]
