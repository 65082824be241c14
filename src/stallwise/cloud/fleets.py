"""Every fleet that can be rented: instance type × GPUs used of each machine × machines, as columns.

Speed depends on an instance type, not on where it stands or what it costs there; so types that are alike in all that
matters are one *shape*, and offers are joined to shapes afterwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from stallwise.cloud.compute import GpuTime, gpu_time, precision_on
from stallwise.cloud.subject import Subject
from stallwise.errors import InputError
from stallwise.hardware.instance import Instance, gpu_link_bytes_per_s
from stallwise.hardware.machine import MachineRecord
from stallwise.model.calibrate import OwnLinks
from stallwise.model.fabric import NCCL, Fabric
from stallwise.record.against import Against, against
from stallwise.record.prediction import link_of_gpu
from stallwise.record.setup import Asked, fabric_of

Numbers = npt.NDArray[np.int64]

MAX_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Instance types that are alike: what a step on them depends on."""

    instance: Instance
    """One of them."""
    time: GpuTime
    fabric: Fabric
    cores: int
    memory_bytes: float
    storage_bytes_per_s: float | None
    """What one machine reads from disk or volume; None: no source gives it."""
    networked: bool
    """Whether the rate between machines is known."""
    linked: bool
    """Whether that between the GPUs of one is; without, one GPU of it can be used."""
    measured: bool = False
    """From a machine record."""
    known: Against = field(default_factory=Against)
    """What that record says against the one of the run's own machine."""

    @property
    def prepare(self) -> float:
        """How many times as long a core takes for a sample as one of the run's machine; 1 where nobody measured it."""
        return self.known.decode or 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleets:
    """Columns: shape, GPUs used of each machine, machines."""

    shapes: tuple[Shape, ...]
    shape: Numbers
    used: Numbers
    nodes: Numbers

    @property
    def gpus(self) -> Numbers:
        """In all."""
        return self.used * self.nodes

    def __len__(self) -> int:
        return len(self.shape)

    def take(self, chosen: npt.NDArray[np.bool_]) -> "Fleets":
        """Only those."""
        return replace(self, shape=self.shape[chosen], used=self.used[chosen], nodes=self.nodes[chosen])


def shapes_of(
    subject: Subject,
    instances: Iterable[Instance],
    machines: Mapping[str, MachineRecord],
    here: MachineRecord | None = None,
) -> tuple[tuple[Shape, ...], dict[tuple[str, str], int], dict[str, str]]:
    """Shapes; which shape each (cloud, instance type) has; and what could not be judged, with why, by GPU name.

    `here` is the record of the run's own machine, against which those of `machines` are held.
    """
    times: dict[str, GpuTime] = {}
    unjudged: dict[str, str] = {}
    found: dict[tuple[object, ...], Shape] = {}
    number: dict[tuple[object, ...], int] = {}
    of_type: dict[tuple[str, str], int] = {}
    for instance in instances:
        gpu = instance.gpu
        if gpu.name not in times:
            try:
                times[gpu.name] = gpu_time(subject, gpu)
            except InputError as error:
                unjudged.setdefault(gpu.name, str(error))
                continue
        key = (*_key(instance), instance.name if instance.name in machines else "")
        if key not in found:
            found[key] = _shape(subject, instance, times[gpu.name], machines.get(instance.name), here)
            number[key] = len(number)
        of_type[instance.cloud, instance.name] = number[key]
    return tuple(found.values()), of_type, unjudged


def fleets_of(shapes: Sequence[Shape], subject: Subject, *, max_nodes: int) -> Fleets:
    """All of them: powers of two of a machine's GPUs and all of them, on 1 to `max_nodes` machines."""
    rows = []
    for number, shape in enumerate(shapes):
        whole = shape.instance.gpu_count if shape.linked and subject.exchanges else 1
        for used in sorted({2**i for i in range(whole.bit_length()) if 2**i <= whole} | {whole}):
            nodes = max_nodes if shape.networked and subject.exchanges else 1
            rows.append((number, used, nodes))
    counts = np.array([row[2] for row in rows], dtype=np.int64)
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    node = np.concatenate([np.arange(1, n + 1) for n in counts]) if len(counts) else np.zeros(0, dtype=np.int64)
    return Fleets(
        shapes=tuple(shapes),
        shape=np.repeat(table[:, 0], counts),
        used=np.repeat(table[:, 1], counts),
        nodes=node.astype(np.int64),
    )


def _key(instance: Instance) -> tuple[object, ...]:
    network = instance.network.bytes_per_s if instance.network else None
    return (
        instance.gpu.name,
        instance.gpu_count,
        gpu_link_bytes_per_s(instance),
        network,
        instance.vcpus,
        instance.memory_bytes,
        _storage_bytes_per_s(instance),
    )


def _shape(
    subject: Subject, instance: Instance, time: GpuTime, record: MachineRecord | None, here: MachineRecord | None
) -> Shape:
    asked = Asked(instance=instance, machine=record, machine_name=f"{instance.name}'s machine record" if record else "")
    if gpu_link_bytes_per_s(instance) is None and instance.gpu_count > 1 and record is None:
        # Nobody lists the link inside: what the GPU itself has.
        asked = replace(asked, link_bytes_per_s=link_of_gpu(instance.gpu))
    fabric = fabric_of(subject.job, asked, OwnLinks(), instance.gpu_count)
    disk = record.disk_read_bytes_per_s if record is not None else None
    known = Against()
    if record is not None and here is not None:
        known = against(record, here, precision_on(subject, instance.gpu))
    host = record.hosts[0] if record is not None and record.hosts else None
    return Shape(
        instance=instance,
        time=time if known.compute is None else gpu_time(subject, instance.gpu, known),
        # GPUs of a cloud talk by NCCL, whatever the run used.
        fabric=replace(fabric, algorithms=NCCL),
        cores=(host.cores if host else None) or instance.vcpus,
        memory_bytes=float((host.memory_bytes if host else None) or instance.memory_bytes),
        storage_bytes_per_s=disk or _storage_bytes_per_s(instance),
        networked=fabric.between is not None,
        linked=instance.gpu_count == 1 or fabric.inside is not None,
        measured=record is not None,
        known=known,
    )


def _storage_bytes_per_s(instance: Instance) -> float | None:
    """Local disks where their rate is listed, else the volumes'."""
    storage = instance.storage
    rates = [rate for rate in (storage.local_read_bytes_per_s, storage.block_bytes_per_s) if rate]
    return max(rates) if rates else None
