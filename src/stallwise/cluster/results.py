"""Results of a sweep on disk: one line of JSON per simulation, written as it is done.

A sweep that was killed goes on where it ended, and one with more seeds, loads or policies than before simulates only
those. What a line belongs to is in it: policy, load, seed, and `inputs`, a digest of everything else the answer depends
on (jobs, cluster, speeds, arrivals, costs, and the program itself). Lines of other inputs are left alone. Numbers are
written so that they are read back to the last bit.
"""

import fcntl
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

import stallwise
from stallwise.cluster.outcome import Metrics
from stallwise.cluster.sweep import Case, Place, Run, Sweep, Timeline
from stallwise.errors import InputError

_OF_THE_CASE = frozenset({"places", "policies", "loads", "seeds", "keep", "cores"})
"""Fields of a sweep that say which simulations there are, not what one of them answers."""
_MEMORY = frozenset({"known", "packed_s"})
"""Fields in which speeds keep what they computed."""
_BEGINNING = b'{"inputs"'
"""Of every line we write."""
_SOURCES = ("cluster", "model", "workload", "record/job.py", "units.py")
"""What a simulation runs through, from the trace to its figures."""
_PACKAGES = ("numpy", "scipy", "numba")
"""Whose arithmetic decides the last bits."""
_CURVES = ("levels", "jct_s", "queue_s")
_TIMELINE = ("time_s", "busy_gpus", "waiting_jobs")


class Results:
    """A file of results, held by one sweep at a time; `say` hears how many simulations were in it already."""

    def __init__(self, path: Path, say: Callable[[str], None] | None = None) -> None:
        self._path, self._say = path, say
        self._file = _opened(path)
        self._digests: dict[int, str] = {}

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def known(self, sweep: Sweep) -> dict[int, Run]:
        """Simulations of the sweep that are in the file, by their place in the order of the report."""
        self._digests = {number: inputs_of(sweep, place) for number, place in enumerate(sweep.places)}
        cases = sweep.cases()
        # Two clusters that differ in their names only, or a policy named twice, are answered by the same line.
        wanted: dict[tuple[Any, ...], list[int]] = {}
        for number, case in enumerate(cases):
            wanted.setdefault((self._digests[case.cluster], case.policy, case.load, case.seed), []).append(number)
        found: dict[int, Run] = {}
        for line, row in self._rows():
            for number in wanted.get(_key(row, self._path, line), ()):
                run = _run(row, cases[number], drawn=cases[number].seed == sweep.seeds[0])
                if run is not None:
                    found[number] = run
        if found and self._say is not None:
            self._say(f"{len(found):,} of {len(cases):,} simulations are in {self._path} already.")
        return found

    def add(self, sweep: Sweep, run: Run) -> None:
        """Write one at the end. A line is written whole or, where the machine stops, cut off at the next start."""
        place = sweep.places[run.case.cluster]
        row = {
            "inputs": self._digests[run.case.cluster],
            "policy": run.case.policy,
            "cluster": place.name,
            "gpus": place.cluster.gpus,
            "load": run.case.load,
            "seed": run.case.seed,
            **{field.name: getattr(run.metrics, field.name) for field in fields(run.metrics)},
            "took_s": run.took_s,
        }
        if len(run.levels):
            row["curves"] = {name: getattr(run, name).tolist() for name in _CURVES}
            row["curves"] |= {name: getattr(run.timeline, name).tolist() for name in _TIMELINE}
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()

    def _rows(self) -> "list[tuple[int, dict[str, Any]]]":
        self._file.seek(0)
        rows = []
        for number, line in enumerate(self._file, start=1):
            try:
                rows.append((number, msgspec.json.decode(line, type=dict[str, Any])))
            except msgspec.DecodeError:
                raise _foreign(self._path, number) from None
        self._file.seek(0, 2)
        return rows


