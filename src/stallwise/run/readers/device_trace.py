"""What one rank did on its device, as arrays: the form in which traces of other profilers are taken in.

Times are nanoseconds on the rank's own clock. *Work* is anything with a stream: kernels, copies, fills, and waits of
the device for itself. Each piece knows when the processor asked for it (`launch_ns`) and in which step.
"""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

# numpy.typing says the same and costs a tenth of the time that reading a small trace takes.
Times = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Micros = np.ndarray[tuple[Any, ...], np.dtype[np.float64]]
Codes = np.ndarray[tuple[Any, ...], np.dtype[np.int32]]
Flags = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

NO_LAUNCH = np.iinfo(np.int64).min
"""`launch_ns` of work whose launch is not in the trace."""
NO_STEP = -1
NO_GROUP = -1


class Work(IntEnum):
    """What a piece of device work is, by HolisticTraceAnalysis' names of kernels."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2
    OTHER = 3


_COMMUNICATION = re.compile(r"^nccl.*Kernel")
_MEMORY = re.compile(r"(^Memcpy)|(^Memset)|(^dma)")
_NOT_COMPUTE = re.compile(r"(^nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")


@cache
def work_of(name: str) -> Work:
    """The kind of a kernel by its name, as HolisticTraceAnalysis tells it (`hta/utils/utils.py`)."""
    if _COMMUNICATION.match(name):
        return Work.COMMUNICATION
    if _MEMORY.match(name):
        return Work.MEMORY
    return Work.OTHER if _NOT_COMPUTE.match(name) else Work.COMPUTE


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as a collective names it: its name and its ranks, as text."""

    name: str
    ranks: str


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Pieces of work in order of their begin. `name` and `stream` are indices into the names and stream numbers."""

    start_ns: Times
    end_ns: Times
    launch_ns: Times
    """When the call began that asked for it; `NO_LAUNCH` where none is in the trace."""
    kind: Codes
    name: Codes
    stream: Times
    bytes: Times
    """Moved or sent; -1 where unknown."""
    sync: Flags
    """A wait of the device for itself (cuda_sync), not work."""
    group: Codes
    """Of a collective: its process group, as an index into the trace's groups; `NO_GROUP` where it does not say."""
    ts_us: Micros
    dur_us: Micros
    """As they stand in the file."""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Step:
    """One step as torch's profiler marked it on the processor."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch on the processor: waiting for a batch, an optimizer step, a blocking call."""

    start_ns: int
    end_ns: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter's gradient at the moment autograd stored it."""

    at_ns: int
    shape: tuple[int, ...] | None
    element_bytes: int | None


@dataclass(frozen=True, slots=True)
class Call:
    """A collective as the script's process called it: the size that its kernel may not tell."""

    at_ns: int
    name: str
    elements: int | None
    element_bytes: int | None
    group_size: int | None = None
    group: Group | None = None

    @property
    def bytes(self) -> int | None:
        """Bytes handed in."""
        known = self.elements is not None and self.element_bytes is not None
        return (self.elements or 0) * (self.element_bytes or 0) if known else None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceTrace:
    """One rank. `rank` is None where the file does not say."""

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    gpus: tuple[str, ...]
    """The GPUs of its machine; empty where the file does not say, or where there are none."""
    work: DeviceWork
    names: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    """Process groups that collectives say they ran in."""
    members: tuple[tuple[int, ...], ...] = ()
    """Ranks of each process group this rank belongs to, as far as the file lists them."""
    steps: tuple[Step, ...]
    loader: tuple[Mark, ...] = ()
    optimizer: tuple[Mark, ...] = ()
    blocking: tuple[Mark, ...] = ()
    """Calls in which the processor waits for the device."""
    backward: tuple[Mark, ...] = ()
    """Autograd's own operators, merged where they touch."""
    gradients: tuple[Gradient, ...] = ()
    calls: tuple[Call, ...] = ()
    flops: tuple[tuple[int, float | None], ...] = ()
    """Moment and FLOPs of each product, convolution and attention; None where its shapes are not in the trace."""
    last_mark_us: float | None = None
    """The begin of the last step's mark, on the processor or the device, as it stands in the file."""
    fractional: bool = False
    """Whether times have digits below a microsecond."""
    on_processor: bool = False
    """No device in the trace: `work` is the processor's own operators."""
    notes: tuple[str, ...] = field(default=())
