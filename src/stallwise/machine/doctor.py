"""The doctor: what this machine has, which features it supports, and what the others lack."""

import importlib.util
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import stallwise.machine.probe as probe
from stallwise._version import __version__
from stallwise.record.node import CpuFacts, GpuFacts, cpu, gpus, memory_bytes
from stallwise.sentences import Sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A feature of Stallwise, whether this machine supports it, and what to do where it does not."""

    name: str
    ready: bool
    missing: Sentence | None = None
    advice: Sentence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Hardware, software and supported features of this machine."""

    stallwise_version: str
    python: str
    system: str
    cpu: CpuFacts
    memory_bytes: int
    disk_free_bytes: int
    gpus: tuple[GpuFacts, ...]
    nvlink: bool | None
    networks: tuple[probe.NetworkFacts, ...]
    torch: probe.TorchFacts | None
    slurm: str | None
    features: tuple[Feature, ...]


def diagnose(folder: Path) -> Diagnosis:
    """Examine this machine; `folder` is where runs would be written."""
    gpu_facts = gpus()
    torch = probe.torch()
    slurm = probe.slurm()
    return Diagnosis(
        stallwise_version=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu(),
        memory_bytes=memory_bytes(),
        disk_free_bytes=probe.disk_free_bytes(folder),
        gpus=gpu_facts,
        nvlink=probe.nvlink() if len(gpu_facts) > 1 else None,
        networks=probe.networks(),
        torch=torch,
        slurm=slurm,
        features=features(
            torch=torch,
            gpu_count=len(gpu_facts),
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
    """Which features these facts allow, and what is missing for the others."""

    def need(name: str, ready: bool, missing: Sentence, advice: Sentence) -> Feature:
        if ready:
            return Feature(name=name, ready=True)
        return Feature(name=name, ready=False, missing=missing, advice=advice)

    visible = torch.gpus_visible if torch else 0
    return (
        Feature(name="catalog, compare, report", ready=True),
        need(
            "training in this interpreter",
            torch is not None,
            Sentence("torch.not-importable", "torch does not import"),
            Sentence("torch.install", "install it as https://pytorch.org says; Stallwise never does"),
        ),
        need(
            "training on GPUs",
            visible > 0,
            Sentence("gpus.not-found", "no GPU was found")
            if not gpu_count
            else Sentence(
                "gpus.not-visible", f"{gpu_count} GPU(s) found, torch sees {visible}", gpus=gpu_count, visible=visible
            ),
            Sentence("gpus.install", "runs on the CPU; for GPUs install a driver and a CUDA build of torch"),
        ),
        need(
            "traffic between GPUs of this machine",
            visible > 1,
            Sentence("gpus.fewer-than-two", "fewer than two GPUs"),
            Sentence("stall.absent", "its stall is shown as absent here"),
        ),
        need(
            "cold reads without root",
            drops_page_cache,
            Sentence("system.no-fadvise", "this system has no posix_fadvise"),
            Sentence("fetch.by-workers", "fetch and preparation are told apart by what the loader workers do"),
        ),
        need(
            "distinguishing CPU-queue wait from disk wait",
            counts_runqueue_wait,
            Sentence("system.no-schedstat", "the kernel gives no schedstat"),
            Sentence("waits.undivided", "both appear as blocked time"),
        ),
        need(
            "Slurm",
            slurm is not None,
            Sentence("slurm.not-found", "sinfo is not on the PATH"),
            Sentence("slurm.login-node", "run on a Slurm login node"),
        ),
        need(
            "sweeps over several machines",
            ray,
            Sentence("ray.not-importable", "ray does not import"),
            Sentence("ray.install", "pip install 'stallwise[ray]'"),
        ),
    )
