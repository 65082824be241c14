"""Counts what every image network of timm does in one forward pass: `python -m fitting.count_networks > image.csv`.

Needs timm (1.0.30 was used; not among the project's dependencies) and torch. Networks run on tensors without data, one
image at the size each was made for; every operator that starts a kernel is seen by a dispatch mode and counted by kind.
Attention is counted as separate operators, not as one fused kernel.
"""

import csv
import sys
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from stallwise.workload.zoo import ELEMENT_KINDS, MAC_KINDS

# Operators that move no data.
FREE = frozenset(
    [
        "view",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "detach",
        "alias",
        "unbind",
        "as_strided",
        "reshape",
        "chunk",
        "_reshape_alias",
        "lift_fresh",
        "empty",
        "unfold",
        "narrow",
        "empty_like",
        "new_empty",
        "arange",
        "zeros",
        "ones",
        "full",
        "new_zeros",
        "scalar_tensor",
        "is_same_size",
        "view_as_real",
        "sym_size",
        "empty_strided",
        "movedim",
        "diagonal",
        "linspace",
        "eye",
    ]
)
MOVED = frozenset(
    [
        "clone",
        "copy_",
        "cat",
        "_to_copy",
        "roll",
        "im2col",
        "col2im",
        "constant_pad_nd",
        "index",
        "stack",
        "index_select",
        "repeat",
        "unfold_backward",
        "gather",
        "flip",
        "index_put_",
        "pixel_shuffle",
        "reflection_pad2d",
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "max_pool2d_with_indices",
        "avg_pool2d",
        "mean",
        "adaptive_avg_pool2d",
        "_adaptive_avg_pool2d",
        "sum",
        "var_mean",
        "std_mean",
        "amax",
        "max",
        "linalg_vector_norm",
        "var",
        "std",
        "cumsum",
        "norm",
    ]
)
CURVED = frozenset(
    [
        "gelu",
        "silu",
        "hardswish",
        "sigmoid",
        "hardsigmoid",
        "tanh",
        "mish",
        "exp",
        "erf",
        "elu",
        "softplus",
        "pow",
        "sqrt",
        "rsqrt",
    ],
)
NARROW = 64
"""Channels below which a product fills no matrix unit."""


class Counter(TorchDispatchMode):
    """Sums by kind over everything that runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = dict.fromkeys(MAC_KINDS, 0)
        self.elements = dict.fromkeys(ELEMENT_KINDS, 0)
        self.narrow = 0
        self.kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in FREE:
            return out
        self.kernels += 1
        if name in ("convolution", "_convolution"):
            self._convolution(args[0], args[1], args[8], out)
        elif name in ("mm", "addmm", "bmm", "baddbmm"):
            self._product(name, *args[-2:], out)
        else:
            self.elements[_kind(name)] += _moved(name, args, out)
        return out

    def _convolution(self, image: torch.Tensor, weight: torch.Tensor, groups: int, out: torch.Tensor) -> None:
        single = weight[0, 0].numel() == 1
        kind = "pointwise" if single else "conv"
        if groups > 1:
            kind = "depthwise" if weight.shape[1] == 1 else "grouped"
        macs = out.numel() * weight.numel() // weight.shape[0]
        self._add(kind, macs, image.numel() + out.numel(), min(weight.shape[1], weight.shape[0] // groups))

    def _product(self, name: str, one: torch.Tensor, other: torch.Tensor, out: torch.Tensor) -> None:
        if name in ("mm", "addmm"):
            macs = one.shape[0] * one.shape[1] * other.shape[1]
            self._add("gemm", macs, one.numel() + out.numel(), min(other.shape))
        else:
            elements = one.numel() + other.numel() + out.numel()
            self._add("attention", out.numel() * one.shape[2], elements, min(other.shape[1:]))

    def _add(self, kind: str, macs: int, elements: int, width: int) -> None:
        self.macs[kind] += macs
        self.elements[kind] += elements
        if kind != "depthwise" and width < NARROW:
            self.narrow += macs


def _kind(name: str) -> str:
    if "softmax" in name:
        return "attention"
    if "batch_norm" in name:
        return "batch_norm"
    if any(word in name for word in ("layer_norm", "group_norm", "rms_norm")):
        return "layer_norm"
    if name in MOVED:
        return "moved"
    return "curved" if name.rstrip("_") in CURVED else "straight"


def _moved(name: str, args: Any, out: Any) -> int:
    """Elements read and written; of a normalisation only the image."""
    if "norm" in name and isinstance(args[0], torch.Tensor) and "linalg" not in name:
        return 2 * args[0].numel()
    return sum(t.numel() for t in (*tree_flatten(args)[0], *tree_flatten(out)[0]) if isinstance(t, torch.Tensor))


def count(name: str) -> dict[str, object]:
    """One row of the table."""
    import timm

    with torch.device("meta"):
        network = timm.create_model(name, pretrained=False).eval()
    size = network.default_cfg["input_size"]
    counter = Counter()
    with torch.no_grad(), counter:
        network(torch.empty((1, *size), device="meta"))
    parameters = list(network.parameters())
    return {
        "network": name,
        "image_size": size[-1],
        "parameters_m": _three(sum(p.numel() for p in parameters) / 1e6),
        "tensors": len(parameters),
        "kernels": counter.kernels,
        **{f"{kind}_macs_m": _three(macs / 1e6) for kind, macs in counter.macs.items()},
        "narrow_macs_m": _three(counter.narrow / 1e6),
        **{f"{kind}_elements_k": _three(elements / 1e3) for kind, elements in counter.elements.items()},
    }


def _three(value: float) -> str:
    """Three digits, never as a power of ten."""
    return f"{float(f'{value:.3g}'):.10g}"


def main() -> None:
    """Every network timm knows, also under the names it has given up."""
    import timm
    from timm.layers import set_fused_attn
    from timm.models import _registry

    warnings.simplefilter("ignore")
    set_fused_attn(enable=False)
    writer: csv.DictWriter[str] | None = None
    for name in sorted({*timm.list_models(), *(n for n in _registry._deprecated_models if "." not in n)}):
        try:
            row = count(name)
        except (RuntimeError, NotImplementedError) as error:
            print(f"{name}: left out ({error})", file=sys.stderr)
            continue
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
