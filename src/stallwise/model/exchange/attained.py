"""What an all-reduce attains of a listed rate inside a machine, by link class and number of GPUs.

A ring sends every byte through each of its hops once, so it goes as fast as its narrowest hop. Of the listed rate of
that hop in one direction it attains a fraction of the class, less where GPUs pass through the same memory:

    nvlink   NVLink through switches or a mesh        rho
    bridge   an NVLink bridge between two cards       rho
    peer     PCIe, from card to card directly         rho (n/2)^-gamma
    host     PCIe, through the memory of the host     rho (n/2)^-gamma

rho and gamma are fitted on public all-reduce times (`fitting/all_reduces.csv`); rho is at most
1 and gamma not negative, so no attained rate is above the listed one. The message size enters by the start-up time of a
ring's rounds (`collectives`).
"""

import math
from collections.abc import Mapping

LINK_CLASSES = ("nvlink", "bridge", "peer", "host")
SHARED_CLASSES = ("peer", "host")
"""Those in which more GPUs leave less to each."""

ATTAINED_SOURCE = "published runs of nccl-tests (fitting/all_reduces.csv)"


def attained_fraction(link: str, streams: int, constants: Mapping[str, float]) -> float:
    """Return the part of the listed rate that a ring attains whose hop is one of `streams` through what they share.

    `constants` holds rho as `attained:CLASS` and gamma as `crowding:CLASS`.
    """
    crowding = constants.get(f"crowding:{link}", 0.0) if link in SHARED_CLASSES else 0.0
    return min(1.0, constants[f"attained:{link}"] * math.pow(max(streams, 2) / 2, -crowding))
