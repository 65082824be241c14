"""A comparison of policies: its view, JSON and tables."""

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from stallwise.cluster.sweep.cases import SimulationResult
from stallwise.cluster.sweep.compare import FIGURES, PolicyStanding, SimulationComparison, SweepSetting, verdict
from stallwise.cluster.traces.rows import load_sentence
from stallwise.errors import InputError
from stallwise.report.charts import line_of
from stallwise.report.format import show_factor, show_number, show_percent, show_seconds
from stallwise.report.html import page as html_page
from stallwise.report.json import plain, schema
from stallwise.report.view import (
    Axis,
    Cell,
    Chart,
    Line,
    Notes,
    PartColumn,
    Section,
    Series,
    Span,
    TablePart,
    View,
    facts,
    number,
    section,
    table,
)

_BLOCKS = " ▁▂▃▄▅▆▇█"
_SPARK = 24
_LOST = 0.5  # more of the GPU time lost to placement says that the network is not what was meant

Show = Callable[[float], str]


def show_many(value: float) -> str:
    """A count, in thousands from 100,000 on; a mean over seeds need not be whole: 9,369, 204k."""
    return f"{value:,.0f}" if value < 99_950 else f"{value / 1000:,.0f}k"


# Figure, heading, how it is written, and what it says.
COLUMNS: tuple[tuple[str, str, Show, str], ...] = (
    ("jct_mean_s", "JCT mean", show_seconds, "arrival to end, mean over jobs"),
    ("jct_median_s", "median", show_seconds, "of the same"),
    ("jct_p95_s", "p95", show_seconds, "of the same: 95 % of the jobs take no longer"),
    ("queue_mean_s", "waiting", show_seconds, "without GPUs, at first and after every preemption; mean"),
    ("makespan_s", "makespan", show_seconds, "first arrival to last end"),
    ("utilisation", "used", show_percent, "full-speed work over all GPU time until the last end"),
    ("comm_share", "lost", show_percent, "time with GPUs lost to slow placements"),
    ("fragmentation", "idle", show_percent, "GPUs free although a waiting job was small enough"),
    ("fairness_p95", "ρ p95", show_number, "JCT over that of an equal share of the cluster"),
    ("preemptions", "stops", show_many, "preemptions of all jobs"),
)
INTERVAL = "± 95 %"
"""Heading of the interval of the first of them over seeds."""


def draw(comparison: SimulationComparison) -> View:
    """Everything, setting by setting; distributions and lines over time on a page."""
    sections = [one for place in range(len(comparison.settings)) for one in _setting(comparison, place)]
    verdicts = [(show_setting(one), verdict(one)) for one in comparison.settings]
    return View(
        f"{comparison.source}: {comparison.jobs:,} jobs",
        " · ".join(_circumstances(comparison)),
        (facts(((name, best) for name, best in verdicts if best), box="compute", only="page"),)
        if any(best for _, best in verdicts)
        else (),
        (
            *sections,
            *_against_load(comparison),
            section("What the figures mean", "meaning", _meaning(), _legend()),
            section("Notes", "notes", Notes("notes", tuple(notes(comparison)))),
        ),
        key="simulate",
        page_title=f"{comparison.source}: policies side by side",
        subtitle=" · ".join((f"{comparison.jobs:,} jobs", *_circumstances(comparison))),
    )


def page(comparison: SimulationComparison) -> str:
    """The comparison as one self-contained HTML page."""
    return html_page(draw(comparison))


def _circumstances(comparison: SimulationComparison) -> list[str]:
    circumstances = [comparison.format, f"arrivals {comparison.arrivals}"]
    if comparison.seeds > 1:
        circumstances.append(f"{comparison.seeds} seeds")
    if comparison.contention:
        circumstances.append("with contention")
    return circumstances


def show_setting(setting: SweepSetting) -> str:
    """racks=2,machines=8,gpus=8: 128 GPUs; jobs come 1.5 times as fast."""
    speed = "" if setting.load == 1 else f"; jobs come {show_number(setting.load)} times as fast"
    return f"{setting.cluster}: {setting.gpus:,} GPUs{speed}"


