"""The reports: `evidence/*.md` for people, `build/validation.json` for programs."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from validation.harness import Case, Row, in_order
from validation.origins import evidence_of
from validation.reality import INSIDE_AT_LEAST, MEAN_WITHIN, kept

_HEAD = """\
# Validation

Published figures against what Stallwise computes. Made by `make validate`; do not edit. Tolerance and method of every
case stand in its source under `validation/cases/`, where a figure comes from in `validation/origins.py`.

*reproduced*: within the tolerance. *off*: not, by so much. *not comparable*: the two are not of the same thing; not
reproduced. *no-input*: what the case needs is not here. Figures whose truth nobody has published are forecasts, in
[a file of their own](forecasts.md), and count nowhere.

Much that agrees proves little, so each row says where its figure comes from and what agreeing with it is worth:
*paper*, *authors' data*, *peer's program* (run by us), or *own*: a number that we computed ourselves from public data,
a regression test. *other code*: no code of the package is involved; *one line*: a ratio or a fitted line of it;
*transcription*: the shipped table is a copy of the source; *identity*: true by definition; *chosen on it*: the model
was chosen so that it fits; *changed after a look*: tolerance, method or the row itself was written after our value was
seen; tolerances without that mark were written before, or have become narrower since. Only rows with none of these
**count as evidence**; a miss counts whatever the row is worth.
"""
_FORECASTS = """\
# Forecasts

