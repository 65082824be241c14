"""Single fields of Kineto's events: numbers, types and shapes as different versions of torch write them."""

import msgspec

from stallwise.run.readers.device_trace import Gradient, Group
from stallwise.run.readers.kineto_events import Args, Event

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "unsigned char": 1, "signed char": 1, "long int": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_LONGEST = 4096
# A tensor of more elements than this is none; sums over all tensors of a trace stay within 63 bits.
_MOST_ELEMENTS = 2**40


def element_bytes(dtype: object) -> int | None:
    """Bytes of one number of a type as torch writes it: `Float`, `c10::BFloat16`, `float`."""
    return _ELEMENT_BYTES.get(str(dtype).removeprefix("c10::").lower())


def gradient_of(event: Event, ts: float) -> Gradient:
    """The gradient that autograd stored at this moment."""
    dims = None if event.args is None else decoded(event.args.dims)
    types = None if event.args is None else decoded(event.args.types)
    shape = dims[0] if isinstance(dims, list) and dims else None
    width = element_bytes(types[0]) if isinstance(types, list) and types else None
    return Gradient(ns(ts), tuple(shape) if isinstance(shape, list) and _product(shape) is not None else None, width)


def count_of(dims: object) -> int | None:
    """Elements of all tensors in `Input Dims`: `[[19618307]]`, or one level deeper for lists of tensors."""
    if not isinstance(dims, list) or not dims:
        return None
    first = dims[0]
    return _product(first) if isinstance(first, list) and first else None


def elements_of(value: object) -> int | None:
    """A number of elements as an event says it; None where no tensor has so many."""
    found = whole(value)
    return found if found is not None and 0 <= found < _MOST_ELEMENTS else None


def _product(shape: list[object]) -> int | None:
    """Elements of a tensor of this shape; None where it is none."""
    total = 1
    for n in shape:
        if type(n) is not int or not 0 <= n < _MOST_ELEMENTS or (total := total * n) >= _MOST_ELEMENTS:
            return None
    return total


def group_of(args: Args) -> Group | None:
    """The process group a collective says it ran in; lists of many ranks are written short, alike on all of them."""
    name, ranks = str(args.group or ""), str(args.group_ranks or "")
    ranks = "" if ranks == "[]" else ranks
    return Group(name[:_LONGEST], ranks[:_LONGEST]) if name or ranks else None


def ranks_of(groups: object) -> tuple[tuple[int, ...], ...]:
    """Ranks of each process group that the file's header lists (`pg_config`)."""
    found = []
    for group in groups if isinstance(groups, list) else ():
        ranks = group.get("ranks") if isinstance(group, dict) else None
        if isinstance(ranks, list) and ranks and all(type(rank) is int for rank in ranks):
            found.append(tuple(ranks))
    return tuple(found)


def decoded(raw: msgspec.Raw) -> object:
    """A field that is decoded only where it is used; None where there is none."""
    text = bytes(raw)
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def ns(micros: float) -> int:
    """Nanoseconds of microseconds."""
    return round(micros * 1000)


def bounded(value: int) -> int:
    """Within 63 bits: numbers here are names, so one beyond is as good as any other."""
    return max(-(2**62), min(2**62, value))


def whole(value: object) -> int | None:
    """As HolisticTraceAnalysis takes stream numbers: what `int()` takes, else none."""
    if value is None or type(value) is int:
        return value
    try:
        return int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
