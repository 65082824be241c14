"""All ratios on one page, `evidence/benchmarks.md`: what every benchmark found last, and on how busy a machine."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import Result

ROOT = Path(__file__).parents[1]
KEPT, PAGE = Path(__file__).with_name("kept.json"), ROOT / "evidence/benchmarks.md"
_BUSY = 0.25  # of the cores, before the benchmark began
_HEAD = """\
# Benchmarks

What each benchmark found when it was last run: ratios to a peer in the same run, with the median of the rounds and, in
brackets, the smallest and largest. Made by `make bench`, or by `python -m benchmarks NAME…` for some; do not edit.

*held*: the bar that the claim names was met. *missed*: it was not. *shown*: there is no bar. A bar is written before
the measurement, and no benchmark changes its criterion to hold it. Peers that load data, save or read traces run at the
best of the settings that were tried beforehand in the same run (workers, threads, requests in flight, prefetch,
backends); ours are left at their defaults. *Busy*: other programs used more than a quarter of the cores when the
benchmark began: only ratios within one run mean anything then, and small ones not much.
"""


def conditions() -> dict[str, Any]:
    """When, on how many cores, and how busy they are: taken before the benchmark begins."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return {
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "cores": cores,
        "load": round(load, 1),
        "busy": load > _BUSY * cores,
    }


def keep(name: str, found: dict[str, Any], results: Sequence[Result], kept: Path = KEPT, page: Path = PAGE) -> None:
    """Replace what is kept of one benchmark, and write the page."""
    known = json.loads(kept.read_text()) if kept.exists() else {}
    rows = [{"claim": one.claim, "measured": one.measured, "verdict": one.verdict} for one in results]
    known[name] = found | {"results": rows}
    kept.write_text(json.dumps(dict(sorted(known.items())), indent=1, ensure_ascii=False) + "\n")
    page.write_text(as_markdown(known))


def as_markdown(known: dict[str, Any]) -> str:
    """The page."""
    rows = [row for one in known.values() for row in one["results"]]
    counts = ", ".join(f"{sum(row['verdict'] == word for row in rows)} {word}" for word in ("held", "missed", "shown"))
    lines = [_HEAD, f"{len(rows)} claims of {len(known)} benchmarks: {counts}.", ""]
    for name, one in sorted(known.items()):
        busy = f"busy (load {one['load']})" if one["busy"] else "quiet"
        note = f"; {one['note']}" if one.get("note") else ""
        lines += [f"## {name}", "", f"{one['day']}, {one['cores']} cores, {busy}{note}.", ""]
        lines += ["| claim | measured | verdict |", "| --- | --- | --- |"]
        cells = ([row[key].replace("|", "\\|") for key in ("claim", "measured", "verdict")] for row in one["results"])
        lines += [*("| " + " | ".join(row) + " |" for row in cells), ""]
    return "\n".join(lines)
