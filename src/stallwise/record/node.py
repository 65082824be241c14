"""What the machine of a job has: CPUs, memory and GPUs, read without root and without importing torch.

Each reader answers `None` (or an empty tuple) for what is absent. Programs run under a time limit, because a wedged
driver makes `nvidia-smi` hang.
"""

import csv
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from stallwise.run.manifest import NodeRecord
from stallwise.units import MIB

_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """CPUs as this process may use them."""

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


def program_output(*command: str) -> str | None:
    """The program's stdout, or None when it is missing, fails or does not answer in time."""
    if shutil.which(command[0]) is None:
        return None
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return completed.stdout


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
    """Bytes of installed memory."""
    return int(psutil.virtual_memory().total)


_GPU_FIELDS = "index,name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.current"


def gpus() -> tuple[GpuFacts, ...]:
    """NVIDIA GPUs from `nvidia-smi`; empty without a driver."""
    table = program_output("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits")
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


def this_node(node: int) -> NodeRecord:
    """CPU, cores this job may use, memory and GPUs, as a run keeps them: no host name, nothing that names a person."""
    cpus = cpu()
    return NodeRecord(
        node=node,
        cpu_model=cpus.model,
        cores=max(1, int(cpus.usable)),
        memory_bytes=memory_bytes(),
        gpus=tuple(gpu.name for gpu in gpus()),
    )
