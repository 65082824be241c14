"""Starting a job under the recorder, waiting for its end, and joining what its ranks wrote.

The job runs in a session of its own, so a Ctrl-C reaches only us; we pass it on to the ranks, give them time to write
what they have, and end whatever is left of the job's processes. If we are killed ourselves, the kernel ends the job.
"""

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import msgspec

from stallwise.errors import InputError, missing_torch
from stallwise.record._files import protect_files
from stallwise.record.join import collect_batches, join_parts
from stallwise.record.node import gpus
from stallwise.record.processes import adopt_orphans, descendants, die_with_parent, end_all, is_alive, signal_process
from stallwise.record.rank.environment import (
    PROCESS_NAME,
    PROGRESS_NAME,
    STACKS_NAME,
    RecordSettings,
    begin_record,
    rank_place,
)
from stallwise.run.join import RANK_NAME, RankParts, find_parts
from stallwise.run.manifest import Manifest, WorldRecord, read_manifest
from stallwise.sentences import Sentence

_POLL_S = 0.2
_PATIENCE_S = 20.0
_STACKS_S = 2.0
_OTHER_NODES_S = 20.0
_OTHER_RANKS_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A job to profile. `torchrun` holds torchrun's own arguments; without them the script runs as one process."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    torchrun: tuple[str, ...] = ()
    world: WorldRecord = field(default_factory=WorldRecord)
    node_rank: int = 0
    run_id: str | None = None
    settings: RecordSettings
    entry: str = "stallwise.record"
    """The module that runs the script in every rank."""
    environment: dict[str, str] = field(default_factory=dict)
    """Further environment variables of the job."""
    shared_folders: tuple[str, ...] = ()
    """Further folders in which what the job writes must reach us."""

    @property
    def folder(self) -> Path:
        """The folder that the run is written to."""
        return Path(self.settings.folder)

    def command(self) -> list[str]:
        """The job as a list of command-line arguments."""
        target = ["-m", self.script] if self.module else [self.script]
        recorded = ["-m", self.entry, *target, *self.arguments]
        if not self.torchrun:
            return [sys.executable, *recorded]
        return [sys.executable, "-m", "torch.distributed.run", *self.torchrun, *recorded]


class ProfileProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Where rank 0 is in the profile."""

    phase: str
    round: int
    steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOutcome:
    """How a profile ended: the record, the job's exit code, and whether it was interrupted or hung."""

    manifest: Manifest
    exit_code: int
    interrupted: bool
    hung: bool


