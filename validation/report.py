"""The two reports: `docs/VALIDATION.md` for people, `build/validation.json` for programs."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from validation.harness import Case, Row

_HEAD = """\
# Validation

Published figures against what Stallwise computes. Made by `make validate`; do not edit. The tolerance of every
case is written in its source under `validation/cases/`, beside how our value is computed, before it is run.

*reproduced*: within the tolerance. *off*: not, by so much. *misfit*: not, for a reason stated beforehand.
*unjudged*: the truth is kept elsewhere. *no-input*: what the case needs is not public or not here.
"""


def as_markdown(cases: Sequence[Case], rows: Sequence[Row]) -> str:
    """One table over all figures, then method and source per case."""
    counts = Counter(row.verdict.split()[0] for row in rows)
    lines = [_HEAD, "**" + ", ".join(f"{n} {word}" for word, n in sorted(counts.items())) + "**", ""]
    lines += [
        "| id | case | ours | published | tolerance | verdict |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_line(row) for row in rows]
    lines += ["", "## How ours is computed", ""]
    told = {case.id: f"- **{case.id}** {case.method} Source: {case.source}." for case in cases}
    lines += [told[case_id] for case_id in dict.fromkeys(row.id for row in rows)]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    cells = [row.id, row.case, _number(row.value, row.unit), _number(row.published, row.unit)]
    return "| " + " | ".join([*cells, f"± {_number(row.tolerance, row.unit)}", row.verdict]) + " |"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()


def as_json(rows: Sequence[Row]) -> str:
    """A list of `{id, case, value, published, unit, tolerance, verdict}`."""
    return json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
