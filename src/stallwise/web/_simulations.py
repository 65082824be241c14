"""Simulations in the folder, to be browsed: JSON documents and tables of jobs that `stallwise simulate` wrote."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.errors import InputError
from stallwise.report.format import show_percent, show_seconds
from stallwise.report.views.simulate import COLUMNS, JOB_COLUMNS
from stallwise.sentences import Sentence, read_sentence
from stallwise.web._forms import query_integer

if TYPE_CHECKING:
    from stallwise.run.table import Table

PAGE = 100
_POINTS = 201
_CASE = ("policy", "cluster", "load", "seed")
_WORDS = ("policy", "cluster", "job_id")


class _Policy(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    clairvoyant: bool = False
    mean: dict[str, float | None]
    low: dict[str, float | None]
    high: dict[str, float | None]


class _Setting(msgspec.Struct, frozen=True, kw_only=True):
    cluster: str
    gpus: int
    load: float
    verdict: Sentence | None = None
    policies: tuple[_Policy, ...]


class _Simulation(msgspec.Struct, frozen=True, kw_only=True):
    trace: str
    format: str
    jobs: int
    arrivals: str
    contention: bool = False
    seeds: int = 1
    settings: tuple[_Setting, ...]
    notes: tuple[Sentence, ...] = ()


def simulation(path: Path) -> dict[str, Any]:
    """Policies by setting, each figure beside how the command line writes it."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=_Simulation, dec_hook=read_sentence)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is not the JSON document of a simulation ({error}).") from None
    return {
        "trace": result.trace,
        "how": f"{result.jobs:,} jobs · {result.format} · arrivals {result.arrivals}"
        + (f" · {result.seeds} seeds" if result.seeds > 1 else ""),
        "columns": [{"key": key, "name": name, "means": means} for key, name, _, means in COLUMNS],
        "settings": [
            {
                "name": f"{setting.cluster}, {setting.gpus:,} GPUs, load {setting.load:g}",
                "verdict": setting.verdict or "",
                "policies": [_policy(policy, result.seeds) for policy in setting.policies],
            }
            for setting in result.settings
        ],
        "notes": list(result.notes),
    }


def _policy(policy: _Policy, seeds: int) -> dict[str, Any]:
    figures = {}
    for key, _, show, _ in COLUMNS:
        value, low, high = (one.get(key) for one in (policy.mean, policy.low, policy.high))
        shown = "unknown" if value is None else show(value)
        spread = f"{show(low)} to {show(high)}" if seeds > 1 and low is not None and high is not None else ""
        figures[key] = {"value": value, "shown": shown, "spread": spread}
    return {"policy": f"{policy.policy}*" if policy.clairvoyant else policy.policy, "figures": figures}


def jobs(path: Path, query: Mapping[str, str]) -> dict[str, Any]:
    """One simulation's jobs: distributions over all of them, and a page of the table."""
    table = _read(path)
    groups = table.group_by(*_CASE)
    cases = list(groups.keys.dicts())
    if not cases or any(table[name].null_count for name in _CASE):
        raise InputError(f"{path.name} holds no jobs.")
    number = min(query_integer(query, "case", 0, 10**6) or 0, len(cases) - 1)
    chosen = table.filter(groups.codes == number)
    by = query.get("by", "arrival_s")
    if by not in JOB_COLUMNS:
        raise InputError("Jobs are sorted by one of their columns.")
    ordered = _ordered(chosen, by, down=query.get("down") == "1")
    offset = query_integer(query, "offset", 0, 10**9) or 0
    return {
        "cases": [" · ".join((one["policy"], one["cluster"], f"load {one['load']:g}", f"seed {one['seed']:g}"))
                  for one in cases],
        "case": number,
        "count": chosen.height,
        "distributions": [_distribution(chosen, column, name) for column, name in (
            ("jct_s", "arrival to end"), ("queue_s", "without GPUs"))],
        "timeline": _timeline(chosen),
        "columns": list(JOB_COLUMNS[4:]),
        "offset": offset,
        "rows": [list(row[4:]) for row in ordered[offset : offset + PAGE]],
    }  # fmt: skip


def _ordered(table: "Table", by: str, *, down: bool) -> list[tuple[Any, ...]]:
    """The rows sorted by one column; those without a value come first."""
    at, rows = JOB_COLUMNS.index(by), list(table.select(*JOB_COLUMNS).rows())
    known = sorted((row for row in rows if row[at] is not None), key=lambda row: row[at], reverse=down)
    return [*(row for row in rows if row[at] is None), *known]


def _read(path: Path) -> "Table":
    from stallwise.run.table import Table, TableColumn

    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        columns = list(zip(*(row for row in rows if row), strict=True)) or [()] * len(header)
    except (OSError, ValueError, csv.Error):
        raise InputError(f"{path.name} is not a table of simulated jobs.") from None
    if tuple(header) != JOB_COLUMNS or len(columns) != len(header):
        raise InputError(f"{path.name} has other columns than a table of simulated jobs.")
    try:
        return Table({
            name: TableColumn.of(column, object) if name in _WORDS
            else TableColumn.of([_number(word) for word in column], float)
            for name, column in zip(header, columns, strict=True)
        })  # fmt: skip
    except ValueError:
        raise InputError(f"{path.name} has words where a table of simulated jobs has numbers.") from None


_LARGEST = 1e150
"""Products of two such numbers are still numbers."""


def _number(word: str) -> float | None:
    """None for what is absent or not a number."""
    value = float(word) if word else math.nan
    return value if math.isfinite(value) and abs(value) < _LARGEST else None


def _distribution(table: "Table", column: str, name: str) -> dict[str, Any]:
    """The fraction of the jobs that took no longer, at even levels."""
    values = sorted(table[column].valid.tolist())
    levels = [i / (_POINTS - 1) for i in range(_POINTS)]
    last = max(0, len(values) - 1)
    points = [values[round(level * last)] for level in levels] if values else []
    half, most = (show_seconds(points[at]) if points else "unknown" for at in (_POINTS // 2, 190))
    words = f"Half of the jobs: {half} or less; 95 of 100: {most}."
    return {"name": name, "levels": levels if points else [], "values": points, "words": words}


def _timeline(table: "Table") -> dict[str, Any]:
    """Jobs that are there and those that have not begun, over time."""
    import numpy as np

    arrived, began, ended = (np.sort(table[name].valid) for name in ("arrival_s", "first_start_s", "finish_s"))
    if not len(arrived) or not len(ended):
        return {"time_s": [], "inside": [], "waiting": [], "words": "No job ends."}
    time_s = np.linspace(arrived[0], ended[-1], _POINTS)
    present, begun, gone = (np.searchsorted(moments, time_s, side="right") for moments in (arrived, began, ended))
    inside, waiting = present - gone, present - begun
    share = show_percent(float((waiting > 0).mean()))
    words = f"At most {inside.max():,} jobs are there; some wait for their first GPUs {share} of the time."
    return {
        "time_s": (time_s - arrived[0]).tolist(),
        "inside": inside.tolist(),
        "waiting": waiting.tolist(),
        "words": words,
    }