def run_profile(
    launch: Launch,
    progress: Callable[[ProfileProgress], None],
    job_stdout: int | None = None,
    job_stderr: int | None = None,
) -> ProfileOutcome:
    """Start the job, wait for it, join its record. The job's output goes to ours, or to these descriptors."""
    _check_target(launch)
    _check_alone(launch)
    if importlib.util.find_spec("torch") is None:
        raise missing_torch("Profiling")
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
    protection = protect_files(
        launch.settings,
        folder=launch.folder,
        script=None if launch.module else launch.script,
        nodes=launch.world.nnodes,
        shared=launch.shared_folders,
    )
    settings = msgspec.structs.replace(launch.settings, overlaid=protection.kind == "overlay")
    # The script's output is to be seen while it runs, also through a pipe.
    environment = os.environ | launch.environment | settings.to_environment() | {"PYTHONUNBUFFERED": "1"}
    adopt_orphans()
    earlier = [process.pid for process in descendants()]
    with _signals_raise() as signals:
        job = subprocess.Popen(
            protection.command(launch.command()),
            env=environment,
            stdout=job_stdout,
            stderr=job_stderr,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            hung = _wait_for(job, launch, progress)
            interrupted = False
            if job.poll() == 0:
                wait_for_ranks(launch.folder)
        except KeyboardInterrupt:
            hung, interrupted = False, True
            _interrupt(job, launch.folder)
        finally:
            signals.only_noted = True
            end_all(descendants(besides=earlier))
            protection.end()
        job.wait()
        return _finish(launch, job.returncode, protection.notes, interrupted=interrupted or signals.came, hung=hung)


def _check_target(launch: Launch) -> None:
    if not launch.module and not Path(launch.script).is_file():
        raise InputError(f"There is no script {launch.script}. Give the path of the training script.")
    if not launch.module:
        _check_python(Path(launch.script))
    else:
        # Only the topmost package: looking further would import it here.
        top = launch.script.partition(".")[0]
        if importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
            raise InputError(f"There is no module {top}. Give a module that python -m would run from this folder.")


def _check_python(script: Path) -> None:
    """Refuse what is no Python before anything is started for it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(script.read_bytes(), str(script))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{script}{line} is no Python: {reason}. Give the path of the training script.") from None
    except (RecursionError, MemoryError):
        pass  # what the parser cannot take here is left to the interpreter that runs the script


def _check_alone(launch: Launch) -> None:
    """Several tasks of srun or mpirun are the ranks themselves: each needs a recorder, not a launcher."""
    size = rank_place().size
    if size > 1 and not launch.torchrun:
        raise InputError(
            f"stallwise profile starts a job's processes itself, and here {size} of it were started at once. Start "
            f"each rank as `python -m stallwise.record {launch.script}` instead, then run `stallwise run join`."
        )


def _wait_for(job: "subprocess.Popen[bytes]", launch: Launch, progress: Callable[[ProfileProgress], None]) -> bool:
    """Wait until the job ends or hangs; True where it hangs."""
    shown = b""
    while job.poll() is None:
        time.sleep(_POLL_S)
        shown = _report(launch.folder, shown, progress)
        # Light mode only observes: it leaves the stacks in the record and the job alone.
        if (not launch.settings.light or launch.settings.trial) and _hanging(launch.folder):
            _request_stacks(launch.folder)
            return True
    return False


def wait_for_ranks(folder: Path) -> None:
    """Wait for ranks that the script started itself: they end at the same step, but not in the same moment."""
    deadline_s = time.monotonic() + _OTHER_RANKS_S
    while any(map(is_alive, _rank_processes(folder).values())) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S / 4)


def _interrupt(job: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Let the ranks write what they have. torchrun itself gets no signal: it would print a page about it."""
    delivered = [signal_process(pid, signal.SIGINT) for pid in _rank_processes(folder).values()]
    if any(delivered):
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: at once
            job.wait(timeout=_PATIENCE_S)


def _request_stacks(folder: Path) -> None:
    """Make every rank write its stacks: one that others wait for need not be stuck itself, and its stacks tell most."""
    from stallwise.record.rank._watchdog import STACKS_SIGNAL

    time.sleep(_STACKS_S)  # ranks that got stuck at the same time write their own
    for rank, pid in _rank_processes(folder).items():
        if not (rank.folder / STACKS_NAME).stat().st_size:
            signal_process(pid, STACKS_SIGNAL)
    time.sleep(_STACKS_S / 2)


def _rank_processes(folder: Path) -> dict[RankParts, int]:
    """Process ids of the ranks of this run that are alive on this machine."""
    below = {process.pid for process in descendants()}
    pids = {}
    for part in find_parts([folder]):
        with contextlib.suppress(OSError, ValueError):
            pids[part] = int((part.folder / PROCESS_NAME).read_text())
    return {part: pid for part, pid in pids.items() if pid in below}


def _report(folder: Path, shown: bytes, progress: Callable[[ProfileProgress], None]) -> bytes:
    for part in find_parts([folder])[:1]:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            data = (part.folder / PROGRESS_NAME).read_bytes()
            if data != shown:
                progress(msgspec.json.decode(data, type=ProfileProgress))
            return data
    return shown


def _hanging(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob(f"parts/rank-*/{STACKS_NAME}"))


class _Signals:
    """Handler of Ctrl-C and SIGTERM, both of which mean: stop, and write what was measured."""

    def __init__(self) -> None:
        self.came = False
        self.only_noted = False  # once the job is over its record is written whatever comes

    def __call__(self, number: int, frame: FrameType | None) -> None:
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


def _finish(launch: Launch, code: int, remarks: Sequence[Sentence], *, interrupted: bool, hung: bool) -> ProfileOutcome:
    folder = launch.folder
    notes = [*_save_stacks(folder), *remarks]
    parts = find_parts([folder])
    exit_code = _exit_code(parts) or code
    reason = (
        Sentence("run.interrupted", "The profile was interrupted.")
        if interrupted
        else _hang_sentence(launch)
        if hung
        else None
    )
    if launch.node_rank != 0:
        manifest = _leave_to_node_0(launch, parts)
    else:
        _wait_for_other_nodes(launch)
        manifest = join_parts(folder, exit_code=exit_code, reason=reason, notes=notes)
    return ProfileOutcome(manifest=manifest, exit_code=exit_code, interrupted=interrupted, hung=hung)


def _exit_code(parts: Sequence[RankParts]) -> int:
    """The script's own exit code, which torchrun does not report: that of the first rank that failed."""
    ended = [((part.folder / RANK_NAME).stat().st_mtime, part.report().record.exit_code or 0) for part in parts]
    return next((code for _, code in sorted(ended) if code), 0)


def _hang_sentence(launch: Launch) -> Sentence:
    return Sentence(
        "run.hung",
        f"The job hung: no rank began a step for {launch.settings.hang_after_s:.0f} s, so it was ended; "
        f"where each rank stood is in {launch.folder / 'stacks'}.",
        hang_after_s=launch.settings.hang_after_s,
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


def _save_stacks(folder: Path) -> list[Sentence]:
    """Copy stacks out of the parts, which do not outlive joining; returns notes for the record."""
    into = folder / "stacks"
    for part in find_parts([folder]):
        stacks = part.folder / STACKS_NAME
        if stacks.exists() and stacks.stat().st_size:
            into.mkdir(exist_ok=True)
            shutil.copy(stacks, into / f"rank-{part.rank}.txt")
    if not into.exists():
        return []
    return [
        Sentence(
            "run.stacks", "No rank began a step for a long time; the stacks of all threads are in stacks/ of this run."
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    """torchrun's options as the user set them; where all are None the script runs as one plain process."""

    nproc_per_node: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None

    def arguments(self) -> tuple[str, ...]:
        """Arguments for torchrun; empty where torchrun is not needed."""
        self._check()
        addresses = (self.master_addr, self.master_port, self.rdzv_backend, self.rdzv_endpoint, self.rdzv_id)
        if self.nproc_per_node is None and self.nnodes == 1 and all(address is None for address in addresses):
            return ()
        options = {
            "--nproc-per-node": self.nproc_per_node or "1",
            "--nnodes": str(self.nnodes),
            "--node-rank": str(self.node_rank),
            "--master-addr": self.master_addr,
            "--master-port": None if self.master_port is None else str(self.master_port),
            "--rdzv-backend": self.rdzv_backend,
            "--rdzv-endpoint": self.rdzv_endpoint,
            "--rdzv-id": self.rdzv_id,
        }
        # Without an address torchrun uses one fixed port, and two jobs on a machine collide.
        alone = () if self.nnodes > 1 or self.master_port or self.rdzv_endpoint else ("--standalone",)
        return (*alone, *(word for name, value in options.items() if value is not None for word in (name, value)))

    def world(self) -> WorldRecord:
        """How many ranks the job is going to have."""
        return WorldRecord(world_size=self.nnodes * self._per_node(), nnodes=self.nnodes)

    def run_id(self) -> str | None:
        """The run's id: nodes with disks of their own must give their parts of one run the same one."""
        if self.nnodes == 1:
            return None
        return self.rdzv_id or f"{self.master_addr or self.rdzv_endpoint}-{self.master_port or ''}".strip("-")

    def _check(self) -> None:
        if self.nnodes < 1:
            raise InputError(f"The number of nodes must be at least 1, not {self.nnodes}.", fields=("nnodes",))
        if not 0 <= self.node_rank < self.nnodes:
            raise InputError(
                f"The rank of this node must be from 0 to {self.nnodes - 1}, not {self.node_rank}.",
                fields=("node_rank",),
            )
        if self.nnodes > 1 and self.master_addr is None and self.rdzv_endpoint is None:
            raise InputError(
                "Several nodes need an address at which they find each other.",
                fields=("master_addr", "master_port", "rdzv_endpoint"),
            )
        self._per_node()
        if self.master_port is not None and self.node_rank == 0 and self.rdzv_endpoint is None:
            _check_port(self.master_port)

    def _per_node(self) -> int:
        count = self.nproc_per_node or "1"
        if count == "gpu" or (count == "auto" and gpus()):
            return max(1, len(gpus()))
        if count in ("cpu", "auto"):
            return os.cpu_count() or 1
        if not count.isdigit() or int(count) < 1:
            raise InputError(
                f"The processes per node must be a number, gpu, cpu or auto, not {count!r}.", fields=("nproc_per_node",)
            )
        return int(count)


def _check_port(port: int) -> None:
    """Refuse a port that is taken; torchrun would take a minute, or print a page, to say the same."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "a port is a number up to 65535"
            raise InputError(
                f"Port {port} cannot be used here ({reason}). Choose another port.", fields=("master_port",)
            ) from None
