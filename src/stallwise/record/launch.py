"""Starting a job under the recorder, staying with it to its end, and joining what its ranks wrote.

The job runs in a session of its own, so a Ctrl-C reaches only us; we pass it on, give the ranks time to write
what they have, and end whatever is left of the process tree.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from stallwise.errors import InputError, RunError
from stallwise.record.costs import collect_batches
from stallwise.record.processes import die_with_parent, end_tree
from stallwise.record.settings import PROGRESS_NAME, STACKS_NAME, Settings
from stallwise.run.join import join
from stallwise.run.manifest import JobRecord, Manifest, WorldRecord, new_manifest, read_manifest
from stallwise.run.parts import find_parts
from stallwise.run.redact import redact
from stallwise.run.writer import start_run

_POLL_S = 0.2
_PATIENCE_S = 20.0


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

    @property
    def folder(self) -> Path:
        """Where the run is written."""
        return Path(self.settings.folder)

    def command(self) -> list[str]:
        """The command line of the job."""
        target = ["-m", self.script] if self.module else [self.script]
        recorded = ["-m", "stallwise.record", *target, *self.arguments]
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


def run_profile(launch: Launch, progress: Callable[[Progress], None], job_stdout: int | None = None) -> Outcome:
    """Start the job, wait for it, join its record. The job's stdout goes to ours, or to the file `job_stdout`."""
    if not launch.module and not Path(launch.script).is_file():
        raise InputError(f"There is no script {launch.script}. Give the path of the training script.")
    begin_record(
        launch.folder,
        script=launch.script,
        arguments=launch.arguments,
        launcher="torchrun" if launch.torchrun else "python",
        world=launch.world,
        run_id=launch.run_id,
        exist_ok=launch.world.nnodes > 1,
    )
    environment = os.environ | launch.settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    job = subprocess.Popen(
        launch.command(),
        env=environment,
        stdout=job_stdout,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    with _signals_raise():
        interrupted, hung = _stay_with(job, launch.folder, progress)
    return _finish(launch, job.returncode, interrupted=interrupted, hung=hung)


def begin_record(
    folder: Path,
    *,
    script: str,
    arguments: Sequence[str],
    launcher: str | None,
    world: WorldRecord | None = None,
    run_id: str | None = None,
    exist_ok: bool = False,
) -> None:
    """Create the run. With `exist_ok`, another node may have created it first in a shared folder."""
    job = JobRecord(script=script, arguments=tuple(redact(list(arguments))), launcher=launcher)
    try:
        start_run(folder, new_manifest(job, world=world, run_id=run_id))
    except RunError:
        if not exist_ok or read_manifest(folder).state != "recording":
            raise


def _stay_with(job: "subprocess.Popen[bytes]", folder: Path, progress: Callable[[Progress], None]) -> tuple[bool, bool]:
    """Wait for the job; (interrupted, hung)."""
    seen = b""
    try:
        while job.poll() is None:
            time.sleep(_POLL_S)
            seen = _report(folder, seen, progress)
            if _hanging(folder):
                time.sleep(min(5.0, 10 * _POLL_S))  # the other ranks write their stacks too
                end_tree(job.pid, gentle=signal.SIGTERM, patience_s=5)
                job.wait()
                return False, True
    except KeyboardInterrupt:
        end_tree(job.pid, gentle=signal.SIGINT, patience_s=_PATIENCE_S)
        job.wait()
        return True, False
    finally:
        end_tree(job.pid, gentle=signal.SIGKILL, patience_s=1)
    return False, False


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


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM is treated like Ctrl-C: what was measured is still written."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _finish(launch: Launch, code: int, *, interrupted: bool, hung: bool) -> Outcome:
    folder = launch.folder
    notes = _save_stacks(folder) if hung else []
    reports = [part.report().record for part in find_parts([folder])]
    # torchrun's own code is always 1; the script's is what its ranks say.
    codes = [record.exit_code for record in reports if record.exit_code]
    exit_code = codes[0] if codes else code
    reason = "The profile was interrupted." if interrupted else "The job hung." if hung else None
    manifest = join_parts(folder, exit_code=exit_code, reason=reason, notes=notes)
    return Outcome(manifest=manifest, exit_code=exit_code, interrupted=interrupted, hung=hung)


def join_parts(
    folder: Path,
    *,
    others: tuple[Path, ...] = (),
    exit_code: int | None = None,
    reason: str | None = None,
    notes: Sequence[str] = (),
) -> Manifest:
    """Join a run, what its loader workers wrote included."""
    for part in find_parts([folder, *others]):
        collect_batches(part)
    return join(folder, others=others, exit_code=exit_code, reason=reason, notes=notes)


def _save_stacks(folder: Path) -> list[str]:
    into = folder / "stacks"
    into.mkdir(exist_ok=True)
    for part in find_parts([folder]):
        found = part.folder / STACKS_NAME
        if found.exists():
            shutil.copy(found, into / f"rank-{part.rank}.txt")
    return ["No rank began a step for a long time; the stacks of all threads are in stacks/ of this run."]
