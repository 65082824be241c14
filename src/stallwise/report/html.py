"""The page: a profile as one HTML file that needs nothing else, and the same for notebooks."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path

from stallwise.record.detail import Detail
from stallwise.record.profile import Profile
from stallwise.report import heat, parts, timeline_svg
from stallwise.report.document import document, write
from stallwise.report.html_detail import bucket_section, layers_section, ranks_section, time_section
from stallwise.report.markup import Cell, Raw, Row, key_of, number, section, table
from stallwise.report.style import KINDS
from stallwise.report.style import STYLE as BASE_STYLE
from stallwise.report.svg import Piece, bar
from stallwise.report.text import show_bounds, show_number, show_percent, show_seconds
from stallwise.run.manifest import NodeRecord

# A stage much faster than the narrowest one is drawn this many times as wide, its end cut off.
_WIDEST = 4.0
_FEW_NODES = 8
_STYLE = timeline_svg.STYLE + heat.STYLE
_STAGES = {"F": "storage", "P": "loader workers", "G": "device"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProfile(Profile):
    """A profile that a notebook draws."""

    detail: Detail | None = None

    def _repr_html_(self) -> str:
        return f"<style>{BASE_STYLE}{_STYLE}</style>{_article(self, self.detail or Detail(), linked=False)}"


def show(profile: Profile, detail: Detail | None = None) -> ShownProfile:
    """The same profile, drawn where a notebook shows it."""
    known = {field.name: getattr(profile, field.name) for field in fields(Profile)}
    return ShownProfile(**known, detail=detail)


def write_page(profile: Profile, path: Path, detail: Detail | None = None) -> Path:
    """Write the page to `path` and return it."""
    return write(page(profile, detail), path)


def page(profile: Profile, detail: Detail | None = None) -> str:
    """The whole document: no script, nothing from elsewhere."""
    article = _article(profile, detail or Detail(), linked=True)
    return document(f"{parts.title(profile)}: where the time goes", article, _STYLE)


def _article(profile: Profile, detail: Detail, *, linked: bool) -> str:
    made = {
        "step": ("Where a step goes", _split(profile)),
        "time": ("A step over time", time_section(profile, detail)),
        "data": ("From storage to the device", _rates(profile)),
        "bucket": ("Bucket", bucket_section(profile)),
        "ranks": ("Ranks", ranks_section(profile, detail)),
        "layers": ("Layers", layers_section(profile, detail)),
        "more": ("Beside the split", _beside(profile)),
        "notes": ("Notes", _notes(profile)),
        "machine": ("Machine and record", _machines(profile)),
    }
    shown = {key: told for key, told in made.items() if told[1]}
    links = "".join(f'<a href="#{key_of(profile, key)}">{escape(name)}</a>' for key, (name, _) in shown.items())
    nav = f'<nav aria-label="Sections">{links}</nav>' if linked else ""
    body = "".join(section(name, body, key_of(profile, key)) for key, (name, body) in shown.items())
    return f'<article class="stallwise">{_heading(profile, nav)}{body}</article>'


def _heading(profile: Profile, nav: str) -> str:
    facts = f"{parts.setting(profile)} · {profile.state} · run {profile.run_id}"
    partial = ""
    if profile.partial_reason:
        partial = f'<p class="partial" role="note"><strong>Not whole:</strong> {escape(profile.partial_reason)}</p>'
    return (
        f'<header><h1>{escape(parts.title(profile))}</h1><p class="dim">{escape(facts)}</p>{nav}{partial}'
        f"{_tiles(profile)}{_verdict(profile)}</header>\n"
    )


def _tiles(profile: Profile) -> str:
    """The four figures to leave with."""
    verdict = profile.verdict
    speed, *further = parts.speeds(profile).split(" · ")
    rate, _, unit = speed.rpartition(" ")
    binding = getattr(profile.split, verdict.binds, None)
    share = "" if binding is None else f"{show_percent(binding.s / profile.step_s)} of the step"
    tiles = [
        ("step", show_seconds(profile.step_s), parts.step_bounds(profile)),
        ("speed", rate, " · ".join([unit, *further]))
        if rate != "samples/s"
        else ("speed", "unknown", "no samples seen"),
        ("binds", verdict.binds, share),
    ]
    if verdict.predicted_step_s is not None:
        gain = (
            ""
            if verdict.predicted_gain is None
            else f"{show_percent(verdict.predicted_gain)} less, with the advice below"
        )
        tiles.append(("predicted", show_seconds(verdict.predicted_step_s), gain))
    return f'<dl class="tiles">{"".join(_tile(*tile) for tile in tiles)}</dl>'


def _tile(name: str, value: str, more: str) -> str:
    told = f"<strong>{escape(value)}</strong>{escape(more) or '&nbsp;'}"
    return f'<div class="tile"><dt>{escape(name)}</dt><dd>{told}</dd></div>'


def _verdict(profile: Profile) -> str:
    verdict = profile.verdict
    kind = verdict.binds if verdict.binds in KINDS else "rate"
    return (
        f'<div class="verdict {kind}"><p>{escape(verdict.sentence)}</p>'
        f"<p><strong>Next:</strong> {escape(verdict.next_step)}</p></div>"
    )


def _split(profile: Profile) -> str:
    shown = parts.parts_of(profile)
    reach_s = max([profile.step_s, *(parts.end_s(part) for part in shown)])
    rows = [_split_row(part, profile.step_s, reach_s) for part in shown]
    limit = Cell(Raw(bar((), limit=profile.step_s / reach_s)), "chart")
    foot: Row = [
        "step",
        limit,
        number(show_seconds(profile.step_s)),
        number("100 %"),
        number(parts.step_bounds(profile)),
    ]
    drawn = table(
        "Each part begins where the one above ends; together they are the step. Lines with ends are 95 % intervals.",
        ["part", Cell("", "chart"), number("time"), number("of the step"), number("95 % interval")],
        rows,
        foot,
    )
    return drawn + ("<p>Compute includes what was not measured.</p>" if parts.lumped(profile) else "")


def _split_row(part: parts.Part, step_s: float, reach_s: float) -> Row:
    meaning = parts.MEANINGS[part.name]
    if part.share is None:
        return [Cell(part.name, small=meaning, swatch=part.name), Cell(part.words or "", "words", span=4)]
    share, start = part.share, part.start_s / reach_s
    whisker = None
    if math.isfinite(share.high_s):
        whisker = (start + share.low_s / reach_s, start + share.high_s / reach_s)
    pieces = [Piece(start, share.s / reach_s, part.name)] if part.words is None else []
    name = Cell(part.name, small=meaning, swatch=part.name)
    chart = Cell(Raw(bar(pieces, whisker=whisker)), "chart")
    if part.words is not None:
        return [name, chart, Cell(part.words, "words", span=3)]
    percent, bounds = show_percent(share.s / step_s), show_bounds(share.low_s, share.high_s)
    return [name, chart, number(show_seconds(share.s)), number(percent), Cell(bounds, "n dim")]


def _rates(profile: Profile) -> str:
    rows = {row.name: row for row in parts.rate_rows(profile)}
    flow = [rows["F"], rows["P"], rows["G"]]
    known = [row.rate.samples_per_s for row in flow if row.rate is not None]
    if not known:
        return ""
    job = profile.samples_per_s
    narrowest = min(known)
    most = min(_WIDEST * narrowest, max([*known, *([job] if job else [])]))
    stages = "".join(_stage(row, narrowest, most, job) for row in flow)
    if job:
        stages += f'<li class="job">the job<strong>{escape(show_number(job))}</strong><small>samples/s</small></li>'
    beside = " ".join(_rate_words(name, rows[name]) for name in ("P/core", "C"))
    return (
        '<p class="dim">What each stage could do alone, in samples/s with its 95 % interval; the narrowest decides. '
        f'Dashed: the job itself.</p><ol class="path">{stages}</ol><p class="dim">{escape(beside)}</p>'
    )


def _stage(row: parts.RateRow, narrowest: float, most: float, job: float | None) -> str:
    name = f"<span>{escape(row.name)} · {escape(_STAGES[row.name])}</span>"
    if row.rate is None:
        return f"<li>{name}<small>{escape(row.words)}</small></li>"
    rate = row.rate.samples_per_s
    limit = job / most if job and job <= most else None
    drawn = bar([Piece(0.0, min(1.0, rate / most), "rate")], limit=limit, cut=rate > most)
    kind, narrow = (' class="narrowest"', "<small>narrowest</small>") if rate == narrowest else ("", "")
    bounds = f"<small>{escape(parts.show_rate_bounds(row.rate))}</small>{narrow}"
    return f"<li{kind}>{name}<strong>{escape(show_number(rate))}</strong>{drawn}{bounds}</li>"


def _rate_words(name: str, row: parts.RateRow) -> str:
    what = {"P/core": "One core prepares", "C": "The page cache delivers"}[name]
    if row.rate is None:
        return f"{what}: {row.words}."
    return f"{what} {show_number(row.rate.samples_per_s)} ({parts.show_rate_bounds(row.rate)})."


def _beside(profile: Profile) -> str:
    facts: list[Row] = [[name, said] for name, said in parts.facts(profile) if name not in {"beside steps", "bucket"}]
    body = table("Also measured", None, facts)
    if profile.happenings:
        rows: list[Row] = [
            [parts.happening_name(h), number(f"{h.count:,}"), number(show_seconds(h.mean_s))]
            for h in profile.happenings
        ]
        heads: Row = ["what", number("count"), number("mean")]
        body += table("Time that is not part of steady steps, over all ranks", heads, rows)
    return f'<div class="pairs">{body}</div>'


def _notes(profile: Profile) -> str:
    return f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in profile.notes)}</ul>" if profile.notes else ""


def _nodes(nodes: Sequence[NodeRecord]) -> Iterator[Row]:
    """Each node; of many, neighbours that are alike in one row."""
    if len(nodes) <= _FEW_NODES:
        for node in nodes:
            yield [f"node {node.node}" + (f" ({node.host})" if node.host else ""), parts.machine(node)]
        return
    alike = [(machine, list(group)) for machine, group in itertools.groupby(nodes, key=parts.machine)]
    for machine, group in alike[:_FEW_NODES]:
        first, last = group[0].node, group[-1].node
        yield [f"node {first}" if first == last else f"nodes {first:,} to {last:,}", machine]
    rest = sum(len(group) for _, group in alike[_FEW_NODES:])
    if rest:
        yield [f"{rest:,} more nodes", "of several kinds"]


def _machines(profile: Profile) -> str:
    rows: list[Row] = list(_nodes(profile.nodes))
    rows += [
        ["back end", profile.world.backend or "unknown"],
        ["script", Cell(profile.script, "code")],
        ["record", Cell(str(profile.run), "code")],
    ]
    return table("Where and what", None, rows)
