"""GPUs as listed, the links between them, and where each fact comes from."""

import datetime as dt
from dataclasses import dataclass
from typing import Literal, get_args

Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[str, ...] = get_args(Confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The date of a fact, the keys of its sources (explained in `sources.csv`) and the confidence in it.

    *high*: read from a machine-readable source or checked against a second one. *medium*: one source, or from
    memory of vendor documentation. *low*: estimated, contradicted or known to be stale.
    """

    as_of: dt.date
    sources: tuple[str, ...]
    confidence: Confidence


# Bytes/s of one lane in one direction after line coding (8b/10b, 128b/130b; FLIT mode for generation 6).
_LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}

PCIE_GENERATIONS = tuple(_LANE_BYTES_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link and its rate in one direction.

    `kind` for GPU-to-GPU links: `single` (one GPU, no link needed), `pcie`, `pcie-p2p` (direct peer access is
    advertised), `nvlink-bridge` (pairs of cards), `nvlink-mesh`, `nvlink-switch`. For GPU-to-host: `pcie` or
    `nvlink-c2c`. For networks: the vendor's name (EFA, gVNIC, InfiniBand …).
    """

    kind: str
    bytes_per_s: float | None
    """One direction; for NVLink the sum over all links of one GPU. For a network: what is sustained."""
    burst_bytes_per_s: float | None = None
    """What a network reaches for minutes until its credits are spent."""
    generation: int | None = None
    lanes: int | None = None
    observed: bool | None = None
    """True where the lane count was seen on a real machine, False where it is what the part supports."""


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Rate of a PCIe link in one direction, after line coding and before packet overhead."""
    return _LANE_BYTES_PER_S[generation] * lanes


def pcie(generation: int, lanes: int, *, observed: bool | None = None) -> Link:
    """A PCIe link to the host."""
    return Link(
        kind="pcie",
        bytes_per_s=pcie_bytes_per_s(generation, lanes),
        generation=generation,
        lanes=lanes,
        observed=observed,
    )


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
    infinity_fabric_bytes_per_s: float | None = None
    """AMD's fabric between the GPUs of a node: one direction, all its links together. None: not known, or none."""
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
