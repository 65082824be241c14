"""GPUs as listed: dense peak rates, memory, links."""

from dataclasses import dataclass
from typing import Literal, get_args

from stallwise.hardware.link import Link
from stallwise.hardware.origin import Origin

Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU. Peak rates are dense (no structured sparsity), at boost clock, with FP32 accumulation."""

    name: str
    family: str
    """What people call it: every H100 variant has the family H100."""
    architecture: str | None
    compute_capability: str | None
    year: int | None
    memory_bytes: int
    """The advertised size, read as GiB: NVIDIA's "80 GB" is 80 GiB of chips (an H200 "141 GB" reports 143,771
    MiB). Error correction and the driver keep a little of it: up to 6 % on GDDR cards."""
    memory_bytes_per_s: float | None
    fp32_flop_per_s: float | None
    """Outside the tensor cores."""
    tf32_flop_per_s: float | None
    fp16_flop_per_s: float | None
    bf16_flop_per_s: float | None
    fp8_flop_per_s: float | None
    nvlink_bytes_per_s: float | None
    """One direction, all its links together: half of NVIDIA's bidirectional figure. 0: it has none."""
    nvlink_bridge_gpus: int | None
    """How many cards a bridge joins, where NVLink exists only as a bridge between cards."""
    host_link: Link | None
    """What the part supports; an instance may give it fewer lanes."""
    tdp_w: float | None
    sm_count: int | None
    origin: Origin
    note: str = ""


def peak_flop_per_s(gpu: Gpu, precision: Precision) -> float | None:
    """The dense peak for one precision, `None` where no source gives it."""
    rate: float | None = getattr(gpu, f"{precision}_flop_per_s")
    return rate


def plain_name(name: str) -> str:
    """The name without case, `-`, `_` and spaces, so that `h100 pcie` finds `H100-PCIe`."""
    return "".join(c for c in name.lower() if c not in "-_ ")
