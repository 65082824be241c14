"""A zoo of standard networks by what one forward pass does, so that a name is enough for a prediction.

Image networks (`zoo_data/image.csv`): the multiply-accumulates and the tensor elements of one image, by kind of
operator, counted by running each network of the timm package (1.0.30, Apache-2.0) on tensors without data
(`fitting/count_networks.py`). Networks that are known by shape or by totals alone are in `shapes`.
"""

import csv
import difflib
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAC_KINDS = ("conv", "pointwise", "grouped", "depthwise", "gemm", "attention")
"""Where multiply-accumulates happen: spatial, 1×1, grouped, depthwise convolutions; matrix products, batched ones."""
ELEMENT_KINDS = (
    *MAC_KINDS,
    "batch_norm",
    "layer_norm",
    "moved",
    "curved",
    "straight",
)
"""Where elements are read and written: the same, normalisation, copies and pooling, activations with a transcendental
function, additions and other cheap ones. `attention` includes the softmax."""

_DATA = Path(__file__).parent / "zoo_data"
_PREFIXES = ("tf_", "tv_", "gluon_", "ssl_", "swsl_", "ig_", "legacy_", "adv_", "ens_adv_", "jx_")
_ALIKE = 0.6  # likeness of two names, 0 to 1
_MANY = 20  # networks whose mean stands for one of which only the size is known
_SAME = 4  # letters two names must share at their beginning to count as similar


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageNetwork:
    """One forward pass of one image of `image_size` pixels a side."""

    name: str
    image_size: int
    parameters: float
    tensors: int
    """Parameter tensors."""
    kernels: int
    """Operators that start a kernel."""
    macs: Mapping[str, float]
    narrow_macs: float
    """Of them, in convolutions and products with fewer than 64 channels, which fill no matrix unit."""
    elements: Mapping[str, float]

    @property
    def all_macs(self) -> float:
        """Without attention, as profilers count them."""
        return sum(self.macs[kind] for kind in MAC_KINDS if kind != "attention")

    @property
    def outputs(self) -> float:
        """Elements that convolutions and products work on, halved: about what they write."""
        return sum(self.elements[kind] for kind in MAC_KINDS if kind != "attention") / 2


@cache
def image_networks() -> Mapping[str, ImageNetwork]:
    """Every counted image network by name."""
    with (_DATA / "image.csv").open(newline="", encoding="utf-8") as lines:
        return {row["network"]: _image_network(row) for row in csv.DictReader(lines)}


@cache
def similar_network(name: str, macs: float | None = None, outputs: float | None = None) -> ImageNetwork | None:
    """The counted network most like `name`.

    Itself; else the one whose name begins alike for longest (of several the one nearest in `macs`); else one with a
    similar name; else, where `macs` and `outputs` (elements that convolutions and products write) are known, the mean
    of those of like size and like work per element. None: nothing is known.
    """
    networks = image_networks()
    network = networks.get(name) or networks.get(_stem(name))
    if network is not None:
        return network
    stem = _stem(name)
    same = {other: _common(stem, _stem(other)) for other in networks}
    most = max(same.values())
    if most >= _SAME:
        return min((networks[n] for n, letters in same.items() if letters == most), key=lambda n: _away(n, macs))
    near = difflib.get_close_matches(stem, networks, n=1, cutoff=_ALIKE)
    if near:
        return networks[near[0]]
    if not (macs and outputs):
        return None
    near_in_size = sorted(networks.values(), key=lambda n: _away(n, macs) + 2 * _away(n, macs, outputs))
    return _mean(name, near_in_size[:_MANY], macs, outputs)


def _mean(name: str, networks: Sequence[ImageNetwork], macs: float, outputs: float) -> ImageNetwork:
    """A network that spreads its work over kinds as these do on average, at the size given."""
    count = len(networks)
    work = [macs / network.all_macs / count for network in networks]
    moved = [outputs / network.outputs / count for network in networks]
    return ImageNetwork(
        name=f"like {name}",
        image_size=round(statistics.median(network.image_size for network in networks)),
        parameters=statistics.median(network.parameters for network in networks),
        tensors=round(statistics.median(network.tensors for network in networks)),
        kernels=round(statistics.median(network.kernels for network in networks)),
        macs={k: sum(f * n.macs[k] for f, n in zip(work, networks, strict=True)) for k in MAC_KINDS},
        narrow_macs=sum(f * n.narrow_macs for f, n in zip(work, networks, strict=True)),
        elements={k: sum(f * n.elements[k] for f, n in zip(moved, networks, strict=True)) for k in ELEMENT_KINDS},
    )


def family(name: str) -> str:
    """The letters a name begins with, without where its weights come from: `tf_efficientnet_b4_ns` → `efficientnet`."""
    stem = _stem(name)
    return stem[: next((i for i, c in enumerate(stem) if not c.isalpha()), len(stem))]


def branch(name: str) -> str:
    """A finer family: the name up to its first underscore."""
    return _stem(name).split("_")[0]


def _stem(name: str) -> str:
    stem = name.lower().split(".")[0].strip()
    for prefix in _PREFIXES:
        stem = stem.removeprefix(prefix)
    return stem


def _common(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _away(network: ImageNetwork, macs: float | None, outputs: float | None = None) -> float:
    """Distance in size, or in work per element where `outputs` is given."""
    if not macs:
        return 0.0
    if outputs is None:
        return abs(math.log(network.all_macs / macs))
    return abs(math.log(network.all_macs / network.outputs / (macs / outputs)))


def _image_network(row: Mapping[str, str]) -> ImageNetwork:
    return ImageNetwork(
        name=row["network"],
        image_size=int(row["image_size"]),
        parameters=float(row["parameters_m"]) * 1e6,
        tensors=int(row["tensors"]),
        kernels=int(row["kernels"]),
        macs={kind: float(row[f"{kind}_macs_m"]) * 1e6 for kind in MAC_KINDS},
        narrow_macs=float(row["narrow_macs_m"]) * 1e6,
        elements={kind: float(row[f"{kind}_elements_k"]) * 1e3 for kind in ELEMENT_KINDS},
    )
