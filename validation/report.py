"""The two reports: `docs/VALIDATION.md` for people, `build/validation.json` for programs."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from validation.harness import Case, Row
from validation.reality import MEAN_WITHIN, WORST_WITHIN, kept

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
    return "\n".join([*lines, *_reality()]) + "\n"


def _reality() -> list[str]:
    """What predictions of our own met when the job was run."""
    day, rows = kept()
    errors = [abs(row.error) for row in rows]
    mean, worst = statistics.mean(errors), max(errors)
    inside = sum(row.low_s <= row.measured_s <= row.high_s for row in rows)
    return [
        "",
        "## Predictions against reality",
        "",
        f"`make reality`, measured on {day}: a job on the stand-in accelerator (16 layers that sleep 240 ms in all, "
        "32 MB of real gradients), profiled in one process; the link between two hosts probed; the DDP step on 2 and 4 "
        "hosts "
        "predicted by `stallwise whatif`, then run bare. Hosts are network namespaces at a switch.",
        "",
        "| link | hosts | predicted | interval | measured, median of 3 | spread | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row.rate_mbit} Mb/s | {row.hosts} | {row.predicted_s * 1e3:.0f} ms "
            f"| {row.low_s * 1e3:.0f} to {row.high_s * 1e3:.0f} ms | {row.measured_s * 1e3:.0f} ms "
            f"| {row.spread_s * 1e3:.0f} ms | {row.error:+.1%} |"
            for row in rows
        ),
        "",
        f"Mean error {mean:.1%} (bar, written beforehand: {MEAN_WITHIN:.0%}), worst {worst:.1%} "
        f"(bar: {WORST_WITHIN:.0%}): "
        f"{'both met' if mean <= MEAN_WITHIN and worst <= WORST_WITHIN else '**not met**'}. "
        f"{inside} of {len(rows)} measured steps lie inside the interval.",
    ]


def _line(row: Row) -> str:
    cells = [row.id, row.case, _number(row.value, row.unit), _number(row.published, row.unit)]
    return "| " + " | ".join([*cells, f"± {_number(row.tolerance, row.unit)}", row.verdict]) + " |"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()


def as_json(rows: Sequence[Row]) -> str:
    """A list of `{id, case, value, published, unit, tolerance, verdict}`."""
    return json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False) + "\n"
