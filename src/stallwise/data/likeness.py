"""Whether jobs prepare the same thing: every function and object that makes a sample has a name and a digest.

A function is its code (bytecode, constants, names, also of functions inside), its defaults and what it closes over; a
`partial` its function and arguments; any other object its type and pickled state. What cannot be pickled is taken
part by part.
"""

import functools
import hashlib
import pickle
import types
from collections.abc import Iterator
from typing import Any

Fact = tuple[str, str, str]
"""What it is, its digest, and what to call it."""
_DEEPEST = 5


def fact(name: str, value: Any) -> Fact:
    """One thing that jobs must have in common."""
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value, 0):
        digest.update(len(part).to_bytes(8, "little") + part)
    return name, digest.hexdigest(), called(value)


def called(value: Any) -> str:
    """What a person would call it."""
    if isinstance(value, functools.partial):
        return f"partial of {called(value.func)}"
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value)
    named = value if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    yield called(value).encode()
    if isinstance(value, functools.partial):
        yield from _parts(value.func, depth + 1)
        for each in (*value.args, *sorted(value.keywords.items())):
            yield from _parts(each, depth + 1)
    elif isinstance(value, types.MethodType):
        yield from _parts(value.__func__, depth + 1)
        yield from _parts(value.__self__, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield from _code(value.__code__)
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        for each in (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items()), *cells):
            if depth < _DEEPEST:
                yield from _parts(each, depth + 1)
    elif not isinstance(value, (types.BuiltinFunctionType, type)):
        yield from _state(value, depth)


def _code(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            # Sets print in an order that differs from process to process.
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant).encode()


def _state(value: Any, depth: int) -> Iterator[bytes]:
    """What pickle makes of it; where one part of it cannot be pickled (a lambda), part by part."""
    try:
        yield pickle.dumps(value)
    except Exception:  # whatever a class's own way of pickling raises
        if depth >= _DEEPEST:
            return
        inside = value.items() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for each in (*inside, *sorted(getattr(value, "__dict__", {}).items())):
            yield from _parts(each, depth + 1)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
