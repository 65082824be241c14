"""FLOPs of the operators that do nearly all of them, from the shapes in a trace (`record_shapes=True`).

A multiply and an add count as two. Matrix products: 2·m·k·n; convolutions: 2·outputs·(channels of a group × kernel);
attention: 4·batch·heads·queries·keys·width. Of nested operators only one name is counted: attention that torch makes of
products (`…_math`) is counted by them.
"""

import json
import math
from collections.abc import Sequence

PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Operators and the place of their first factor."""
CONVOLUTION = "aten::convolution"
ATTENTION, OF_PRODUCTS = "aten::_scaled_dot_product", "_math"
_MOST = 2**62


def counts(name: str) -> bool:
    """Whether an operator of this name is counted."""
    fused = name.startswith(ATTENTION) and not name.endswith(OF_PRODUCTS)
    return name in PRODUCTS or name == CONVOLUTION or fused


def flops_of(name: str, shapes: object, values: object) -> float | None:
    """FLOPs of one call; None where its shapes do not say."""
    if not isinstance(shapes, list):
        return None
    sizes = [_shape(shape) for shape in shapes]
    try:
        if name in PRODUCTS:
            found = _product(sizes, PRODUCTS[name])
        elif name == CONVOLUTION:
            found = _convolution(sizes, values)
        else:
            (batch, heads, queries, width), keys = sizes[0], sizes[1][2]
            found = 4 * batch * heads * queries * keys * width
    except (ValueError, IndexError, TypeError, ZeroDivisionError, RecursionError):
        return None
    return float(found) if 0 < found < _MOST else None


def _product(sizes: list[tuple[int, ...]], first: int) -> int:
    left, right = sizes[first], sizes[first + 1]
    if len(left) < 2 or len(left) != len(right) or left[-1] != right[-2]:
        raise ValueError("no product")
    return 2 * math.prod(left) * right[-1]


def _convolution(sizes: list[tuple[int, ...]], values: object) -> int:
    """Inputs: image, weight, bias, stride, padding, dilation, whether transposed, output padding, groups."""
    if not isinstance(values, list) or str(values[6]) != "False":
        raise ValueError("its stride is not in the trace, or it is a transposed one")
    image, weight = sizes[0], sizes[1]
    stride, padding, dilation = (_numbers(values[i]) for i in (3, 4, 5))
    outputs = [
        (size + 2 * padding[i % len(padding)] - dilation[i % len(dilation)] * (weight[2 + i] - 1) - 1)
        // stride[i % len(stride)]
        + 1
        for i, size in enumerate(image[2:])
    ]
    return 2 * image[0] * math.prod(outputs) * math.prod(weight)


def _numbers(text: object) -> Sequence[int]:
    found = json.loads(str(text))
    if not isinstance(found, list) or not found or not all(type(n) is int for n in found):
        raise ValueError("no list of numbers")
    return found


def _shape(shape: object) -> tuple[int, ...]:
    if isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape):
        return tuple(shape)
    return ()