def _setting(comparison: SimulationComparison, place: int) -> Iterator[Section]:
    setting = comparison.settings[place]
    where = _where(comparison, setting)
    yield section(
        f"Side by side{where}",
        f"table-{place}",
        facts(_setting_facts(setting), only="terminal"),
        facts([("load", load_sentence(setting.demand))], only="page"),
        _figures(setting, spread=comparison.seeds > 1),
        _over_time(setting),
    )
    yield section(f"Completion times{where}", f"jct-{place}", _distribution(setting, "jct", f"jct-{place}-chart"))
    yield section(f"Waiting{where}", f"queue-{place}", _distribution(setting, "queue", f"queue-{place}-chart"))
    yield section(f"Over time{where}", f"time-{place}", _busy(setting, place), _waiting_chart(setting, place))


def _setting_facts(setting: SweepSetting) -> Iterator[tuple[str, Line]]:
    yield "cluster", show_setting(setting)
    yield "load", load_sentence(setting.demand)
    best = verdict(setting)
    if best:
        yield "best", Span(best, "strong")
    lost = max(standing.mean["comm_share"] for standing in setting.standings)
    if lost >= _LOST:
        yield (
            "caution",
            Span(
                f"up to {show_percent(lost)} of the GPU time is lost to slow placements: check that the "
                "network given for the cluster is the one it has",
                "warn",
            ),
        )


def _figures(setting: SweepSetting, *, spread: bool) -> TablePart:
    """With several seeds the mean completion time has its 95 % interval beside it."""
    columns = [PartColumn("policy"), *(number(name) for _, name, _, _ in COLUMNS)]
    if spread:
        columns.insert(2, number(INTERVAL))
    rows = []
    for standing in setting.standings:
        cells: list[Cell | Line] = [
            show_policy(standing),
            *(_cell(setting, standing, figure, show) for figure, _, show, _ in COLUMNS),
        ]
        if spread:
            cells.insert(2, Cell(show_interval(standing, COLUMNS[0][0]), "dim"))
        rows.append(cells)
    return table(columns, rows, split=True, caption="Policies side by side")


def show_policy(standing: PolicyStanding) -> str:
    """The policy's name, with a star if it reads durations."""
    return f"{standing.label}*" if standing.clairvoyant else standing.label


def show_interval(standing: PolicyStanding, figure: str) -> str:
    """±1.8 %: how far the mean over seeds may lie from that over all seeds there could be, with 95 %."""
    mean = standing.mean[figure]
    return f"±{show_percent((standing.interval(figure)[1] - mean) / mean)}" if mean > 0 else ""


def _cell(setting: SweepSetting, standing: PolicyStanding, figure: str, show: Show) -> Cell:
    value = standing.mean[figure]
    best = len(setting.standings) > 1 and value == setting.best(figure)
    return Cell(show(value), "best" if best else "")


def _over_time(setting: SweepSetting) -> TablePart:
    most_waiting = max((max(_waiting(standing), default=0.0) for standing in setting.standings), default=0.0)
    rows = []
    for standing in setting.standings:
        busy, waiting = standing.results[0].timeline.busy_gpus, _waiting(standing)
        rows.append(
            (
                show_policy(standing),
                Span(spark(list(busy), setting.gpus), "good"),
                show_many(max(busy, default=0.0)),
                Span(spark(waiting, most_waiting), "warn"),
                show_many(max(waiting, default=0.0)),
            )
        )
    columns = ("over time", PartColumn("busy GPUs"), number("most"), PartColumn("waiting jobs"), number("most"))
    return table(columns, rows, split=True, only="terminal")


def _waiting(standing: PolicyStanding) -> list[float]:
    return [float(value) for value in standing.results[0].timeline.waiting_jobs]


