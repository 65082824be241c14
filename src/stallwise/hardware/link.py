"""Links: GPU to host, GPU to GPU, machine to machine. Rates are for one direction."""

from dataclasses import dataclass

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
