"""A comparison of policies as one HTML file that needs nothing else: table, distributions, cluster over time."""

from html import escape
from pathlib import Path

from stallwise.cluster.comparison import Comparison, Setting, Standing, verdict
from stallwise.cluster.traces.checks import load_sentence
from stallwise.report.document import document, write
from stallwise.report.markup import Cell, Row, number, section, table
from stallwise.report.simulate import (
    COLUMNS,
    INTERVAL,
    notes,
    show_count,
    show_interval,
    show_policy,
    show_setting,
    show_time,
)
from stallwise.report.simulate_plots import STYLE, Line, chart, legend
from stallwise.report.text import show_percent


def write_page(found: Comparison, path: Path) -> Path:
    """Write the page to `path` and return it."""
    return write(page(found), path)


def page(found: Comparison) -> str:
    """The whole document: no script, nothing from elsewhere."""
    made = [part for i, setting in enumerate(found.settings) for part in _parts(found, setting, i)]
    made += _against_load(found)
    made.append(("What the figures mean", "meaning", _meaning()))
    if notes(found):
        made.append(("Notes", "notes", _list(notes(found))))
    links = "".join(f'<a href="#simulate-{key}">{escape(name)}</a>' for name, key, _ in made)
    body = "".join(section(name, drawn, f"simulate-{key}") for name, key, drawn in made)
    title = f"{found.source}: policies side by side"
    header = (
        f'<header><h1>{escape(title)}</h1><p class="dim">{escape(_how(found))}</p>'
        f'<nav aria-label="Sections">{links}</nav>{_verdicts(found)}</header>\n'
    )
    return document(title, f'<article class="stallwise">{header}{body}</article>', STYLE)


def _how(found: Comparison) -> str:
    seeds = f" · {found.seeds} seeds" if found.seeds > 1 else ""
    contention = " · jobs that share a link slow each other" if found.contention else ""
    return f"{found.jobs:,} jobs · {found.format} · arrivals {found.arrivals}{seeds}{contention}"


def _verdicts(found: Comparison) -> str:
    said = [(setting, verdict(setting)) for setting in found.settings]
    lines = "".join(
        f"<p><strong>{escape(show_setting(one))}:</strong> {escape(words)}</p>" for one, words in said if words
    )
    return f'<div class="verdict compute">{lines}</div>' if lines else ""


def _parts(found: Comparison, setting: Setting, place: int) -> list[tuple[str, str, str]]:
    where = _where(found, setting)
    named = legend([show_policy(standing) for standing in setting.standings])
    return [
        (f"Side by side{where}", f"table-{place}", _table(found, setting)),
        (f"Completion times{where}", f"jct-{place}", named + _distribution(setting, "jct", f"jct-{place}-chart")),
        (f"Waiting{where}", f"queue-{place}", named + _distribution(setting, "queue", f"queue-{place}-chart")),
        (f"Over time{where}", f"time-{place}", named + _busy(setting, place) + _waiting(setting, place)),
    ]


def _where(found: Comparison, setting: Setting) -> str:
    """What tells this setting from the others, for headings and links."""
    told = []
    if len({one.cluster for one in found.settings}) > 1:
        told.append(setting.cluster)
    if len({one.load for one in found.settings}) > 1:
        told.append(f"load {setting.load:g}")
    return f": {', '.join(told)}" if told else ""


def _table(found: Comparison, setting: Setting) -> str:
    heads: list[str | Cell] = ["policy", *(Cell(heading, "n") for _, heading, _, _ in COLUMNS)]
    if found.seeds > 1:
        heads.insert(2, Cell(INTERVAL, "n"))
    rows: list[Row] = []
    for standing in setting.standings:
        cells: list[str | Cell] = [show_policy(standing)]
        cells += [number(show(standing.mean[figure])) for figure, _, show, _ in COLUMNS]
        if found.seeds > 1:
            cells.insert(2, number(show_interval(standing, COLUMNS[0][0])))
        rows.append(cells)
    return f"<p>{escape(load_sentence(setting.asked))}</p>{table(show_setting(setting), heads, rows)}"