What Stallwise computes where nobody has published the truth. Made by `make validate`; do not edit. Nothing here is
judged: these figures are kept so that anybody who has the truth can hold it against them.
"""
_ORIGINS = ("paper", "authors' data", "peer's program", "own")
_VERDICTS = ("reproduced", "off", "not comparable", "no-input")


def verdict_of(row: Row) -> str:
    """The verdict without its reason or size."""
    return next((verdict for verdict in _VERDICTS if row.verdict.startswith(verdict)), "forecast")


def as_markdown(cases: Sequence[Case], rows: Sequence[Row]) -> str:
    """Counts by origin, one table over all judged figures, then the methods."""
    ordered = in_order(cases)
    judged = [(case, row) for case, row in zip(ordered, rows, strict=True) if case.published is not None]
    lines = [_HEAD, *_counts(judged), ""]
    lines += ["| id | case | ours | published | tolerance | from | method | verdict |", "| --- " * 8 + "|"]
    letters = _letters([case for case, _ in judged])
    lines += [_line(case, row, letters[case]) for case, row in judged]
    lines += ["", "## How ours is computed", "", *_methods([case for case, _ in judged])]
    return "\n".join([*lines, *_reality()]) + "\n"


def forecasts(cases: Sequence[Case], rows: Sequence[Row]) -> str:
    """The figures whose truth nobody has published."""
    kept = [(case, row) for case, row in zip(in_order(cases), rows, strict=True) if case.published is None]
    letters = _letters([case for case, _ in kept])
    lines = [_FORECASTS, "| id | case | ours | method |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.id} | {row.case} | {_number(row.value, row.unit)} | {letters[case]} |" for case, row in kept]
    return "\n".join([*lines, "", "## How ours is computed", "", *_methods([case for case, _ in kept])]) + "\n"


def _counts(judged: Sequence[tuple[Case, Row]]) -> list[str]:
    """How many rows of each origin got which verdict; the last column holds what counts as evidence."""
    tally = Counter((evidence_of(case).origin, verdict_of(row)) for case, row in judged)
    proof = Counter(verdict_of(row) for case, row in judged if _is_proof(case, verdict_of(row)))
    lines = ["| from | " + " | ".join(_VERDICTS) + " |", "| --- " * (1 + len(_VERDICTS)) + "|"]
    lines += [
        f"| {origin} | " + " | ".join(str(tally[origin, verdict]) for verdict in _VERDICTS) + " |"
        for origin in _ORIGINS
    ]
    lines.append("| **of these, evidence** | " + " | ".join(f"**{proof[verdict]}**" for verdict in _VERDICTS) + " |")
    return lines


def _is_proof(case: Case, verdict: str) -> bool:
    evidence = evidence_of(case)
    return evidence.counts if verdict == "reproduced" else evidence.counts_off


def _methods(cases: Sequence[Case]) -> list[str]:
    """Each method once, with the letter that the rows of the table name."""
    letters = _letters(cases)
    texts = {(case.id, letters[case]): f"{case.method} Source: {case.source}." for case in cases}
    return [f"- **{case_id}**{f' {letter}' * bool(letter)} {text}" for (case_id, letter), text in texts.items()]


def _letters(cases: Sequence[Case]) -> dict[Case, str]:
    """Which of the methods of its id a case uses: none where there is one, else a, b, c …"""
    by_id: dict[str, dict[tuple[str, str], str]] = {}
    for case in cases:
        methods = by_id.setdefault(case.id, {})
        methods.setdefault((case.method, case.source), chr(ord("a") + len(methods)))
    return {case: by_id[case.id][case.method, case.source] if len(by_id[case.id]) > 1 else "" for case in cases}


def _reality() -> list[str]:
    """What predictions of our own met when the job was run."""
    day, rows = kept()
    mean = statistics.mean(abs(row.error) for row in rows)
    inside, long = sum(row.inside for row in rows), sum(row.error > 0 for row in rows)
    met = mean <= MEAN_WITHIN and inside >= INSIDE_AT_LEAST and 0 < long < len(rows)
    return [
        "",
        "## Predictions against reality",
        "",
        f"`make reality`, measured on {day}: a job with real gradients, profiled in one process; the link between two "
        "hosts probed; the DDP step on several hosts predicted by `stallwise whatif` and kept, then run bare. Hosts "
        "are network namespaces at a switch of one machine; layers sleep, or compute on a core.",
        "",
        "| job | link | hosts | predicted | interval | measured | spread | error | of the exchange |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row.work} | {row.rate_mbit} Mb/s | {row.hosts} | {row.predicted_s * 1e3:.0f} ms "
            f"| {row.low_s * 1e3:.0f} to {row.high_s * 1e3:.0f} ms | {(row.measured_s or 0.0) * 1e3:.0f} ms "
            f"| {(row.spread_s or 0.0) * 1e3:.0f} ms | {row.error:+.1%} | {_signed(row.exchange_error)} |"
            for row in rows
        ),
        "",
        f"Bars, written beforehand: mean error at most {MEAN_WITHIN:.0%}, at least {INSIDE_AT_LEAST} of 12 inside the "
        f"interval, errors of both signs. Mean error {mean:.1%}, {inside} of {len(rows)} inside, {long} predicted too "
        f"long: {'all met' if met else '**not met**'}.",
    ]


def _signed(error: float | None) -> str:
    return "–" if error is None else f"{error:+.1%}"


def _line(case: Case, row: Row, letter: str) -> str:
    evidence = evidence_of(case)
    origin = "; ".join(
        [
            evidence.origin,
            *[evidence.computation] * (evidence.computation != "package"),
            *[evidence.weakness] * bool(evidence.weakness),
        ]
    )
    cells = [row.id, row.case, _number(row.value, row.unit), _number(row.published, row.unit)]
    return "| " + " | ".join([*cells, f"± {_number(row.tolerance, row.unit)}", origin, letter, row.verdict]) + " |"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.4g} {unit}".rstrip()


def as_json(cases: Sequence[Case], rows: Sequence[Row]) -> str:
    """A list of `{id, case, value, published, unit, tolerance, verdict, origin, computation, weakness, counts}`."""
    documents = [
        asdict(row) | asdict(evidence_of(case)) | {"counts": evidence_of(case).counts}
        for case, row in zip(in_order(cases), rows, strict=True)
    ]
    return json.dumps(documents, indent=2, ensure_ascii=False) + "\n"
