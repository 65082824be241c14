"""The page: a profile as one HTML file that needs nothing else, and the same for notebooks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path

from stallwise.errors import InputError
from stallwise.record.profile import Profile
from stallwise.report import parts
from stallwise.report.svg import rates_svg, split_svg
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds

# Everything is scoped under .stallwise, so that a notebook around it keeps its own looks.
_STYLE = """
.stallwise { --ink: #1b1f24; --dim: #59626e; --line: #d5dae1; --paper: #ffffff; --raised: #f4f6f8; --warn: #8a4b00;
  color-scheme: light dark; color: var(--ink); background: var(--paper); max-width: 50rem; margin: 0 auto;
  padding: 1.5rem; font: 16px/1.5 system-ui, sans-serif; box-sizing: border-box; }
@media (prefers-color-scheme: dark) { .stallwise { --ink: #e6e9ee; --dim: #a3acb8; --line: #3a424d; --paper: #14171b;
  --raised: #1e2329; --warn: #ffb454; } }
.stallwise h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere; }
.stallwise h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.stallwise p { margin: .3rem 0; }
.stallwise .dim, .stallwise caption { color: var(--dim); }
.stallwise .step { font-size: 1.3rem; margin-top: .8rem; }
.stallwise .partial { border-left: 4px solid var(--warn); color: var(--warn); padding: .4rem .8rem; margin: .8rem 0; }
.stallwise .verdict { background: var(--raised); border: 1px solid var(--line); border-radius: 6px;
  padding: .8rem 1rem; }
.stallwise table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-variant-numeric: tabular-nums; }
.stallwise caption { text-align: left; padding: .3rem 0; }
.stallwise th, .stallwise td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
.stallwise thead th { color: var(--dim); font-weight: normal; }
.stallwise tbody th { font-weight: 600; }
.stallwise .n { text-align: right; white-space: nowrap; }
.stallwise svg { width: 100%; height: auto; display: block; margin: .5rem 0; }
.stallwise svg text { fill: var(--ink); font-size: 14px; }
.stallwise svg text.dim { fill: var(--dim); }
.stallwise svg rect { fill: #7a869a; stroke: var(--ink); stroke-width: .7; }
.stallwise svg rect.cut { stroke-dasharray: 4 4; }
.stallwise svg rect.compute { fill: #009e73; }
.stallwise svg rect.copy { fill: #56b4e9; }
.stallwise svg rect.interconnect { fill: #cc79a7; }
.stallwise svg rect.network { fill: #0072b2; }
.stallwise svg rect.prep { fill: #e69f00; }
.stallwise svg rect.fetch { fill: #d55e00; }
.stallwise svg .whisker { stroke: var(--ink); stroke-width: 1.5; }
.stallwise svg .limit { stroke: var(--dim); stroke-dasharray: 3 3; }
@media print { .stallwise { --ink: #000; --dim: #444; --line: #bbb; --paper: #fff; --raised: #fff; --warn: #000;
  max-width: none; padding: 0; font-size: 11pt; print-color-adjust: exact; }
  .stallwise section, .stallwise svg, .stallwise tr { break-inside: avoid; } }
"""
_BODY_STYLE = """
body { margin: 0; background: #ffffff; }
@media (prefers-color-scheme: dark) { body { background: #14171b; } }
@media print { body { background: #fff; } }
"""

_Cell = str | tuple[str, str]
"""A cell's text, or its text and its class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProfile(Profile):
    """A profile that a notebook draws."""

    def _repr_html_(self) -> str:
        return f"<style>{_STYLE}</style>{_article(self)}"


def show(profile: Profile) -> ShownProfile:
    """The same profile, drawn where a notebook shows it."""
    return ShownProfile(**{field.name: getattr(profile, field.name) for field in fields(Profile)})


def write_page(profile: Profile, path: Path) -> Path:
    """Write the page to `path` and return it."""
    try:
        path.write_text(page(profile), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"The page cannot be written to {path} ({error.strerror}). Name another file with --html."
        ) from None
    return path


def page(profile: Profile) -> str:
    """The whole document: no script, nothing from elsewhere."""
    name = escape(parts.title(profile))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: where the time goes</title>\n<style>{_BODY_STYLE}{_STYLE}</style>\n</head>\n<body>\n"
        f"<main>{_article(profile)}</main>\n</body>\n</html>\n"
    )


def _article(profile: Profile) -> str:
    sections = (_heading, _verdict, _split, _rates, _beside, _notes, _machines)
    return f'<article class="stallwise">{"".join(section(profile) for section in sections)}</article>'


def _heading(profile: Profile) -> str:
    facts = f"{parts.setting(profile)} · {profile.state} · run {profile.run_id}"
    step = f"{show_seconds(profile.step_s)} a step"
    partial = ""
    if profile.partial_reason:
        partial = f'<p class="partial" role="note"><strong>Not whole:</strong> {escape(profile.partial_reason)}</p>'
    return (
        f'<header><h1>{escape(parts.title(profile))}</h1><p class="dim">{escape(facts)}</p>{partial}'
        f'<p class="step"><strong>{escape(step)}</strong> '
        f'<span class="dim">({escape(parts.step_bounds(profile))})</span> · '
        f"<strong>{escape(parts.speeds(profile))}</strong></p></header>\n"
    )


def _verdict(profile: Profile) -> str:
    verdict, gain = profile.verdict, parts.predicted(profile)
    brings = f"<p><em>Predicted:</em> {escape(gain)}.</p>" if gain is not None else ""
    body = (
        f'<div class="verdict"><p><strong>{escape(verdict.binds)}</strong> binds. {escape(verdict.sentence)}</p>'
        f"<p><strong>Next:</strong> {escape(verdict.next_step)}</p>{brings}</div>"
    )
    return _section("Verdict", body)


def _split(profile: Profile) -> str:
    rows: list[list[_Cell]] = []
    for part in parts.parts_of(profile):
        meaning = parts.MEANINGS[part.name]
        if part.share is None:
            rows.append([part.name, meaning, ("", "n"), ("", "n"), (part.words or "", "dim")])
            continue
        share = part.share
        percent = show_percent(share.s / profile.step_s)
        bounds = show_bounds(share.low_s, share.high_s)
        said = bounds if part.words is None else f"{bounds}; {part.words}"
        rows.append([part.name, meaning, (show_seconds(share.s), "n"), (percent, "n"), said])
    table = _table(
        "The same in numbers: the parts add up to the step",
        ["part", "what it is", ("time", "n"), ("of the step", "n"), "95 % interval"],
        rows,
    )
    lumped = "<p>Compute includes what was not measured.</p>" if parts.lumped(profile) else ""
    return _section("Where a step goes", split_svg(profile, _key(profile, "split")) + lumped + table)


def _rates(profile: Profile) -> str:
    rows: list[list[_Cell]] = [
        [row.name, row.meaning, ("", "n"), (row.words, "dim")]
        if row.rate is None
        else [row.name, row.meaning, (show_number(row.rate.samples_per_s), "n"), parts.show_rate_bounds(row.rate)]
        for row in parts.rate_rows(profile)
    ]
    table = _table(
        "What each stage could do alone; the narrowest decides",
        ["rate", "of", ("samples/s", "n"), "95 % interval"],
        rows,
    )
    return _section("From storage to the device", (rates_svg(profile, _key(profile, "rates")) or "") + table)


def _beside(profile: Profile) -> str:
    facts: list[list[_Cell]] = [[name, said] for name, said in parts.facts(profile) if name != "beside steps"]
    body = _table("Also measured", ["what", "value"], facts)
    if profile.happenings:
        rows: list[list[_Cell]] = [
            [parts.happening_name(h), (f"{h.count:,}", "n"), (show_seconds(h.mean_s), "n")] for h in profile.happenings
        ]
        body += _table(
            "Time that is not part of steady steps, over all ranks", ["what", ("count", "n"), ("mean", "n")], rows
        )
    return _section("Beside the split", body)


def _notes(profile: Profile) -> str:
    if not profile.notes:
        return ""
    return _section("Notes", f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in profile.notes)}</ul>")


def _machines(profile: Profile) -> str:
    rows: list[list[_Cell]] = [
        [f"node {node.node}" + (f" ({node.host})" if node.host else ""), parts.machine(node)] for node in profile.nodes
    ]
    rows += [
        ["back end", profile.world.backend or "unknown"],
        ["script", profile.script],
        ["record", str(profile.run)],
    ]
    return _section("Machine and record", _table("Where and what", ["what", "value"], rows))


def _section(heading: str, body: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{body}</section>\n"


def _table(caption: str, heads: Iterable[_Cell], rows: Iterable[Iterable[_Cell]]) -> str:
    """A table whose first column names the row."""
    head = "".join(_cell("th", cell, scope="col") for cell in heads)
    body = "".join(f"<tr>{_row(row)}</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _row(cells: Iterable[_Cell]) -> str:
    first, *rest = cells
    return _cell("th", first, scope="row") + "".join(_cell("td", cell) for cell in rest)


def _cell(tag: str, cell: _Cell, *, scope: str | None = None) -> str:
    words, kind = cell if isinstance(cell, tuple) else (cell, None)
    where = f' scope="{scope}"' if scope else ""
    style = f' class="{kind}"' if kind else ""
    return f"<{tag}{where}{style}>{escape(words)}</{tag}>"


def _key(profile: Profile, picture: str) -> str:
    """An id that two profiles in one notebook do not share."""
    return f"stallwise-{re.sub(r'[^A-Za-z0-9-]', '-', profile.run_id)}-{picture}"
