"""Fingerprints of datasets and functions: jobs that share batches must have the same data and the same code.

A digest is made of what a value consists of, never of its identity in memory, the order of a set or the layout of a
pickle, so that two processes that built the same thing get the same digest:

- arrays and tensors: type, shape and bytes; a read-only `numpy.memmap` is the file's identity and the view of it
- lists, tuples, dicts, sets: their items
- functions of the user's: bytecode, constants, defaults, closure, and the globals that they use; of a module or a
  namespace only the attributes that they use
- classes of the user's: their methods and attributes; what is installed (site-packages, the standard library) is its
  name and version
- any other object: its class and the state that `pickle` would save. A class with a method `fingerprint_state()` says
  itself what it consists of.

What has no such state (an open file, a database connection, a generator) raises `OpaqueValueError`, which has the path.
"""

import copyreg
import ctypes
import dis
import enum
import functools
import hashlib
import marshal
import mmap
import os
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator, Mapping
from itertools import chain
from multiprocessing.sharedctypes import SynchronizedBase
from multiprocessing.synchronize import SemLock
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_NESTED = frozenset({list, tuple, dict})
_LOCKS = (type(threading.Lock()), type(threading.RLock()), SemLock)
_DEEPEST, _DEEPEST_PLAIN = 200, 16
_SHOWN = 120
# Attributes of a class that do not change what it does, or repeat what its methods say.
_SKIPPED = {"_abc_impl", "_member_map_", "_member_names_", "_value2member_map_", "_unhashable_values_"}
_FUNCTIONS = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


class OpaqueValueError(Exception):
    """A value that has no fingerprint; `path` leads to it from the value that was asked for."""

    def __init__(self, path: str, shown: str) -> None:
        super().__init__(f"{path or 'it'} ({shown}) cannot be compared between processes")
        self.path, self.shown = path, shown


def digest_of(value: Any, path: str = "") -> str:
    """Return the digest of a value; `OpaqueValueError` where it holds something that has none."""
    return Digester(path).digest(value).hex()


def display_name(value: Any) -> str:
    """Return a short text for messages: a plain value itself, else what kind of thing it is."""
    if isinstance(value, functools.partial):
        return f"partial of {display_name(value.func)}"
    if isinstance(value, (str, int, float, bool, type(None), os.PathLike)):
        return repr(value) if len(repr(value)) <= _SHOWN else f"{repr(value)[: _SHOWN - 1]}…"
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return f"{type(value).__name__} of {'x'.join(map(str, value.shape)) or '1'} {value.dtype}"
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    named = value if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def state_of(value: Any) -> tuple[Mapping[str, Any] | None, tuple[Any, ...]]:
    """Return an object's attributes by name, and the rest of what it consists of; None: it has no such attributes."""
    hook = getattr(type(value), "fingerprint_state", None)
    if hook is not None:
        own = hook(value)
        return (own, ()) if isinstance(own, dict) else (None, (own,))
    reduce = copyreg.dispatch_table.get(type(value))
    reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return None, (reduced,)
    make, args, state, items, pairs = (*reduced, *(None,) * 5)[:5]
    rest = (make, args, *(tuple(each) if each is not None else None for each in (items, pairs)))
    if isinstance(state, tuple) and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        state = {**(state[0] or {}), **(state[1] or {})}  # attributes in __dict__ and in slots
    if state is None or (type(state) is dict and all(type(name) is str for name in state)):
        return state or {}, rest
    return None, (*rest, state)


