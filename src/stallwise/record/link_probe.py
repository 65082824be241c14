"""Starting the ranks of a link probe under torchrun, staying with them, and reading what they wrote.

The ranks' own output goes to a log: torchrun prints a page for each rank that fails, and we say it in one sentence.
"""

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import msgspec

from stallwise.errors import InputError, MissingFeatureError
from stallwise.hardware.machine import MachineRecord, read_machine
from stallwise.record.processes import adopt_orphans, descendants, die_with_parent, end_all
from stallwise.run.atomic import make_folder

PROGRESS_NAME = "progress.json"
"""In the launcher's folder: what the node's first rank is doing."""
ERROR_NAME = "error.txt"
"""In the launcher's folder: why the first rank of the node that failed did."""

_POLL_S = 0.1
_SLACK_S = 60.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are doing; `done` is the part of the time budget that is spent."""

    doing: str
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """What to measure and where. `torchrun` holds torchrun's own options."""

    torchrun: tuple[str, ...]
    node_rank: int = 0
    out: Path
    backend: str | None = None
    max_s: float = 45.0
    max_bytes: int
    join_s: float = 120.0

    def command(self, folder: Path) -> list[str]:
        """The command line of the ranks."""
        words = [sys.executable, "-m", "torch.distributed.run", *self.torchrun, "-m", "stallwise.record.link_rank"]
        words += ["--out", str(self.out), "--max-time", str(self.max_s), "--max-bytes", str(self.max_bytes)]
        return [*words, "--folder", str(folder), *(["--backend", self.backend] if self.backend else [])]


def run_probe(probe: LinkProbe, progress: Callable[[Progress], None]) -> MachineRecord | None:
    """Measure; the record on node 0, None on other nodes. A KeyboardInterrupt leaves no process and no record."""
    _check(probe)
    with tempfile.TemporaryDirectory(prefix="stallwise-probe-") as name:
        folder = Path(name)
        _run(probe, folder, progress)
    return read_machine(probe.out) if probe.node_rank == 0 else None


def _check(probe: LinkProbe) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingFeatureError("Probing needs PyTorch, which is not installed here: pip install 'stallwise[torch]'")
    if probe.node_rank != 0:
        return
    # Before a minute is spent on measuring.
    if probe.out.is_dir():
        raise InputError(f"{probe.out} is a folder. Give the name of a file with -o.")
    make_folder(probe.out.parent)
    if not os.access(probe.out.parent, os.W_OK):
        raise InputError(f"{probe.out} cannot be written: no permission for its folder. Choose another with -o.")


def _run(probe: LinkProbe, folder: Path, progress: Callable[[Progress], None]) -> None:
    adopt_orphans()
    not_ours = [process.pid for process in descendants()]
    with _terminate_interrupts(), (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            probe.command(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            _stay_with(job, probe, folder, progress)
        finally:
            end_all(descendants(besides=not_ours))
            job.wait()
    if job.returncode:
        raise InputError(_why(folder))


def _stay_with(
    job: "subprocess.Popen[bytes]", probe: LinkProbe, folder: Path, progress: Callable[[Progress], None]
) -> None:
    began_s = time.monotonic()
    seen: Progress | None = None
    while job.poll() is None:
        time.sleep(_POLL_S)
        now = _progress(folder)
        if now != seen and now is not None:
            progress(now)
        seen = now
        spent_s = time.monotonic() - began_s
        if seen is None and spent_s > probe.join_s:
            raise InputError(
                f"The ranks did not find each other within {probe.join_s:.0f} s. Start the same command on every "
                "node, with the address of node 0, and check that its port can be reached."
            )
        if spent_s > probe.join_s + probe.max_s + _SLACK_S:
            raise InputError(
                "The ranks stopped exchanging data before the probe was over. Check the link between the nodes; "
                "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the interface to use."
            )


def _progress(folder: Path) -> Progress | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / PROGRESS_NAME).read_bytes(), type=Progress)
    return None


def _why(folder: Path) -> str:
    """The first sentence a rank left, or the last error in the log."""
    with contextlib.suppress(OSError):
        return (folder / ERROR_NAME).read_text()
    lines = (folder / "log").read_text(errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"^(?:\[.*?\]:)?[\w.]*(?:Error|Exception)\b", line)]
    return f"The ranks could not be started: {(errors or lines or ['no reason given'])[-1].strip()}"


@contextlib.contextmanager
def _terminate_interrupts() -> Iterator[None]:
    """SIGTERM ends a probe as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
