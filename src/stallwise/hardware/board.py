"""What the GPUs of one machine share: NVLink groups, PCIe switches and their up-links to the host.

An exchange among GPUs is a ring, so what counts is its narrowest hop (`narrowest_hop`). Copies of batches from the host
share an up-link (`copy_bytes_per_s`).
"""

from dataclasses import dataclass
from typing import Literal

from stallwise.hardware.gpu import Gpu, Link, Origin

LinkClass = Literal["nvlink", "bridge", "peer", "host"]
"""NVLink through switches or a mesh; an NVLink bridge; PCIe from card to card; PCIe through the memory of the host."""
_CONSUMER = ("RTX2", "RTX3", "RTX4", "RTX5", "GTX", "TITAN")
_WORKSTATION = ("RTX2000Ada", "RTX3500Ada", "RTX4000Ada", "RTX4500Ada", "RTX5000Ada")


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Which GPUs of a machine share what."""

    name: str
    nvlink: tuple[tuple[int, float], ...] = ()
    """Rate of one GPU in one direction by how many GPUs take part, ascending: on a mesh fewer GPUs have fewer links."""
    bridge: bool = False
    """Whether its NVLink is a bridge between cards."""
    peer_gpus: int = 1
    """GPUs that copy to each other over PCIe directly; 1: every copy passes through the memory of the host."""
    switch_gpus: int = 1
    """GPUs behind one up-link to the host."""
    uplink: Link | None = None
    """Between a switch and the host; None: as wide as the link of one GPU."""
    origin: Origin | None = None
    """None: the usual board of that kind of link, no fact about this machine."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The narrowest hop of a ring."""

    link: LinkClass
    bytes_per_s: float
    """Listed, one direction, after sharing an up-link."""
    streams: int
    """How many hops of the ring pass through what is shared at once."""


def narrowest_hop(board: Board, host_link: Link | None, gpus: int) -> Hop | None:
    """Find the narrowest hop of a ring through `gpus` of the board; None where its rate is not listed.

    Cards with peer access form groups whose inner hops pass a switch alone; one hop in each direction leaves each
    group. Without peer access every hop passes the up-link of its switch and the memory of the host.
    """
    for count, rate in board.nvlink:
        if gpus <= count:
            return Hop(link="bridge" if board.bridge else "nvlink", bytes_per_s=rate, streams=1)
    rate_or_none = host_link.bytes_per_s if host_link else None
    if rate_or_none is None:
        return None
    if gpus <= board.peer_gpus:
        return Hop(link="peer", bytes_per_s=rate_or_none, streams=gpus)
    uplink = (board.uplink.bytes_per_s if board.uplink else None) or rate_or_none
    sharers = 1 if board.peer_gpus > 1 else min(gpus, board.switch_gpus)
    streams = gpus if board.peer_gpus == 1 else -(-gpus // board.peer_gpus)
    return Hop(link="host", bytes_per_s=min(rate_or_none, uplink / sharers), streams=streams)


def copy_bytes_per_s(board: Board, host_link: Link | None, gpus: int) -> float | None:
    """Rate at which each of `gpus` is copied to from the host when all are at once; None where it is not listed."""
    rate = host_link.bytes_per_s if host_link else None
    if rate is None:
        return None
    uplink = (board.uplink.bytes_per_s if board.uplink else None) or rate
    return min(rate, uplink / min(gpus, board.switch_gpus))


def usual_board(kind: str, gpu: Gpu, link_bytes_per_s: float | None, gpus: int) -> Board:
    """Return the board that a kind of link between GPUs usually means.

    `pcie` says that peer access is not advertised, so copies pass through the host; a bridge joins as many cards as its
    GPU lists, and beyond them copies go over PCIe.
    """
    if kind.startswith("nvlink") and link_bytes_per_s:
        bridged = kind == "nvlink-bridge"
        joined = (gpu.nvlink_bridge_gpus or 2) if bridged else gpus
        return Board(name=kind, nvlink=((joined, link_bytes_per_s),), bridge=bridged, peer_gpus=gpus)
    return Board(name=kind, peer_gpus=1 if kind == "pcie" else gpus)


def board_of_gpu(gpu: Gpu, gpus: int) -> Board:
    """Return the usual board of a machine of which only the GPU is known: its own links, without bridges."""
    fabric = gpu.infinity_fabric_bytes_per_s or (None if gpu.nvlink_bridge_gpus else gpu.nvlink_bytes_per_s)
    if fabric:
        return usual_board("nvlink-switch", gpu, fabric, gpus)
    return usual_board("pcie" if is_consumer(gpu) else "pcie-p2p", gpu, None, gpus)


def is_consumer(gpu: Gpu) -> bool:
    """Whether it is a GeForce or Titan, whose driver allows no peer access over PCIe."""
    return gpu.name.startswith(_CONSUMER) and gpu.name not in _WORKSTATION
