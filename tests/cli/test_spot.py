"""`stallwise spot` on real records and logs, and one sentence for every way it cannot answer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Cli, texts
from tests.report.made_runs import make_full_run
from tests.report.page_reader import PageReader
from tests.run.made import make_run
from tests.sentences import coded

RATES = ("--price", "3", "--spot-price", "1")
TIMES = ("--checkpoint-time", "30s", "--provision", "90s", "--restart", "60s")
PLAN = ("--steps", "300000", "--nodes", "4", *RATES, *TIMES)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes, steps of 100 ms, 128 samples each, one checkpoint of 40 ms."""
    folder = tmp_path_factory.mktemp("spot") / "run"
    make_full_run(folder)
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Sixty machines in two regions; every third was stopped by its owner."""
    random = np.random.default_rng(2)
    path = tmp_path / "log.csv"
    rows = []
    for i, life_s in enumerate(random.exponential(40_000, 60)):
        ended, region = "stopped" if i % 3 == 0 else "preempted", "east-a" if i % 2 else "west-a"
        rows.append(f"m{i},{life_s:.0f},{ended},T4,{region},2026-01-0{i % 9 + 1}T10:00:00")
    path.write_text("\n".join(["machine,lifetime_s,ended,gpu,region,start", *rows]) + "\n")
    return path


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """Ten days of a zone that is there for some hours and then is not."""
    random = np.random.default_rng(4)
    data: list[int] = []
    while len(data) < 2880:
        data += [1] * int(random.integers(20, 150)) + [0] * int(random.integers(2, 40))
    path = tmp_path / "us-east-1a_v100_1.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 300}, "data": data[:2880]}))
    return path


def _json(cli: Cli, *arguments: str | Path, code: int = 0) -> Any:
    done = cli("spot", *map(str, arguments), "--json", code=code)
    assert done.stderr == ""
    return coded(done.stdout)


def _no(cli: Cli, *arguments: str | Path) -> str:
    done = cli("spot", *map(str, arguments), code=2)
    assert done.stdout == ""
    assert done.stderr.startswith("stallwise: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_log_is_fitted(cli: Cli, log: Path) -> None:
    found = _json(cli, "fit", log)
    assert (found["machines"], found["losses"]) == (60, 40)
    assert {fit["name"] for fit in found["fits"]} == {"exponential", "Weibull"}
    assert [group["name"] for group in found["by_region"]] == ["east-a", "west-a"]
    assert sum(row["losses"] for row in found["by_hour"]) == 40
    parts = [row["part"] for row in found["lost_within"]]
    assert parts == sorted(parts)
    text = cli("spot", "fit", str(log)).stdout
    for expected in ("60 machines · 40 lost", "Kaplan-Meier", "Weibull", "by region", "by hour of day", "20 of 60"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_region_can_be_chosen(ask: Cli, log: Path) -> None:
    assert _json(ask, "fit", log, "--region", "east")["machines"] == 30
    assert "There are east-a, west-a" in _no(ask, "fit", log, "--region", "mars")


def test_published_tables_are_listed_and_fitted(ask: Cli) -> None:
    tables = _json(ask, "fit", "published")["tables"]
    assert sum(table["machines"] for table in tables) == 396
    assert _json(ask, "fit", "V100/us-west1")["losses"] == 22
    assert "europe-west4" in ask("spot", "fit", "published").stdout


def test_a_plan_has_every_part(cli: Cli, run: Path) -> None:
    found = _json(cli, "plan", run, *PLAN, "--lifetimes", "P100/us-east1", "--deadline", "6h", "--budget", "25")
    # Four machines of the run's own kind, as `stallwise whatif` predicts them.
    wider = json.loads(cli("whatif", str(run), "--nodes", "4", "--json").stdout)
    assert 1.5 < wider["speedup"] < 2
    assert found["work_s"] == pytest.approx(300_000 * 0.1 / wider["speedup"], rel=1e-9)
    assert found["save_s"] == 30
    plan = found["plan"]
    assert plan["finish_s"]["low"] <= plan["finish_s"]["median"] <= plan["finish_s"]["high"]
    assert found["closed_form"]["total_s"] + 150 == pytest.approx(plan["finish_s"]["mean"], rel=0.02)
    assert found["on_demand"]["losses"] == 0
    assert plan["cost_usd"]["mean"] < found["on_demand"]["cost_usd"]["mean"]
    names = [lever["name"] for lever in found["levers"]]
    assert names.count("zone") == 3
    assert {"on-demand", "switch in time", "mix", "replace", "on loss", "saving", "start-up"} <= set(names)
    assert any("as predicted by stallwise whatif" in said for said in texts(found["assumptions"]))


def test_the_screen_says_it_all(cli: Cli, run: Path) -> None:
    text = cli(
        "spot", "plan", str(run), *PLAN, "--lifetimes", "P100/us-east1", "--deadline", "6h", "--budget", "25"
    ).stdout
    for expected in ("80 %:", "within 6 h:", "within $25.00:", "Young-Daly", "dynamic programme", "closed form",
                     "distribution", "what each lever is worth", "assumed", "P100 in us-west1"):  # fmt: skip
        assert expected in text.replace("\n              ", " ")
    assert max(map(len, text.splitlines())) <= 100


def test_what_the_record_lacks_is_assumed_aloud(ask: Cli, run: Path) -> None:
    arguments = ("--steps", "300000", *RATES, "--mean-life", "20h")
    said = " ".join(texts(_json(ask, "plan", run, *arguments)["assumptions"]))
    assert "Saving takes 0.04 s, the mean of those in the record (1)" in said
    assert "--provision" in said
    assert "--restart" in said
    guessed = _json(ask, "plan", run, *arguments, "--checkpoint-size", "100MB")
    assert guessed["save_s"] == pytest.approx(5.7, abs=0.5)
    assert any("20 published checkpoints" in said for said in texts(guessed["assumptions"]))


def test_a_trace_is_replayed(ask: Cli, run: Path, series: Path) -> None:
    found = _json(ask, "plan", run, "--steps", "200000", "--nodes", "1", *RATES, *TIMES, "--lifetimes", series)
    assert found["method"].startswith("replays of the job from moments like now in 10 days")
    waiting = found["plan"]["finish_s"]["mean"] - found["on_demand"]["finish_s"]["mean"]
    assert waiting > 0


def test_samples_say_how_long_too(ask: Cli, run: Path) -> None:
    options = ("--nodes", "2", *RATES, *TIMES, "--mean-life", "50h")
    by_steps = _json(ask, "plan", run, "--steps", "100000", *options)
    by_samples = _json(ask, "plan", run, "--samples", str(100_000 * 4 * 32), *options)
    assert by_steps["work_s"] == pytest.approx(by_samples["work_s"])


def test_limits_that_are_missed_are_exit_code_1(ask: Cli, run: Path) -> None:
    found = _json(ask, "plan", run, *PLAN, "--mean-life", "8h", "--deadline", "4.3h", "--interval", "2h", code=1)
    assert found["plan"]["in_time"] < 0.9
    assert any(lever["name"] == "interval" for lever in found["levers"])


def test_the_page_is_whole_and_needs_nothing_else(ask: Cli, run: Path, tmp_path: Path) -> None:
    done = ask("spot", "plan", str(run), *PLAN, "--mean-life", "20h", "--deadline", "6h", "--html", "page.html")
    assert "page.html" in done.stderr
    text = (tmp_path / "page.html").read_text()
    read = PageReader(text)
    assert "http" not in text
    assert {tag for tag, _ in read.tags}.isdisjoint({"script", "img", "iframe"})
    assert [svg["role"] for svg in read.named("svg") if svg["class"] == "picture"] == ["img", "img"]
    for expected in (
        "When it is finished",
        "What it costs",
        "What each lever is worth",
        "Assumed",
        "deadline",
    ):
        assert expected in read.text
    assert "nan" not in text
    assert "None" not in read.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--steps", "300000", *RATES), "How long do machines live?"),
        ((*PLAN[4:], "--mean-life", "20h"), "Options: --steps, --samples, --work."),
        (("--steps", "0", *RATES, *TIMES, "--mean-life", "20h"), "at least one step"),
        (("--steps", "300000", "--mean-life", "20h"), "Prices are needed"),
        ((*PLAN, "--mean-life", "0s"), "--mean-life takes a time above 0"),
        ((*PLAN, "--mean-life", "20h", "--interval", "none"), "Without checkpoints a loss of any of 4 spot machines"),
        ((*PLAN, "--mean-life", "20h", "--on-loss", "weit"), "Did you mean wait"),
        ((*PLAN, "--mean-life", "20h", "--on-demand", "9"), "do not fit into a fleet of 4"),
        ((*PLAN, "--mean-life", "20h", "--switch"), "--switch needs --deadline"),
        ((*PLAN, "--lifetimes", "V100/mars"), "There are asia-east1"),
        ((*PLAN, "--lifetimes", "H100/us-east1"), "No GPU with published lifetimes is called 'H100'"),
        ((*PLAN, "--lifetimes", "missing.csv"), "cannot be read"),
        ((*PLAN[:4], *TIMES, "--mean-life", "9h", "--instance", "p3.2xlarge", "--region", "eu-north-1"), "lists no"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else None,
)
def test_one_sentence_says_what_to_give(ask: Cli, run: Path, options: tuple[str, ...], said: str) -> None:
    assert said in _no(ask, "plan", run, *options)


def test_a_bare_record_needs_the_time_of_a_checkpoint(ask: Cli, tmp_path: Path) -> None:
    make_run(tmp_path / "bare", [0.1] * 8)
    said = _no(ask, "plan", tmp_path / "bare", "--steps", "1000", *RATES, "--mean-life", "20h")
    assert "says nothing about checkpoints" in said


def test_prices_come_from_the_catalog(ask: Cli, run: Path) -> None:
    found = _json(
        ask,
        "plan",
        run,
        "--steps",
        "300000",
        *TIMES,
        "--mean-life",
        "20h",
        "--instance",
        "p3.2xlarge",
        "--region",
        "us-east-1",
    )
    assert found["usd_per_h"] == pytest.approx(3.06)
    assert 0 < found["spot_usd_per_h"] < 3.06
    assert any("listed" in said for said in texts(found["assumptions"]))
