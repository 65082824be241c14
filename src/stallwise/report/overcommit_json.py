"""An overcommitted fleet as one JSON document."""

from dataclasses import asdict
from typing import Any

from stallwise.cluster.deflation.overcommitment import Overcommitted, Row, verdict
from stallwise.cluster.deflation.pricing import WAYS_TO_CHARGE


def document(found: Overcommitted) -> dict[str, Any]:
    """`rows` holds one row per simulation."""
    return {
        "trace": found.source,
        "format": found.format,
        "machines": found.machines,
        "low_priority": found.low,
        "host": found.fleet,
        "whole_fleet_hosts": found.whole,
        "partitions": found.partitioned,
        "rows": [_row(row) for row in found.rows],
        "verdict": verdict(found),
        "notes": list(found.notes),
    }


def _row(row: Row) -> dict[str, Any]:
    figures = asdict(row.figures)
    revenue = figures.pop("revenue")
    return {
        "rule": row.way,
        "overcommitment": row.overcommitment,
        **figures,
        "revenue": revenue,
        "revenue_increase": {how: row.increase(how) for how in WAYS_TO_CHARGE},
    }
