"""Simulations in the folder: what `stallwise simulate --json` and `--jobs` wrote, to be browsed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stallwise.errors import InputError
from stallwise.report.simulate import COLUMNS, show_time
from stallwise.report.simulate_jobs import COLUMNS as JOB_COLUMNS
from stallwise.report.text import show_percent
from stallwise.web.sliders import whole

if TYPE_CHECKING:
    import polars

PAGE = 100
_POINTS = 201
_CASE = ("policy", "cluster", "load", "seed")


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
    verdict: str = ""
    policies: tuple[_Policy, ...]


class _Simulation(msgspec.Struct, frozen=True, kw_only=True):
    trace: str
    format: str
    jobs: int
    arrivals: str
    contention: bool = False
    seeds: int = 1
    settings: tuple[_Setting, ...]
    notes: tuple[str, ...] = ()


def simulation(path: Path) -> dict[str, Any]:
    """Policies by setting, each figure beside how the command line writes it."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Simulation)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is not a simulation of `stallwise simulate --json` ({error}).") from None
    return {
        "trace": found.trace,
        "how": f"{found.jobs:,} jobs · {found.format} · arrivals {found.arrivals}"
        + (f" · {found.seeds} seeds" if found.seeds > 1 else ""),
        "columns": [{"key": key, "name": name, "means": means} for key, name, _, means in COLUMNS],
        "settings": [
            {
                "name": f"{setting.cluster}, {setting.gpus:,} GPUs, load {setting.load:g}",
                "verdict": setting.verdict,
                "policies": [_policy(policy, found.seeds) for policy in setting.policies],
            }
            for setting in found.settings
        ],
        "notes": list(found.notes),
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
    import polars as pl

    table = _read(path)
    cases = table.select(_CASE).unique(maintain_order=True).to_dicts()
    if not cases:
        raise InputError(f"{path.name} holds no jobs.")
    place = min(whole(query, "case", 0, 10**6) or 0, len(cases) - 1)
    case = cases[place]
    here = table.filter(*(pl.col(name) == value for name, value in case.items()))
    by = query.get("by", "arrival_s")
    if by not in JOB_COLUMNS:
        raise InputError("Jobs are sorted by one of their columns.")
    ordered = here.sort(by, descending=query.get("down") == "1", maintain_order=True)
    offset = whole(query, "offset", 0, 10**9) or 0
    return {
        "cases": [" · ".join((one["policy"], one["cluster"], f"load {one['load']:g}", f"seed {one['seed']:g}"))
                  for one in cases],
        "case": place,
        "count": here.height,
        "distributions": [_distribution(here, column, name) for column, name in (
            ("jct_s", "arrival to end"), ("queue_s", "without GPUs"))],
        "timeline": _timeline(here),
        "columns": list(JOB_COLUMNS[4:]),
        "offset": offset,
        "rows": [list(row) for row in ordered.slice(offset, PAGE).select(JOB_COLUMNS[4:]).iter_rows()],
    }  # fmt: skip


def _read(path: Path) -> "polars.DataFrame":
    import polars

    try:
        table = polars.read_csv(path, glob=False, infer_schema_length=None)
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError, UnicodeDecodeError):
        raise InputError(f"{path.name} is not a table of `stallwise simulate --jobs`.") from None
    if tuple(table.columns) != JOB_COLUMNS:
        raise InputError(f"{path.name} has other columns than `stallwise simulate --jobs` writes.")
    numbers = [name for name in JOB_COLUMNS if name not in ("policy", "cluster", "job_id")]
    try:
        return table.with_columns(
            *(polars.col(name).cast(polars.Float64) for name in numbers),
            *(polars.col(name).cast(polars.String) for name in ("policy", "cluster", "job_id")),
        )
    except polars.exceptions.PolarsError:
        raise InputError(f"{path.name} has words where `stallwise simulate --jobs` writes numbers.") from None


def _distribution(table: "polars.DataFrame", column: str, name: str) -> dict[str, Any]:
    """The part of the jobs that took no longer, at even levels."""
    values = table.get_column(column).drop_nulls().drop_nans().sort()
    levels = [i / (_POINTS - 1) for i in range(_POINTS)]
    last = max(0, len(values) - 1)
    points = [float(values[round(level * last)]) for level in levels] if len(values) else []
    half, most = (show_time(points[at]) if points else "unknown" for at in (_POINTS // 2, 190))
    words = f"Half of the jobs: {half} or less; 95 of 100: {most}."
    return {"name": name, "levels": levels if points else [], "values": points, "words": words}


def _timeline(table: "polars.DataFrame") -> dict[str, Any]:
    """Jobs that are there and those that have not begun, over time."""
    import numpy as np

    arrived, began, ended = (
        np.sort(table.get_column(name).drop_nulls().drop_nans().to_numpy())
        for name in ("arrival_s", "first_start_s", "finish_s")
    )
    if not len(arrived) or not len(ended):
        return {"time_s": [], "inside": [], "waiting": [], "words": "No job ends."}
    time_s = np.linspace(arrived[0], ended[-1], _POINTS)
    here, begun, gone = (np.searchsorted(moments, time_s, side="right") for moments in (arrived, began, ended))
    inside, waiting = here - gone, here - begun
    share = show_percent(float((waiting > 0).mean()))
    words = f"At most {inside.max():,} jobs are there; some wait for their first GPUs {share} of the time."
    return {
        "time_s": (time_s - arrived[0]).tolist(),
        "inside": inside.tolist(),
        "waiting": waiting.tolist(),
        "words": words,
    }
