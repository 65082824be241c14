"""Instance types: what one rents by the hour."""

import datetime as dt
from dataclasses import dataclass

from stallwise.hardware.gpu import Gpu
from stallwise.hardware.link import Link
from stallwise.hardware.origin import Confidence, Origin
from stallwise.hardware.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance type of one cloud. `None`: no source gives it."""

    cloud: str
    name: str
    gpu: Gpu
    gpu_count: int
    vcpus: int
    memory_bytes: int
    cpu_arch: str | None
    """`x86_64` or `arm64`: a training image must fit."""
    coremark_iter_per_s: float | None
    """CoreMark of the whole instance as measured by ec2instances.info."""
    network: Link | None
    gpu_link: Link | None
    """Between the GPUs of one machine; kind `single` where there is one GPU."""
    host_link: Link | None
    """Between each GPU and the host."""
    storage: Storage
    retired_on: dt.date | None
    """The day it was withdrawn, or last seen in the price lists; `None`: on sale."""
    origin: Origin
    """For GPUs, vCPUs and memory."""
    network_storage_confidence: Confidence | None
    links_confidence: Confidence | None


def gpu_memory_bytes(instance: Instance) -> int:
    """Memory of all its GPUs together."""
    return instance.gpu.memory_bytes * instance.gpu_count


def gpu_link_bytes_per_s(instance: Instance) -> float | None:
    """Listed rate between GPUs, one direction: NVLink's, else that of the PCIe link to the host."""
    link = instance.gpu_link
    if link is None or link.kind == "single":
        return None
    if link.bytes_per_s is not None:
        return link.bytes_per_s
    return instance.host_link.bytes_per_s if instance.host_link and link.kind.startswith("pcie") else None