def spark(values: Sequence[float], most: float) -> str:
    """A line of blocks, each the mean of its stretch; full height is `most`."""
    if not values or most <= 0:
        return ""
    blocks = []
    for i in range(_SPARK):
        low = i * len(values) // _SPARK
        part = values[low : max(low + 1, (i + 1) * len(values) // _SPARK)]
        level = sum(part) / len(part) / most
        blocks.append(_BLOCKS[max(int(level > 0), min(8, round(level * 8)))])
    return "".join(blocks).rstrip()


def notes(comparison: SimulationComparison) -> list[str]:
    """Notes needed to read the figures."""
    starred = any(standing.clairvoyant for setting in comparison.settings for standing in setting.standings)
    return [*comparison.notes, *(["* reads durations, which no scheduler knows of a real job."] if starred else [])]


def _where(comparison: SimulationComparison, setting: SweepSetting) -> str:
    """What distinguishes this setting from the others, for headings and links."""
    names = []
    if len({one.cluster for one in comparison.settings}) > 1:
        names.append(setting.cluster)
    if len({one.load for one in comparison.settings}) > 1:
        names.append(f"load {show_number(setting.load)}")
    return f": {', '.join(names)}" if names else ""


def _distribution(setting: SweepSetting, what: str, key: str) -> Chart:
    """Fraction of the jobs that took no longer; the first seed."""
    lines = []
    for i, standing in enumerate(setting.standings):
        run = standing.results[0]
        values = run.jct_s if what == "jct" else run.queue_s
        points = [(float(value), float(at)) for value, at in zip(values, run.levels, strict=True)]
        lines.append(line_of(show_policy(standing), i, points))
    medians = "; ".join(f"{line.name} {show_seconds(line.points[len(line.points) // 2][0])}" for line in lines)
    words = f"Half of the jobs {'are done within' if what == 'jct' else 'waited no longer than'}: {medians}."
    title = "Fraction of jobs over completion time" if what == "jct" else "Fraction of jobs over time without GPUs"
    axes = Axis(show_seconds, logarithmic=True), Axis(show_percent, low=0.0, high=1.0)
    return Chart(key, title, words, *axes, tuple(lines), legend=True, only="page")


def _busy(setting: SweepSetting, place: int) -> Chart:
    lines = [_over_time_line(standing, i, waiting=False) for i, standing in enumerate(setting.standings)]
    means = "; ".join(
        f"{line.name} {show_percent(sum(y for _, y in line.points) / len(line.points) / setting.gpus)}"
        for line in lines
        if line.points
    )
    words = f"GPUs held by jobs, of {setting.gpus:,}; on average until the last end: {means}."
    axes = Axis(show_seconds), Axis(show_many, low=0.0, high=float(setting.gpus))
    key = f"time-{place}-busy"
    return Chart(key, "Busy GPUs over time", words, *axes, tuple(lines), legend=True, only="page")


def _waiting_chart(setting: SweepSetting, place: int) -> Chart:
    lines = [_over_time_line(standing, i, waiting=True) for i, standing in enumerate(setting.standings)]
    peaks = [max((y for _, y in line.points), default=0.0) for line in lines]
    named = "; ".join(f"{line.name} {show_many(peak)}" for line, peak in zip(lines, peaks, strict=True))
    axes = Axis(show_seconds), Axis(show_many, low=0.0, high=max(peaks, default=0.0) or 1.0)
    words = f"Jobs without GPUs; at most: {named}."
    return Chart(f"time-{place}-waiting", "Waiting jobs over time", words, *axes, tuple(lines), only="page")


def _over_time_line(standing: PolicyStanding, place: int, *, waiting: bool) -> Series:
    series = standing.results[0].timeline
    values = series.waiting_jobs if waiting else series.busy_gpus
    began_s = float(series.time_s[0]) if len(series.time_s) else 0.0
    points = [(float(at) - began_s, float(value)) for at, value in zip(series.time_s, values, strict=True)]
    return line_of(show_policy(standing), place, points)


def _against_load(comparison: SimulationComparison) -> Iterator[Section]:
    """Mean completion time over load, where a sweep has several; one picture per cluster."""
    for place, cluster in enumerate(dict.fromkeys(setting.cluster for setting in comparison.settings)):
        settings = sorted((one for one in comparison.settings if one.cluster == cluster), key=lambda one: one.load)
        if len({one.load for one in settings}) < 2:
            continue
        lines = tuple(
            line_of(show_policy(standing), i, [(one.load, one.standings[i].mean["jct_mean_s"]) for one in settings])
            for i, standing in enumerate(settings[0].standings)
        )
        most = max(y for line in lines for _, y in line.points)
        first, last = settings[0].load, settings[-1].load
        words = (
            f"Mean completion time when jobs come {show_number(first)} to {show_factor(last)} as fast as in the trace."
        )
        axes = Axis(show_number), Axis(show_seconds, low=0.0, high=most)
        chart = Chart(
            f"load-{place}-chart", "Mean completion time over load", words, *axes, lines, legend=True, only="page"
        )
        yield section(f"Against load: {cluster}", f"load-{place}", chart)


def _meaning() -> TablePart:
    rows = ((name, words) for _, name, _, words in COLUMNS)
    return table(("column", PartColumn("meaning", wrap=True)), rows, "Of the columns above.", only="page")


def _legend() -> Notes:
    return Notes("columns", tuple(f"{name}: {words}" for _, name, _, words in COLUMNS), only="terminal")


def document(comparison: SimulationComparison) -> dict[str, Any]:
    """`rows` holds one row per simulation, `settings` the means over seeds."""
    return {
        **schema("simulate"),
        "trace": comparison.source,
        "format": comparison.format,
        "jobs": comparison.jobs,
        "arrivals": comparison.arrivals,
        "contention": comparison.contention,
        "seeds": comparison.seeds,
        "rows": [
            _row(setting, standing, run)
            for setting in comparison.settings
            for standing in setting.standings
            for run in standing.results
        ],
        "settings": [_setting_record(setting) for setting in comparison.settings],
        "notes": list(comparison.notes),
    }


def _row(setting: SweepSetting, standing: PolicyStanding, run: SimulationResult) -> dict[str, Any]:
    figures = {field.name: plain(getattr(run.metrics, field.name)) for field in fields(run.metrics)}
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


def _setting_record(setting: SweepSetting) -> dict[str, Any]:
    return {
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "load": setting.load,
        "demand": plain(setting.demand.demand),
        "gpu_s": setting.demand.gpu_s,
        "span_s": setting.demand.span_s,
        "largest_gang": setting.demand.largest_gang,
        "verdict": verdict(setting),
        "policies": [
            {
                "policy": standing.policy,
                "clairvoyant": standing.clairvoyant,
                "mean": {name: plain(standing.mean[name]) for name in FIGURES},
                "low": {name: plain(standing.spread(name)[0]) for name in FIGURES},
                "high": {name: plain(standing.spread(name)[1]) for name in FIGURES},
                "mean_low": {name: plain(standing.interval(name)[0]) for name in FIGURES},
                "mean_high": {name: plain(standing.interval(name)[1]) for name in FIGURES},
            }
            for standing in setting.standings
        ],
    }


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def _csv_cell(value: object) -> object:
    """Return a cell that a spreadsheet shows as text: names of jobs and models come from traces."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def write_rows(comparison: SimulationComparison, path: Path) -> Path:
    """One line per simulation; numbers as they are, to the last digit."""
    rows = document(comparison)["rows"]
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: _csv_cell(value) for name, value in row.items()} for row in rows)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).", fields=("csv",)) from None
    return path


JOB_COLUMNS = (
    "policy", "cluster", "load", "seed", "job_id", "gpus", "arrival_s", "first_start_s", "finish_s", "jct_s", "run_s",
    "queue_s", "work_s", "comm_s", "preemptions", "migrations",
)  # fmt: skip


def write_jobs(comparison: SimulationComparison, path: Path) -> Path:
    """One row per job and simulation; times in seconds from the start of the trace."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(JOB_COLUMNS)
            for setting in comparison.settings:
                for standing in setting.standings:
                    for run in standing.results:
                        out = run.outcome
                        if out is None:
                            continue
                        head = (standing.policy, setting.cluster, setting.load, run.case.seed)
                        arrays = (
                            out.gpus, out.arrival_s, out.first_start_s, out.finish_s, out.jct_s, out.run_s, out.queue_s,
                            out.work_s, out.comm_s, out.preemptions, out.migrations,
                        )  # fmt: skip
                        columns = (array.tolist() for array in arrays)
                        for job, *values in zip(out.jobs, *columns, strict=True):
                            writer.writerow((*map(_csv_cell, head), _csv_cell(job.id), *values))
    except OSError as error:
        raise InputError(f"The jobs cannot be written to {path} ({error.strerror}).", fields=("jobs",)) from None
    return path
