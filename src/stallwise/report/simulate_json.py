"""A comparison of policies as one JSON document. No renderer is imported here: this is the quick way out."""

import math
from dataclasses import fields
from typing import Any

from stallwise.cluster.comparison import FIGURES, Comparison, Setting, Standing, verdict
from stallwise.cluster.sweep import Run


def document(found: Comparison) -> dict[str, Any]:
    """`rows` holds one row per simulation, `settings` the means over seeds."""
    return {
        "trace": found.source,
        "format": found.format,
        "jobs": found.jobs,
        "arrivals": found.arrivals,
        "contention": found.contention,
        "seeds": found.seeds,
        "rows": [
            _row(setting, standing, run)
            for setting in found.settings
            for standing in setting.standings
            for run in standing.runs
        ],
        "settings": [_setting(setting) for setting in found.settings],
        "notes": list(found.notes),
    }


def _row(setting: Setting, standing: Standing, run: Run) -> dict[str, Any]:
    figures = {field.name: _plain(getattr(run.metrics, field.name)) for field in fields(run.metrics)}
    return {
        "policy": standing.policy,
        "clairvoyant": standing.clairvoyant,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "load": setting.load,
        "seed": run.case.seed,
        **figures,
        "took_s": run.took_s,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "load": setting.load,
        "demand": _plain(setting.asked.demand),
        "gpu_s": setting.asked.gpu_s,
        "span_s": setting.asked.span_s,
        "largest_gang": setting.asked.largest_gang,
        "verdict": verdict(setting),
        "policies": [
            {
                "policy": standing.policy,
                "clairvoyant": standing.clairvoyant,
                "mean": {name: _plain(standing.mean[name]) for name in FIGURES},
                "low": {name: _plain(standing.spread(name)[0]) for name in FIGURES},
                "high": {name: _plain(standing.spread(name)[1]) for name in FIGURES},
                "mean_low": {name: _plain(standing.interval(name)[0]) for name in FIGURES},
                "mean_high": {name: _plain(standing.interval(name)[1]) for name in FIGURES},
            }
            for standing in setting.standings
        ],
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