def _distribution(setting: Setting, what: str, key: str) -> str:
    """Part of the jobs that took no longer; the first seed."""
    lines = []
    for i, standing in enumerate(setting.standings):
        run = standing.runs[0]
        values = run.jct_s if what == "jct" else run.queue_s
        lines.append(
            Line(show_policy(standing), i, [float(value) for value in values], [float(at) for at in run.levels])
        )
    told = "; ".join(f"{line.name} {show_time(line.x[len(line.x) // 2])}" for line in lines)
    words = f"Half of the jobs {'are done within' if what == 'jct' else 'waited no longer than'}: {told}."
    title = "Part of jobs over completion time" if what == "jct" else "Part of jobs over time without GPUs"
    return chart(key, title, words, lines, show_x=show_time, show_y=show_percent, most_y=1.0, logarithmic=True)


def _busy(setting: Setting, place: int) -> str:
    lines = [_over_time(standing, i, waiting=False) for i, standing in enumerate(setting.standings)]
    told = "; ".join(
        f"{line.name} {show_percent(sum(line.y) / len(line.y) / setting.gpus)}" for line in lines if line.y
    )
    words = f"GPUs held by jobs, of {setting.gpus:,}; on average until the last end: {told}."
    return chart(
        f"time-{place}-busy", "Busy GPUs over time", words, lines,
        show_x=show_time, show_y=show_count, most_y=setting.gpus,
    )  # fmt: skip


def _waiting(setting: Setting, place: int) -> str:
    lines = [_over_time(standing, i, waiting=True) for i, standing in enumerate(setting.standings)]
    most = max((max(line.y, default=0.0) for line in lines), default=0.0)
    told = "; ".join(f"{line.name} {show_count(max(line.y, default=0.0))}" for line in lines)
    return chart(
        f"time-{place}-waiting", "Waiting jobs over time", f"Jobs without GPUs; at most: {told}.", lines,
        show_x=show_time, show_y=show_count, most_y=most,
    )  # fmt: skip


def _over_time(standing: Standing, place: int, *, waiting: bool) -> Line:
    series = standing.runs[0].timeline
    values = series.waiting_jobs if waiting else series.busy_gpus
    began_s = float(series.time_s[0]) if len(series.time_s) else 0.0
    return Line(
        show_policy(standing), place, [float(at) - began_s for at in series.time_s], [float(value) for value in values]
    )


def _against_load(found: Comparison) -> list[tuple[str, str, str]]:
    """Mean completion time over load, where a sweep has several; one picture per cluster."""
    made = []
    for place, cluster in enumerate(dict.fromkeys(setting.cluster for setting in found.settings)):
        here = sorted((one for one in found.settings if one.cluster == cluster), key=lambda one: one.load)
        if len({one.load for one in here}) < 2:
            continue
        loads = [one.load for one in here]
        lines = [
            Line(show_policy(standing), i, loads, [one.standings[i].mean["jct_mean_s"] for one in here])
            for i, standing in enumerate(here[0].standings)
        ]
        most = max(max(line.y) for line in lines)
        words = f"Mean completion time when jobs come {loads[0]:g} to {loads[-1]:g} times as fast as in the trace."
        drawn = legend([line.name for line in lines]) + chart(
            f"load-{place}-chart", "Mean completion time over load", words, lines,
            show_x=lambda value: f"{value:.3g}", show_y=show_time, most_y=most,
        )  # fmt: skip
        made.append((f"Against load: {cluster}", f"load-{place}", drawn))
    return made


def _meaning() -> str:
    return table("Of the columns above.", None, [(heading, words) for _, heading, _, words in COLUMNS])


def _list(sentences: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in sentences)}</ul>"
