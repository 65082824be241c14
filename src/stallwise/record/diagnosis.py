"""`stallwise doctor`: what this machine has, and which feature lacks what."""

import importlib.util
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import stallwise
from stallwise.record import probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something Stallwise does, whether this machine allows it, and what to do where it does not."""

    name: str
    ready: bool
    missing: str | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """This machine, as far as Stallwise is concerned."""

    stallwise_version: str
    python: str
    system: str
    cpu: probe.CpuFacts
    memory_bytes: int
    disk_free_bytes: int
    gpus: tuple[probe.GpuFacts, ...]
    nvlink: bool | None
    networks: tuple[probe.NetworkFacts, ...]
    torch: probe.TorchFacts | None
    slurm: str | None
    features: tuple[Feature, ...]


def diagnose(folder: Path) -> Diagnosis:
    """Read everything; `folder` is where runs would be written."""
    gpus = probe.gpus()
    torch = probe.torch()
    slurm = probe.slurm()
    return Diagnosis(
        stallwise_version=stallwise.__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=probe.cpu(),
        memory_bytes=probe.memory_bytes(),
        disk_free_bytes=probe.disk_free_bytes(folder),
        gpus=gpus,
        nvlink=probe.nvlink() if len(gpus) > 1 else None,
        networks=probe.networks(),
        torch=torch,
        slurm=slurm,
        features=features(
            torch=torch,
            gpu_count=len(gpus),
            slurm=slurm,
            ray=importlib.util.find_spec("ray") is not None,
            drops_page_cache=probe.drops_page_cache(),
            counts_runqueue_wait=probe.counts_runqueue_wait(),
        ),
    )


def features(
    *,
    torch: probe.TorchFacts | None,
    gpu_count: int,
    slurm: str | None,
    ray: bool,
    drops_page_cache: bool,
    counts_runqueue_wait: bool,
) -> tuple[Feature, ...]:
    """What can be done with these findings, and what is missing for the rest."""

    def need(name: str, ready: bool, missing: str, advice: str) -> Feature:
        if ready:
            return Feature(name=name, ready=True)
        return Feature(name=name, ready=False, missing=missing, advice=advice)

    visible = torch.gpus_visible if torch else 0
    return (
        Feature(name="catalog, compare, show", ready=True),
        need(
            "training in this interpreter",
            torch is not None,
            "torch does not import",
            "pip install 'stallwise[torch]'",
        ),
        need(
            "training on GPUs",
            visible > 0,
            "no GPU was found" if not gpu_count else f"{gpu_count} GPU(s) found, torch sees {visible}",
            "runs on the CPU; for GPUs install a driver and a CUDA build of torch",
        ),
        need(
            "traffic between GPUs of this machine",
            visible > 1,
            "fewer than two GPUs",
            "its stall is shown as absent here",
        ),
        need(
            "cold reads without root",
            drops_page_cache,
            "this system has no posix_fadvise",
            "fetch and preparation are told apart by what the loader workers do",
        ),
        need(
            "waiting for a core told from waiting for a disk",
            counts_runqueue_wait,
            "the kernel gives no schedstat",
            "both appear as blocked time",
        ),
        need("Slurm", slurm is not None, "sinfo is not on the PATH", "run on a Slurm login node"),
        need("sweeps over several machines", ray, "ray does not import", "pip install 'stallwise[ray]'"),
    )
