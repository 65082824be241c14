"""Which files of a folder are traces, of what kind each is, and reading them all."""

from collections.abc import Callable, Sequence
from pathlib import Path

from stallwise.errors import InputError
from stallwise.run.readers.chakra import looks_like_chakra, read_chakra, read_chakra_json
from stallwise.run.readers.device_trace import DeviceTrace
from stallwise.run.readers.kineto import read_kineto
from stallwise.run.readers.kineto_events import read_first

_SUFFIXES = (".json", ".json.gz", ".et", ".et.gz")
_LOOK_BYTES = 64 << 10


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The files named, and of folders those in them that end like a trace, in order of their names."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_SUFFIXES))
        if not inside:
            raise InputError(f"{path} holds no trace: no file in it ends in {', '.join(_SUFFIXES[:3])} (or .gz).")
        found += inside
    return found


def read_traces(paths: Sequence[Path], done: Callable[[Path], None] = lambda _: None) -> list[DeviceTrace]:
    """One trace per file; `done` is told of each."""
    found = []
    for path in paths:
        found.append(read_trace(path))
        done(path)
    return found


def read_trace(path: Path) -> DeviceTrace:
    """A trace of any kind known here, told by its content."""
    first = read_first(path, _LOOK_BYTES)
    if looks_like_chakra(first):
        return read_chakra(path)
    if b'"workload_graph"' in first:
        return read_chakra_json(path)
    if b'"nodes"' in first and b'"ctrl_deps"' in first and b'"traceEvents"' not in first:
        raise InputError(
            f"{path} is a PyTorch execution trace: it holds operators and what they depend on, but no times. Give the "
            "profiler's trace that was recorded with it."
        )
    text = first.lstrip()
    if text and text[:1] not in b"{[":
        raise InputError(f"{path} is no trace: it is neither JSON nor a Chakra file.")
    return read_kineto(path)
