"""What this machine has beyond CPUs and GPUs (`record.node`): torch, networks, Slurm; and how much its cores share.

torch is asked in a process of its own, because a broken build can abort the interpreter that imports it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stallwise.record.node import program_output


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """The torch a training script started from this interpreter would get."""

    version: str
    cuda: str | None  # the toolkit it was built with; None for a CPU build
    gpus_visible: int
    backends: tuple[str, ...]  # torch.distributed's, of gloo, nccl, mpi


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """One interface that is up; `bit_per_s` is what the kernel reports, None for virtual ones that report none."""

    name: str
    bit_per_s: float | None


def disk_free_bytes(folder: Path) -> int:
    """Free space on the file system that holds `folder`."""
    return shutil.disk_usage(folder).free


def nvlink() -> bool | None:
    """Whether GPUs of this machine are joined by NVLink; None where the driver cannot say."""
    matrix = program_output("nvidia-smi", "topo", "-m")
    return None if matrix is None else any(cell[:2] == "NV" and cell[2:].isdigit() for cell in matrix.split())


def networks() -> tuple[NetworkFacts, ...]:
    """Interfaces that are up, without the loopback."""
    return tuple(
        NetworkFacts(name=name, bit_per_s=facts.speed * 1e6 if facts.speed > 0 else None)
        for name, facts in sorted(psutil.net_if_stats().items())
        if facts.isup and name != "lo"
    )


_TORCH_PROGRAM = """
import json, torch, torch.distributed as d
names = [n for n in ("gloo", "nccl", "mpi") if d.is_available() and getattr(d, f"is_{n}_available")()]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "backends": names,
                  "gpus_visible": torch.cuda.device_count()}))
"""


def torch(python: str = sys.executable) -> TorchFacts | None:
    """The torch of `python`; None when it is absent or does not import."""
    reply = program_output(python, "-W", "ignore", "-c", _TORCH_PROGRAM)
    if reply is None:
        return None
    facts: dict[str, Any] = json.loads(reply)
    return TorchFacts(
        version=facts["version"],
        cuda=facts["cuda"],
        gpus_visible=facts["gpus_visible"],
        backends=tuple(facts["backends"]),
    )


def slurm() -> str | None:
    """Slurm's version as `sinfo` reports it; None without Slurm."""
    reply = program_output("sinfo", "--version")
    return reply.strip().removeprefix("slurm ") if reply else None


def counts_runqueue_wait() -> bool:
    """Whether the kernel reports how long a process waits for a core (`schedstat`)."""
    try:
        return len(Path("/proc/self/schedstat").read_text().split()) == 3
    except OSError:
        return False


def drops_page_cache() -> bool:
    """Whether a file's cached pages can be dropped without root (`posix_fadvise`)."""
    return hasattr(os, "posix_fadvise")


_CROWDING_WORK_S = 0.3
_CROWDING_ROUNDS = 3
_CROWDING_MAX_PROCESSES = 64

# Unpacking and summing bytes, about what preparing samples does. Each process works for a while for every line on its
# stdin, and prints its rate.
_CROWDING_PROGRAM = f"""
import random, sys, time, zlib
packed = zlib.compress(random.Random(0).randbytes(1 << 15) * 8)
print("ready", flush=True)
for _ in sys.stdin:
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < {_CROWDING_WORK_S}:
        sum(zlib.decompress(packed)[::16])
        done += 1
    print(done / (time.perf_counter() - began), flush=True)
"""


def measure_crowding(cores: int) -> float:
    """How many times as long work takes on a core while all others work too; 1 with one core or where it fails.

    Cores share caches, memory and often their arithmetic (two threads of one core look like two cores), so twice as
    many busy cores do less than twice the work. Measured in a second: the same work in one process alone, then in one
    process on every core at once.
    """
    count = min(cores, _CROWDING_MAX_PROCESSES)
    if count < 2:
        return 1.0
    try:
        with _crowd(count) as processes:
            alone, together = [], []
            for _ in range(_CROWDING_ROUNDS):
                alone += _rates(processes[:1])
                together += _rates(processes)
    except (OSError, ValueError):
        return 1.0
    return max(1.0, max(alone) * len(together) / sum(together))


@contextlib.contextmanager
def _crowd(count: int) -> Iterator[list["subprocess.Popen[str]"]]:
    command = [sys.executable, "-I", "-c", _CROWDING_PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            process.stdout.readline()
        yield processes


def _rates(processes: list["subprocess.Popen[str]"]) -> list[float]:
    for process in processes:
        print("go", file=process.stdin, flush=True)
    return [float(process.stdout.readline()) for process in processes if process.stdout is not None]