class Digester:
    """Digests of values that share parts: each object is looked at once."""

    def __init__(self, path: str = "") -> None:
        self._path: list[str] = [path]
        # Objects are kept alive, or another one might get the number of one that was made for a moment.
        self._done: dict[int, tuple[Any, bytes]] = {}
        self._active: dict[int, int] = {}

    def digest(self, value: Any) -> bytes:
        """Return the fingerprint of a value: 16 bytes."""
        if type(value) in _PLAIN:
            return _hashed(b"plain", _marshalled(value))
        done = self._done.get(id(value))
        if done is not None:
            return done[1]
        if id(value) in self._active:  # it holds itself
            return _hashed(b"cycle", str(len(self._active) - self._active[id(value)]).encode())
        if len(self._active) > _DEEPEST:
            raise self._opaque(value)
        self._active[id(value)] = len(self._active)
        try:
            result = _hashed(*self._parts(value))
        except (RecursionError, MemoryError):
            raise self._opaque(value) from None
        finally:
            del self._active[id(value)]
        self._done[id(value)] = (value, result)
        return result

    def at(self, name: str, value: Any) -> bytes:
        """Return the digest of a part, whose name is added to the path in errors."""
        self._path.append(name)
        result = self.digest(value)
        self._path.pop()
        return result

    def _opaque(self, value: Any) -> OpaqueValueError:
        return OpaqueValueError("".join(self._path).lstrip("."), display_name(value))

    def _parts(self, value: Any) -> Iterator[bytes]:
        kind = type(value)
        if kind in _NESTED and _is_plain(value):
            yield from (b"nested", _marshalled(value))
        elif kind in (list, tuple):
            yield kind.__name__.encode()
            yield from (self.at(f"[{number}]", each) for number, each in enumerate(value))
        elif kind is dict:
            yield b"dict"
            yield from (part for key, each in value.items() for part in (self.digest(key), self.at(f"[{key!a}]", each)))
        elif kind in (set, frozenset):
            yield kind.__name__.encode()
            yield from sorted(self.digest(each) for each in value)
        elif isinstance(value, np.ndarray):
            yield from self._array(value)
        elif isinstance(value, torch.Tensor):
            yield from self._tensor(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, (types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.MethodType)):
            yield from self._named(value)
        else:
            yield from self._object(value)

    def _named(self, value: Any) -> Iterator[bytes]:
        if isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, types.MethodType):
            yield from (b"method", self.digest(value.__func__), self.digest(value.__self__))
        elif isinstance(value, types.ModuleType):
            yield from (b"module", _module(value.__name__))
        else:
            yield from (b"builtin", display_name(value).encode())
            if not isinstance(value.__self__, (types.ModuleType, type(None))):
                yield self.digest(value.__self__)

    def _object(self, value: Any) -> Iterator[bytes]:
        yield from (b"object", self.digest(type(value)))
        if isinstance(value, _LOCKS):
            return
        if isinstance(value, enum.Enum):
            yield from (value.name.encode(), self.digest(value.value))
        elif isinstance(value, torch.Generator):
            yield self.digest(value.get_state())
        elif isinstance(value, SynchronizedBase):
            yield self.digest(value.get_obj())
        elif isinstance(value, (ctypes._SimpleCData, ctypes.Array, ctypes.Structure)):
            yield bytes(value)
        elif isinstance(value, (staticmethod, classmethod)):
            yield self.digest(value.__func__)
        elif isinstance(value, property):
            yield self.digest((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            yield self.digest(value.func)
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):  # lru_cache, numba
            yield self.digest(value.__wrapped__)
        else:
            yield from self._state(value)

    def _state(self, value: Any) -> Iterator[bytes]:
        try:
            attributes, rest = state_of(value)
        except Exception:  # a class's own pickling may raise anything
            raise self._opaque(value) from None
        yield self.digest(rest)
        for name in sorted(attributes or {}):
            yield from (name.encode(errors="replace"), self.at(f".{name}", (attributes or {})[name]))

    def _array(self, value: "np.ndarray[Any, Any]") -> Iterator[bytes]:
        yield from (b"array", repr(value.dtype).encode(), repr(value.shape).encode())
        file = _mapped_file(value)
        if file is not None:
            yield file
        elif value.dtype.hasobject:
            yield self.digest(value.tolist())
        else:
            yield _bytes_of(value)

    def _tensor(self, value: torch.Tensor) -> Iterator[bytes]:
        if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
            raise self._opaque(value)
        yield from (b"tensor", self.digest(type(value)), repr((value.dtype, tuple(value.shape))).encode())
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        yield _bytes_of(plain.numpy())

    def _class(self, value: type) -> Iterator[bytes]:
        yield from (b"class", _module(value.__module__), value.__qualname__.encode())
        if _is_installed(getattr(sys.modules.get(value.__module__), "__file__", None), value.__module__):
            return
        yield from (self.digest(base) for base in value.__bases__)
        if issubclass(value, enum.Enum):
            yield self.digest([(member.name, member.value) for member in value])
        for name, member in sorted(vars(value).items()):
            is_function = isinstance(member, _FUNCTIONS)
            is_left_out = (
                name in _SKIPPED or (name.startswith("__") and name.endswith("__")) or isinstance(value, enum.EnumMeta)
            )
            if is_function or not (
                is_left_out or isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType))
            ):
                yield from (name.encode(), self.at(f" → {name}", member))

    def _function(self, function: types.FunctionType) -> Iterator[bytes]:
        yield b"function"
        is_installed = _is_installed(function.__code__.co_filename, function.__globals__.get("__name__", ""))
        if is_installed:
            yield from (_module(function.__module__), function.__qualname__.encode())
        else:
            yield from self._code(function.__code__)
            yield self.digest((function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not filled yet
            yield self.at(f" → {name}", value)
        if not is_installed:
            for name, value in _globals_used(function.__code__, function.__globals__):
                yield from (name.encode(), self.at(f" → {name}", value))

    def _code(self, code: types.CodeType) -> Iterator[bytes]:
        yield from (b"code", code.co_code, repr((code.co_names, code.co_varnames, code.co_argcount)).encode())
        yield from (self.digest(constant) for constant in code.co_consts)


def _hashed(*parts: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _marshalled(value: Any) -> bytes:
    # Version 2 writes no references: what is equal is written alike, whether it is one object or several.
    return marshal.dumps(value, 2)


def _is_plain(value: Any) -> bool:
    """Whether a container holds only plain values and containers, a few levels deep; fast enough for a million rows."""
    level: list[Any] = [value]
    for _ in range(_DEEPEST_PLAIN):
        kinds = set(map(type, level))
        if not kinds & _NESTED:
            return kinds <= _PLAIN
        if not kinds <= _PLAIN | _NESTED:
            return False
        dicts = [each for each in level if type(each) is dict]
        rows = [each for each in level if type(each) is not dict and type(each) in _NESTED]
        level = [
            *chain.from_iterable(rows),
            *chain.from_iterable(dicts),
            *chain.from_iterable(d.values() for d in dicts),
        ]
    return False


def _bytes_of(array: "np.ndarray[Any, Any]") -> bytes:
    """Return the digest of an array's bytes in C order, without a copy where they lie so."""
    digest = xxhash.xxh3_128()
    if array.flags.c_contiguous:
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    elif array.nbytes < 1 << 26 or array.ndim < 2:
        digest.update(array.tobytes())
    else:
        for row in array:
            digest.update(_bytes_of(row))
    return digest.digest()


def _mapped_file(array: "np.ndarray[Any, Any]") -> bytes | None:
    """Return which part of which file a read-only memory map shows: it may be larger than what one wants to read."""
    mapped = getattr(array, "_mmap", None)
    if not isinstance(array, np.memmap) or not isinstance(mapped, mmap.mmap) or array.mode != "r" or not array.filename:
        return None
    facts = Path(array.filename).stat()
    start = int(array.__array_interface__["data"][0]) - int(
        np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    )
    first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # views have the offset of the whole map
    where = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, first, start, array.strides)
    return repr(where).encode()


_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")
_ROOTS = tuple(
    f"{os.path.realpath(folder)}{os.sep}"
    for folder in {*map(sysconfig.get_paths().get, _SCHEMES), str(Path(__file__).parents[2])}
    if folder is not None
)


@functools.cache
def _is_installed(file: str | None, module: str) -> bool:
    """Whether code was installed, rather than written for this job."""
    if module in ("__main__", "__mp_main__"):
        return False
    if file is None or file.startswith("<frozen "):
        return (
            module.partition(".")[0] in sys.stdlib_module_names
            or module in sys.builtin_module_names
            or file is not None
        )
    parts = Path(file).parts
    return os.path.realpath(file).startswith(_ROOTS) or "site-packages" in parts or "dist-packages" in parts


def _module(name: str) -> bytes:
    """Return a module's name, with the version of its package."""
    if name == "__mp_main__":
        name = "__main__"
    return f"{name} {getattr(sys.modules.get(name.partition('.')[0]), '__version__', '')}".encode()


def _globals_used(code: types.CodeType, namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads, in order; `config.size` is that attribute, not all of `config`.

    A search over hyper-parameters has them all in one global, and its jobs differ in some that no sample depends on.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for at, step in enumerate(steps):
        if step.opname == "IMPORT_FROM":
            yield from _imported(steps, at)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in namespace:
            yield _attribute(str(step.argval), namespace[step.argval], steps[at + 1 :])
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_used(constant, namespace)


def _imported(steps: list[dis.Instruction], at: int) -> Iterator[tuple[str, Any]]:
    """Yield what an import inside of a function brings, where the module is one of the user's."""
    name = next((step.argval for step in reversed(steps[:at]) if step.opname == "IMPORT_NAME"), "")
    module = sys.modules.get(name)
    if module is not None and not _is_installed(getattr(module, "__file__", None), name):
        yield f"{name}.{steps[at].argval}", getattr(module, steps[at].argval, None)


def _attribute(name: str, value: Any, steps: list[dis.Instruction]) -> tuple[str, Any]:
    """Follow attributes, and items by a constant key, as far as the code does and they are plain to see."""
    at = 0
    while at < len(steps):
        step = steps[at]
        if isinstance(value, types.ModuleType) and _is_installed(getattr(value, "__file__", None), value.__name__):
            break
        inside = getattr(value, "__dict__", {}) if not isinstance(value, type) else {}
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in inside:
            name, value, at = f"{name}.{step.argval}", inside[step.argval], at + 1
        elif type(value) is dict and _is_item(steps[at : at + 2]) and step.argval in value:
            name, value, at = f"{name}[{step.argval!a}]", value[step.argval], at + 2
        else:
            break
    return name, value


def _is_item(steps: list[dis.Instruction]) -> bool:
    """Whether the next instructions take an item by a constant key."""
    return (
        len(steps) == 2
        and steps[0].opname.startswith("LOAD_CONST")
        and isinstance(steps[0].argval, (str, int))
        and (steps[1].opname == "BINARY_SUBSCR" or (steps[1].opname == "BINARY_OP" and steps[1].argrepr == "[]"))
    )
