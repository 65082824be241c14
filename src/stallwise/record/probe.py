"""What this machine has, read without root and without importing torch into this process.

Each reader answers `None` (or an empty tuple) for what is absent. Programs are asked with a time limit, because
a wedged driver makes `nvidia-smi` hang, and torch is asked in a process of its own, because a broken build can
abort the interpreter that imports it.
"""

import csv
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from stallwise.units import MIB

_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """Processors as this process may use them."""

    model: str | None
    logical: int
    physical: int | None
    usable: float  # after affinity and the control group's quota

    @property
    def limited(self) -> bool:
        """Whether fewer cores may be used than the machine has."""
        return self.usable < self.logical


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU as the driver reports it."""

    index: int
    name: str
    memory_bytes: int
    driver: str
    pcie_generation: int | None
    pcie_lanes: int | None


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


def ask(*command: str) -> str | None:
    """The program's stdout, or None when it is missing, fails or does not answer in time."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return done.stdout


def cpu() -> CpuFacts:
    """Cores the machine has and cores this process may use."""
    logical = psutil.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    quota = cpu_quota()
    return CpuFacts(
        model=_cpu_model(),
        logical=logical,
        physical=psutil.cpu_count(logical=False),
        usable=min(allowed, quota) if quota is not None else float(allowed),
    )


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores granted by the control group of this process (version 2, then 1); None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return None if quota_us <= 0 else quota_us / period_us


def memory_bytes() -> int:
    """Installed memory."""
    return int(psutil.virtual_memory().total)


def disk_free_bytes(folder: Path) -> int:
    """Free space on the file system that holds `folder`."""
    return shutil.disk_usage(folder).free


_GPU_FIELDS = "index,name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.current"


def gpus() -> tuple[GpuFacts, ...]:
    """NVIDIA GPUs from `nvidia-smi`; empty without a driver."""
    table = ask("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits")
    return parse_gpus(table) if table else ()


def parse_gpus(table: str) -> tuple[GpuFacts, ...]:
    """One line per GPU in the order of `_GPU_FIELDS`; fields the driver does not know read `[N/A]`."""

    def number(text: str) -> int | None:
        return int(text) if text.isdigit() else None

    rows = [[cell.strip() for cell in row] for row in csv.reader(table.splitlines()) if row]
    return tuple(
        GpuFacts(
            index=int(index),
            name=name.removeprefix("NVIDIA "),
            memory_bytes=(number(memory_mib) or 0) * MIB,
            driver=driver,
            pcie_generation=number(generation),
            pcie_lanes=number(lanes),
        )
        for index, name, memory_mib, driver, generation, lanes in rows
    )


def nvlink() -> bool | None:
    """Whether GPUs of this machine are joined by NVLink; None where the driver cannot say."""
    matrix = ask("nvidia-smi", "topo", "-m")
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
    answer = ask(python, "-W", "ignore", "-c", _TORCH_PROGRAM)
    if answer is None:
        return None
    found: dict[str, Any] = json.loads(answer)
    return TorchFacts(
        version=found["version"],
        cuda=found["cuda"],
        gpus_visible=found["gpus_visible"],
        backends=tuple(found["backends"]),
    )


def slurm() -> str | None:
    """Slurm's version as `sinfo` reports it; None without Slurm."""
    answer = ask("sinfo", "--version")
    return answer.strip().removeprefix("slurm ") if answer else None


def counts_runqueue_wait() -> bool:
    """Whether the kernel reports how long a process waits for a core (`schedstat`)."""
    try:
        return len(Path("/proc/self/schedstat").read_text().split()) == 3
    except OSError:
        return False


def drops_page_cache() -> bool:
    """Whether a file's cached pages can be dropped without root (`posix_fadvise`)."""
    return hasattr(os, "posix_fadvise")
