"""Results of a sweep on disk: one line of JSON per simulation, appended as it is done.

A sweep that was killed goes on where it ended, and one with more seeds, loads or policies than before simulates only
those. Each line says what it belongs to: policy, load, seed, and `inputs`, a digest of everything else that the answer
depends on (jobs, cluster, speeds, arrivals, costs, and the program itself). Lines of other inputs are left alone.
Numbers are written so that they are read back to the last bit.
"""

import fcntl
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from stallwise._version import __version__
from stallwise.cluster._outcome import Metrics
from stallwise.cluster.sweep.cases import Case, NamedCluster, SimulationResult, Sweep, Timeline
from stallwise.errors import InputError

_OF_THE_CASE = frozenset({"clusters", "policies", "sources", "loads", "seeds", "keep", "cores"})
"""Fields of a sweep that say which simulations there are, not what one of them answers."""
_MEMORY = frozenset({"cache", "packed_s"})
"""Fields in which speeds cache what they computed."""
_BEGINNING = b'{"inputs"'
"""Start of every line that is written here."""
_SOURCES = ("cluster", "model", "workload", "analysis", "units.py")
"""What a simulation runs through, from the trace to its figures."""
_PACKAGES = ("numpy", "scipy", "numba")
"""Whose arithmetic decides the last bits."""
_CURVES = ("levels", "jct_s", "queue_s")
_TIMELINE = ("time_s", "busy_gpus", "waiting_jobs")


class ResultsFile:
    """A file of results, locked by one sweep at a time; `notify` receives a sentence about those it already has."""

    def __init__(self, path: Path, notify: Callable[[str], None] | None = None) -> None:
        self._path, self._notify = path, notify
        self._file = _open_locked(path)
        self._digests: dict[int, str] = {}

    def __enter__(self) -> "ResultsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def load(self, sweep: Sweep) -> dict[int, SimulationResult]:
        """Return the results of this sweep that are in the file by their index in `Sweep.cases`."""
        self._digests = {number: inputs_digest(sweep, cluster) for number, cluster in enumerate(sweep.clusters)}
        cases = sweep.cases()
        # Two clusters that differ in their names only, or a policy named twice, are answered by the same line.
        numbers: dict[tuple[Any, ...], list[int]] = {}
        for number, case in enumerate(cases):
            numbers.setdefault((self._inputs(sweep, case), case.policy, case.load, case.seed), []).append(number)
        results: dict[int, SimulationResult] = {}
        for line, row in self._rows():
            for number in numbers.get(_key(row, self._path, line), ()):
                try:
                    result = _parse_result(row, cases[number], drawn=cases[number].seed == sweep.seeds[0])
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    raise _not_a_result(self._path, line) from None
                if result is not None:
                    results[number] = result
        if results and self._notify is not None:
            self._notify(f"{len(results):,} of {len(cases):,} simulations are in {self._path} already.")
        return results

    def add(self, sweep: Sweep, result: SimulationResult) -> None:
        """Append one result. A line that a stopping machine cut off is removed at the next start."""
        case, target = result.case, sweep.clusters[result.case.cluster]
        row = {
            "inputs": self._inputs(sweep, case),
            "policy": case.policy,
            "cluster": target.name,
            "gpus": target.cluster.gpus,
            "load": case.load,
            "seed": case.seed,
            **{field.name: getattr(result.metrics, field.name) for field in fields(result.metrics)},
            "took_s": result.took_s,
        }
        if len(result.levels):
            row["curves"] = {name: getattr(result, name).tolist() for name in _CURVES}
            row["curves"] |= {name: getattr(result.timeline, name).tolist() for name in _TIMELINE}
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._file.flush()

    def _inputs(self, sweep: Sweep, case: Case) -> str:
        """Digest of everything besides the policy's name, load and seed; with the text of a policy that is a file."""
        digest, source = self._digests[case.cluster], sweep.sources.get(case.policy)
        if source is None:
            return digest
        return hashlib.blake2b(f"{digest}\0{source}".encode(), digest_size=12).hexdigest()

    def _rows(self) -> "list[tuple[int, dict[str, Any]]]":
        self._file.seek(0)
        rows = []
        for number, line in enumerate(self._file, start=1):
            try:
                rows.append((number, msgspec.json.decode(line, type=dict[str, Any])))
            except (msgspec.DecodeError, RecursionError):
                raise _not_a_result(self._path, number) from None
        self._file.seek(0, 2)
        return rows


def _open_locked(path: Path) -> IO[bytes]:
    """Open for this process alone; a last line of ours that was cut off by a kill is removed."""
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror}. Give another file.", fields=("results",)
        ) from None
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
                raise _not_a_result(path, line)
        file.truncate(whole)
    return file


def _not_a_result(path: Path, line: int) -> InputError:
    return InputError(f"{path}, line {line} is not the result of a simulation. Give another file.", fields=("results",))


def _key(row: Mapping[str, Any], path: Path, line: int) -> tuple[Any, ...]:
    try:
        key = row["inputs"], row["policy"], float(row["load"]), row["seed"]
        hash(key)
    except (KeyError, TypeError, ValueError):
        raise _not_a_result(path, line) from None
    return key


def _parse_result(row: Mapping[str, Any], case: Case, *, drawn: bool) -> SimulationResult | None:
    """Return the result in a line; None where it lacks a figure, or the curves of a case that is to be drawn."""
    figures = {field.name: row.get(field.name) for field in fields(Metrics)}
    curves: dict[str, list[float]] = row.get("curves", {}) if drawn else {name: [] for name in (*_CURVES, *_TIMELINE)}
    if None in figures.values() or row.get("took_s") is None or not curves:
        return None
    levels, jct_s, queue_s = (np.array(curves[name], dtype=np.float64) for name in _CURVES)
    return SimulationResult(
        case=case,
        metrics=Metrics(**figures),  # type: ignore[arg-type]
        levels=levels,
        jct_s=jct_s,
        queue_s=queue_s,
        timeline=Timeline(**{name: np.array(curves[name], dtype=np.float64) for name in _TIMELINE}),
        took_s=row["took_s"],
    )


def inputs_digest(sweep: Sweep, cluster: NamedCluster) -> str:
    """Digest everything that a simulation on the cluster depends on besides policy, load and seed."""
    digest = hashlib.blake2b(program_digest().encode(), digest_size=12)
    for field in fields(sweep):
        if field.name not in _OF_THE_CASE:
            digest.update(field.name.encode())
            _feed(digest, getattr(sweep, field.name))
    _feed(digest, (cluster.cluster, cluster.speed))
    return digest.hexdigest()


@functools.cache
def program_digest() -> str:
    """Version and digest of the sources and packages that simulate: two programs with the same one answer alike."""
    root = Path(str(files("stallwise")))
    digest = hashlib.blake2b(digest_size=8)
    for name in _PACKAGES:
        digest.update(f"{name} {version(name)}\0".encode())
    for name in _SOURCES:
        for path in sorted((root / name).rglob("*.py")) or [root / name]:
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{__version__}+{digest.hexdigest()}"


def _feed(digest: "hashlib.blake2b", value: Any) -> None:
    """Feed a value by its contents: the same in every process, however objects are shared and sets are ordered."""
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
