"""A comparison of policies, drawn, as JSON and as a page, from outcomes that are written here by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stallwise.cluster._outcome import ClusterSeries, Outcome
from stallwise.cluster.job import Job
from stallwise.cluster.policies.catalog import POLICIES
from stallwise.cluster.sweep.cases import Case, NamedCluster, SimulationResult, Sweep, summarise, timeline
from stallwise.cluster.sweep.compare import SimulationComparison, compare_policies, verdict
from stallwise.cluster.topology import Cluster
from stallwise.cluster.traces.rows import Trace
from stallwise.report import terminal
from stallwise.report.format import show_seconds
from stallwise.report.html import write_html
from stallwise.report.json import to_json
from stallwise.report.views.simulate import (
    COLUMNS,
    document,
    draw,
    page,
    show_many,
    spark,
    write_jobs,
)
from stallwise.sentences import Sentence
from tests.report.page_reader import PageReader

JOBS = tuple(Job(id=f"j{i}", arrival_s=10.0 * i, gpus=2, work_s=100.0) for i in range(4))


def outcome(policy: str, waits: tuple[float, ...], jobs: tuple[Job, ...] = JOBS) -> Outcome:
    """Every job waits so long, then runs to its end at full speed."""
    arrival, work = (np.array([getattr(job, name) for job in jobs]) for name in ("arrival_s", "work_s"))
    start = arrival + np.array(waits)
    finish = start + work
    times = np.unique(np.concatenate([arrival, start, finish]))
    running = np.array([int(((start <= at) & (at < finish)).sum()) for at in times])
    waiting = np.array([int(((arrival <= at) & (at < start)).sum()) for at in times])
    none = np.zeros(len(jobs))
    return Outcome(
        jobs=jobs,
        policy=policy,
        cluster_gpus=8,
        first_start_s=start,
        finish_s=finish,
        run_s=finish - start,
        comm_s=none,
        overhead_s=none,
        preemptions=np.zeros(len(jobs), dtype=np.int64),
        migrations=np.zeros(len(jobs), dtype=np.int64),
        widest=np.zeros(len(jobs), dtype=np.int64),
        series=ClusterSeries(
            time_s=times,
            busy_gpus=2 * running,
            running_jobs=running,
            waiting_jobs=waiting,
            waiting_gpus=2 * waiting,
            fragmented_gpus=np.zeros(len(times), dtype=np.int64),
        ),
        events=len(times),
    )


def comparison(
    loads: tuple[float, ...] = (1.0,),
    seeds: tuple[int, ...] = (0,),
    policies: tuple[str, ...] = ("fifo", "srtf", "las"),
) -> SimulationComparison:
    """fifo waits 40 s, srtf 10 s, las 20 s, and a little more with every seed and load."""
    waits = {"fifo": 40.0, "srtf": 10.0, "las": 20.0}
    place = NamedCluster(name="machines=1,gpus=8", cluster=Cluster.counts(gpus=8))
    sweep = Sweep(jobs=JOBS, clusters=(place,), policies=policies, loads=loads, seeds=seeds)
    runs: list[SimulationResult] = []
    for case in sweep.cases():
        wait_s = waits.get(case.policy, 30.0) * case.load + case.seed
        runs.append(summarise(case, outcome(case.policy, (wait_s,) * 4), 0.1, keep=True))
    trace = Trace(source="made.csv", format="plain", jobs=JOBS, notes=(Sentence("a.note", "A note & more."),))
    return compare_policies(trace, sweep, runs)


def drawn(found: SimulationComparison) -> str:
    """As a terminal of 100 columns has it."""
    screen = terminal.console()
    with screen.capture() as text:
        screen.print(terminal.draw(draw(found)))
    return text.get()


def test_the_table_has_every_policy_side_by_side() -> None:
    text = drawn(comparison())
    for expected in (
        "made.csv: 4 jobs",
        "fifo",
        "srtf*",
        "las",
        "2.33 min",
        "JCT mean",
        "makespan",
        Sentence("a.note", "A note & more."),
    ):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 100
    assert "* reads durations" in text
    assert "las has the least mean completion time, 14 % below fifo" in text, "srtf reads durations and does not count"


def test_means_are_those_of_the_outcomes() -> None:
    found = comparison(seeds=(0, 1, 2))
    (setting,) = found.settings
    fifo = setting.standings[0]
    assert fifo.values("jct_mean_s") == pytest.approx((140.0, 141.0, 142.0))
    assert fifo.mean["jct_mean_s"] == pytest.approx(141.0)
    assert fifo.spread("jct_mean_s") == pytest.approx((140.0, 142.0))
    # Student's t with two degrees of freedom: 141 ± 4.3027 · 1 / √3.
    assert fifo.interval("jct_mean_s") == pytest.approx((138.516, 143.484), abs=1e-3)
    assert re.search(r"policy +JCT mean +± 95 % +median", drawn(found))
    assert re.search(r"fifo +2.35 min +±1.8 % +2.35 min", drawn(found))
    assert "±1.8 %" in page(found)


def test_a_lead_is_one_only_where_seeds_agree() -> None:
    """On the same arrivals: las is 20 s quicker than fifo with every seed; with seeds that disagree nobody leads."""
    (setting,) = comparison(seeds=(0, 1, 2), policies=("fifo", "las")).settings
    assert verdict(setting).startswith("las has the least mean completion time, 14 % below fifo")
    fifo, las = setting.standings
    torn = replace(las, results=(las.results[0], fifo.results[1], fifo.results[2]))
    assert "3 seeds do not tell the two apart" in verdict(replace(setting, standings=(fifo, torn)))


def test_json_rows() -> None:
    found = json.loads(to_json(document(comparison(loads=(1.0, 2.0), seeds=(0, 1)))))
    assert len(found["rows"]) == 3 * 2 * 2
    row = found["rows"][0]
    assert {"policy", "jct_mean_s", "jct_median_s", "jct_p95_s", "makespan_s", "queue_mean_s", "utilisation"} <= set(
        row
    )
    assert (row["policy"], row["load"], row["seed"], row["jct_mean_s"]) == ("fifo", 1.0, 0, 140.0)
    assert [one["load"] for one in found["settings"]] == [1.0, 2.0]
    assert found["notes"] == [{"code": "a.note", "text": "A note & more."}]


def test_a_batch_has_no_demand_and_json_no_infinity() -> None:
    jobs = tuple(replace(job, arrival_s=0.0) for job in JOBS)
    place = NamedCluster(name="c", cluster=Cluster.counts(gpus=8))
    sweep = Sweep(jobs=jobs, clusters=(place,), policies=("fifo",))
    run = summarise(Case(policy="fifo"), outcome("fifo", (1.0, 2.0, 3.0, 4.0), jobs), 0.0)
    found = compare_policies(Trace(source="b.csv", format="plain", jobs=jobs), sweep, [run])
    assert json.loads(to_json(document(found)))["settings"][0]["demand"] is None
    assert "All jobs come at once" in drawn(found)
    assert verdict(found.settings[0]) is None, "one policy alone is no contest"


def test_the_page_is_whole_and_can_be_read_aloud(tmp_path: Path) -> None:
    found = comparison(loads=(1.0, 2.0), seeds=(0, 1))
    text = page(found)
    read = PageReader(text)
    assert not re.search(r"https?://|@import|url\(", text)
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "img", "iframe", "object"})
    assert not re.search(r"\b(None|nan|inf)\b", read.text)
    assert len(read.named("h1")) == 1
    assert len(read.named("caption")) == len(read.named("table"))
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"].removeprefix("#") for link in read.named("a")} <= set(ids)
    pictures = [picture for picture in read.named("svg") if picture["class"] == "picture"]
    assert len(pictures) == 2 * 4 + 1, "two loads with four pictures each, and one of completion time against load"
    assert all(set(picture["aria-labelledby"].split()) <= set(ids) for picture in pictures)
    assert "A note &amp; more." in text
    assert write_html(page(found), tmp_path / "page.html").read_text() == text


def test_lines_stay_in_their_frame() -> None:
    for points in re.findall(r'points="([^"]*)"', page(comparison())):
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 56 <= x <= 744.05
            assert 13.95 <= y <= 220.05


def test_many_policies_differ_in_dashes() -> None:
    names = tuple(POLICIES)[:10]
    text = page(comparison(policies=names))
    looks = re.findall(r'<polyline (class="line c\d+"(?: stroke-dasharray="[^"]*")?) points', text)
    assert len(set(looks)) == 10


def test_timeline_keeps_the_area() -> None:
    made = outcome("fifo", (40.0, 5.0, 0.0, 90.0))
    line = timeline(made)
    step_s = line.time_s[1] - line.time_s[0]
    assert float(line.busy_gpus.sum() * step_s) == pytest.approx(float((made.run_s * made.gpus).sum()))
    assert float(line.waiting_jobs.sum() * step_s) == pytest.approx(float(made.queue_s.sum()))


def test_spark() -> None:
    assert spark([], 1) == ""
    assert spark([0.0] * 100, 4) == ""
    assert set(spark([4.0] * 100, 4)) == {"█"}
    assert spark([0.01] * 24, 4) == "▁" * 24, "never so little that it is not there"


def test_jobs_as_csv(tmp_path: Path) -> None:
    import csv

    with write_jobs(comparison(), tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 4
    assert {name: rows[0][name] for name in ("policy", "job_id", "jct_s", "queue_s")} == {
        "policy": "fifo",
        "job_id": "j0",
        "jct_s": "140.0",
        "queue_s": "40.0",
    }


def test_every_column_is_a_figure() -> None:
    (setting,) = comparison().settings
    assert {figure for figure, *_ in COLUMNS} <= set(setting.standings[0].mean)


def test_times_and_counts_stay_short() -> None:
    shown = [show_seconds(value) for value in (0.0, 41.2, 484.0, 138_132.0, 1_612_800.0, 127_765_620.0)]
    assert shown == ["0 s", "41.2 s", "8.07 min", "38.4 h", "18.7 d", "1,480 d"]
    assert [show_many(value) for value in (0, 9369, 204_200)] == ["0", "9,369", "204k"]