def _opened(path: Path) -> IO[bytes]:
    """For this process alone; a last line of ours that was cut off by a kill is removed."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}. Give another file with --results.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise InputError(f"Another sweep is writing {path}. Wait for it, or give another file.") from None
    file.seek(0)
    text = file.read()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        for line, part in ((1, text), (text.count(b"\n") + 1, text[whole:])):
            if not part.startswith(_BEGINNING[: len(part)]):
                file.close()
                raise _foreign(path, line)
        file.truncate(whole)
    return file


def _foreign(path: Path, line: int) -> InputError:
    return InputError(f"{path}, line {line} is not the result of a simulation. Give another file with --results.")


def _key(row: Mapping[str, Any], path: Path, line: int) -> tuple[Any, ...]:
    try:
        key = row["inputs"], row["policy"], float(row["load"]), row["seed"]
        hash(key)
    except (KeyError, TypeError, ValueError):
        raise _foreign(path, line) from None
    return key


def _run(row: Mapping[str, Any], case: Case, *, drawn: bool) -> Run | None:
    """What a line says; None where it lacks a figure, or the curves of a run that is to be drawn."""
    figures = {field.name: row.get(field.name) for field in fields(Metrics)}
    curves: dict[str, list[float]] = row.get("curves", {}) if drawn else {name: [] for name in (*_CURVES, *_TIMELINE)}
    if None in figures.values() or row.get("took_s") is None or not curves:
        return None
    levels, jct_s, queue_s = (np.array(curves[name], dtype=np.float64) for name in _CURVES)
    return Run(
        case=case,
        metrics=Metrics(**figures),  # type: ignore[arg-type]
        levels=levels,
        jct_s=jct_s,
        queue_s=queue_s,
        timeline=Timeline(**{name: np.array(curves[name], dtype=np.float64) for name in _TIMELINE}),
        took_s=row["took_s"],
    )


def inputs_of(sweep: Sweep, place: Place) -> str:
    """A digest of all that a simulation there depends on besides policy, load and seed."""
    digest = hashlib.blake2b(program().encode(), digest_size=12)
    for field in fields(sweep):
        if field.name not in _OF_THE_CASE:
            digest.update(field.name.encode())
            _feed(digest, getattr(sweep, field.name))
    _feed(digest, (place.cluster, place.speed))
    return digest.hexdigest()


@functools.cache
def program() -> str:
    """The version, and a digest of the sources and packages that simulate: two that agree in it answer alike."""
    root = Path(stallwise.__file__).parent
    digest = hashlib.blake2b(digest_size=8)
    for name in _PACKAGES:
        digest.update(f"{name} {version(name)}\0".encode())
    for name in _SOURCES:
        for path in sorted((root / name).rglob("*.py")) or [root / name]:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{stallwise.__version__}+{digest.hexdigest()}"


def _feed(digest: "hashlib.blake2b", value: Any) -> None:
    """The value by its contents: the same in every process, whatever was shared or in which order it was hashed."""
    if isinstance(value, np.ndarray):
        digest.update(f"a{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif is_dataclass(value) and not isinstance(value, type):
        digest.update(f"o{type(value).__qualname__}(".encode())
        for field in fields(value):
            if field.name not in _MEMORY:
                digest.update(field.name.encode() + b"=")
                _feed(digest, getattr(value, field.name))
        digest.update(b")")
    elif isinstance(value, Mapping):
        digest.update(b"{")
        for key in sorted(value, key=repr):
            _feed(digest, key)
            _feed(digest, value[key])
        digest.update(b"}")
    elif isinstance(value, list | tuple):
        digest.update(b"[")
        for item in value:
            _feed(digest, item)
        digest.update(b"]")
    elif isinstance(value, set | frozenset):
        _feed(digest, sorted(value, key=repr))
    elif value is None or isinstance(value, str | int | float | bool | np.generic):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
    else:
        raise TypeError(f"{type(value).__name__} has no digest")
