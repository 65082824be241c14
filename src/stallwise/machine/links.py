"""The link probe: starts its ranks under torchrun, waits for them, and fits a link to their samples.

The ranks' own output goes to a log: torchrun prints a page for each rank that fails, and we say it in one sentence.
"""

import contextlib
import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stallwise.errors import InputError, missing_torch
from stallwise.hardware.machine import (
    FitRecord,
    LineRecord,
    LinkRecord,
    MachineRecord,
    PointRecord,
    Scope,
    read_machine,
)
from stallwise.model.exchange.linkfit import Fit, fit_segments
from stallwise.model.statistics.intervals import median_of_block_means
from stallwise.record.processes import adopt_orphans, descendants, die_with_parent, end_all, interruptible
from stallwise.run.atomic import make_folder

Samples = dict[int, list[float]]
"""Seconds of one all-reduce by size in bytes, one per round."""


def scopes(node_of: Sequence[int]) -> dict[Scope, list[list[int]]]:
    """The groups of ranks to measure, given the node of each rank; the groups of a scope run at the same time."""
    nodes = [[rank for rank, node in enumerate(node_of) if node == number] for number in sorted(set(node_of))]
    several = [ranks for ranks in nodes if len(ranks) > 1]
    if len(nodes) == 1:
        return {"inside": nodes}
    if not several:
        return {"between": [sorted(ranks[0] for ranks in nodes)]}
    return {
        "inside": several,
        "between": [sorted(ranks[0] for ranks in nodes)],
        "all": [list(range(len(node_of)))],
    }


def link_record(members: Sequence[Samples], *, scope: Scope, ranks: int, nodes: int, backend: str) -> LinkRecord:
    """Points and fit of one link; a sample took as long as on its slowest rank."""
    slowest = {size: [max(times) for times in zip(*(m[size] for m in members), strict=True)] for size in members[0]}
    points = tuple(_point(size, times) for size, times in sorted(slowest.items()))
    fit = fit_segments([(point.size_bytes, point.time_s) for point in points], [_error(point) for point in points])
    return LinkRecord(scope=scope, ranks=ranks, nodes=nodes, backend=backend, points=points, fit=_fit_record(fit))


def _point(size_bytes: int, times_s: Sequence[float]) -> PointRecord:
    interval = median_of_block_means(times_s)
    return PointRecord(
        size_bytes=size_bytes,
        time_s=interval.value,
        low_s=interval.low if math.isfinite(interval.low) else None,
        high_s=interval.high if math.isfinite(interval.high) else None,
        repeats=len(times_s),
    )


def _error(point: PointRecord) -> float:
    """Relative standard error from the width of the interval; without one, as vague as a point can be."""
    if point.low_s is None or point.high_s is None:
        return 1.0
    return (point.high_s - point.low_s) / (2 * 1.96 * point.time_s)


def _fit_record(fit: Fit) -> FitRecord:
    cost = fit.cost
    return FitRecord(
        small=LineRecord(latency_s=cost.small.latency_s, s_per_byte=cost.small.s_per_byte),
        large=LineRecord(latency_s=cost.large.latency_s, s_per_byte=cost.large.s_per_byte),
        break_bytes=cost.break_bytes,
        low=min(1.0, fit.low),
        high=max(1.0, fit.high),
    )


PROGRESS_NAME = "progress.json"
"""In the launcher's folder: the progress of the node's first rank."""
ERROR_NAME = "error.txt"
"""In the launcher's folder: why the first failing rank of the node failed."""

_POLL_S = 0.1
_SLACK_S = 60.0


class ProbeProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks are doing; `done` is the fraction of the time budget that is spent."""

    doing: str
    done: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """What to measure and where the record goes. `torchrun` holds torchrun's own arguments."""

    torchrun: tuple[str, ...]
    node_rank: int = 0
    out: Path
    backend: str | None = None
    max_s: float = 45.0
    max_bytes: int
    join_s: float = 120.0

    def command(self, folder: Path) -> list[str]:
        """The ranks as a list of command-line arguments."""
        arguments = [sys.executable, "-m", "torch.distributed.run", *self.torchrun, "-m", "stallwise.machine.link_rank"]
        arguments += ["--out", str(self.out), "--max-time", str(self.max_s), "--max-bytes", str(self.max_bytes)]
        return [*arguments, "--folder", str(folder), *(["--backend", self.backend] if self.backend else [])]


def run_probe(probe: LinkProbe, progress: Callable[[ProbeProgress], None]) -> MachineRecord | None:
    """Measure; returns the record on node 0, None elsewhere. A KeyboardInterrupt leaves no process and no record."""
    _check(probe)
    with tempfile.TemporaryDirectory(prefix="stallwise-probe-") as name:
        folder = Path(name)
        _run(probe, folder, progress)
    return read_machine(probe.out) if probe.node_rank == 0 else None


def _check(probe: LinkProbe) -> None:
    if importlib.util.find_spec("torch") is None:
        raise missing_torch("Probing")
    if probe.node_rank != 0:
        return
    # Before a minute is spent on measuring.
    if probe.out.is_dir():
        raise InputError(f"{probe.out} is a folder. Give the name of a file.", fields=("out",))
    make_folder(probe.out.parent)
    if not os.access(probe.out.parent, os.W_OK):
        raise InputError(
            f"{probe.out} cannot be written: no permission for its folder. Choose another file.", fields=("out",)
        )


def _run(probe: LinkProbe, folder: Path, progress: Callable[[ProbeProgress], None]) -> None:
    adopt_orphans()
    earlier = [process.pid for process in descendants()]
    with interruptible(), (folder / "log").open("wb") as log:
        job = subprocess.Popen(
            probe.command(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
        try:
            _wait_for(job, probe, folder, progress)
        finally:
            end_all(descendants(besides=earlier))
            job.wait()
    if job.returncode:
        raise InputError(_failure(folder))


def _wait_for(
    job: "subprocess.Popen[bytes]", probe: LinkProbe, folder: Path, progress: Callable[[ProbeProgress], None]
) -> None:
    began_s = time.monotonic()
    latest: ProbeProgress | None = None
    while job.poll() is None:
        time.sleep(_POLL_S)
        current = _progress(folder)
        if current != latest and current is not None:
            progress(current)
        latest = current
        spent_s = time.monotonic() - began_s
        if latest is None and spent_s > probe.join_s:
            raise InputError(
                f"The ranks did not find each other within {probe.join_s:.0f} s. Start the same command on every "
                "node, with the address of node 0, and check that its port can be reached."
            )
        if spent_s > probe.join_s + probe.max_s + _SLACK_S:
            raise InputError(
                "The ranks stopped exchanging data before the probe was over. Check the link between the nodes; "
                "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names the interface to use."
            )


def _progress(folder: Path) -> ProbeProgress | None:
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((folder / PROGRESS_NAME).read_bytes(), type=ProbeProgress)
    return None


def _failure(folder: Path) -> str:
    """The sentence that the first failing rank left, or the last error in the log."""
    with contextlib.suppress(OSError):
        return (folder / ERROR_NAME).read_text()
    lines = (folder / "log").read_text(errors="replace").splitlines()
    errors = [line for line in lines if re.match(r"^(?:\[.*?\]:)?[\w.]*(?:Error|Exception)\b", line)]
    return f"The ranks could not be started: {(errors or lines or ['no reason given'])[-1].strip()}"
