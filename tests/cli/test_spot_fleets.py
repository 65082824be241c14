"""`stallwise spot plan` with several kinds of machines, machines of some age, prices that move, zones, deadlines."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_spot import PLAN, RATES, TIMES, _json, _no, run, series
from tests.conftest import Cli, texts

__all__ = ["run", "series"]

K80 = "count=4,speed=0.3,lifetimes=K80/us-west1,price=0.723,spot-price=0.256,name=K80"
V100 = (*PLAN, "--lifetimes", "V100/us-central1", "--replays", "1000")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """Half a year of days at $1, with two at $2 and one at $0.5 in each week."""
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=day) for day in range(182)]
    week = [1.0, 1.0, 2.0, 2.0, 1.0, 0.5, 1.0]
    rows = [f"{day},g5.xlarge,use1-az1,{week[i % 7]}" for i, day in enumerate(days)]
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(["date,instance_type,az,spot_usd_h", *rows]) + "\n")
    return path


def _levers(found: Any, name: str) -> dict[str, Any]:
    return {lever["said"]: lever for lever in found["levers"] if lever["name"] == name}


def work_on_four_s(ask: Cli, run: Path) -> float:
    """Of 300,000 recorded steps of 100 ms, on four machines instead of two, as `stallwise whatif` predicts them."""
    speedup = json.loads(ask("whatif", str(run), "--nodes", "4", "--json").stdout)["speedup"]
    return 300_000 * 0.1 / float(speedup)


def test_kinds_mix(ask: Cli, run: Path) -> None:
    mixed = _json(ask, "plan", run, *V100, "--mix", K80, "--shares", "by-speed")
    assert [(group["spot"], group["on_demand"], group["speed"]) for group in mixed["fleet"]] == [(4, 0, 1), (4, 0, 0.3)]
    assert mixed["work_s"] == pytest.approx(work_on_four_s(ask, run) * 4 / (4 + 4 * 0.3))
    assert _levers(mixed, "kinds")["without the 4 of K80"]["saved_s"] < 0, "by speed, slow machines help"
    assert "the 4 of K80 on-demand" in _levers(mixed, "mix")


def test_equal_shares_wait_for_the_slowest(ask: Cli, run: Path) -> None:
    found = _json(ask, "plan", run, *V100, "--mix", K80 + ",on-demand=4")
    assert found["lock_step"]
    assert found["work_s"] == pytest.approx(work_on_four_s(ask, run) * 4 / (8 * 0.3))
    assert _levers(found, "kinds")["each machine a share by its speed"]["saved_s"] > 0
    assert _levers(found, "kinds")["without the 4 of K80"]["saved_s"] > 0, "slow machines slow the fast ones down"
    assert any("wait for the slowest" in said for said in texts(found["assumptions"]))


def test_machines_of_some_age_are_kept_or_replaced(ask: Cli, run: Path) -> None:
    kept = _json(ask, "plan", run, *V100, "--age", "2h")
    assert kept["reuse"]["keep"], "those that live two hours live long there"
    assert kept["reuse"]["kept_s"] < kept["reuse"]["fresh_s"]
    assert _levers(kept, "reuse")["fresh machines instead of those that are there"]["saved_s"] < 0
    text = ask("spot", "plan", str(run), *V100, "--age", "23h").stdout
    assert "replace the machines of 23 h" in text, "the 24 h limit is near"


def test_fleets_follow_prices(ask: Cli, run: Path, prices: Path) -> None:
    history = ("--price-history", prices, "--instance", "g5.xlarge")
    long = ("--steps", "6000000", "--nodes", "4", *TIMES, "--mean-life", "200h", "--price", "3", *history)
    static = _json(ask, "plan", run, *long)
    assert static["spot_usd_per_h"] == pytest.approx((4 * 1.0 + 2 * 2.0 + 0.5) / 7, rel=0.01)
    assert len(_levers(static, "price")) >= 2
    assert (static["price"]["cap_usd_per_h"], static["price"]["days"]) == (None, 182)
    assert "NaN" not in json.dumps(static)
    capped = _json(ask, "plan", run, *long, "--price-cap", "1.5")
    assert capped["plan"]["cost_usd"]["mean"] < static["plan"]["cost_usd"]["mean"]
    assert capped["plan"]["finish_s"]["mean"] > static["plan"]["finish_s"]["mean"]
    text = ask(
        "spot", "plan", str(run), *map(str, long), "--spend", "5", "--on-loss", "shrink", "--html", "p.html"
    ).stdout
    assert "as many as $5.00/h buys, up to 8 (dynamic)" in text
    assert "as many as $5.00/h buys" in (prices.parent / "p.html").read_text()


def test_the_zone_is_chosen(ask: Cli, run: Path) -> None:
    found = _json(ask, "plan", run, *V100)
    assert found["zone"]["looked_at"] == 4
    assert found["zone"]["best"].startswith("V100 in europe-west4")
    assert found["zone"]["saved_usd"] > 0
    text = ask("spot", "plan", str(run), *PLAN, "--lifetimes", "V100/europe-west4").stdout
    assert "V100 in europe-west4, as planned, is the best of 4 looked at" in text


def test_a_deadline_is_met_by_switching(ask: Cli, run: Path, series: Path) -> None:
    asked = (
        "plan", run, "--steps", "800000", "--nodes", "1", *RATES, *TIMES, "--lifetimes", series, "--deadline", "60h"
    )  # fmt: skip
    free = _json(ask, *asked, code=1)
    assert free["plan"]["in_time"] < 0.9
    assert len(_levers(free, "switch in time")) == 2
    for way in ("--switch", "--uniform"):
        bound = _json(ask, *asked, way)
        assert bound["plan"]["in_time"] > 0.99
        assert bound["plan"]["cost_usd"]["mean"] < bound["on_demand"]["cost_usd"]["mean"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mix", "4 of K80"), "--mix takes name=value pairs"),
        (("--mix", "count=4,sped=2"), "Did you mean speed"),
        (("--mix", "count=x,speed=1"), "is no number"),
        (("--mix", "count=1.5,speed=1"), "as a whole number"),
        (("--mix", "count=2,on-demand=3,speed=1"), "no mix"),
        (("--mix", "count=2,speed=1"), "Prices are needed"),
        (("--mix", "count=2,price=1,spot-price=1,mean-life=9h"), "needs speed="),
        (("--mix", K80, "--shares", "fair"), "'fair' is not one of 'equal', 'by-speed'"),
        (("--price-cap", "1"), "need --price-history"),
        (("--price-history", "none.csv"), "cannot be read"),
        (("--uniform", "--deadline", "9h"), "needs --lifetimes with a trace"),
        (("--interval", "none", "--mix", K80), "Without checkpoints a loss of any of 8 spot machines"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_one_sentence_says_what_to_give(ask: Cli, run: Path, options: tuple[str, ...], said: str) -> None:
    assert said in _no(ask, "plan", run, *V100, *options)


def test_prices_that_cannot_be_met_or_read(ask: Cli, run: Path, prices: Path) -> None:
    asked = ("plan", run, *V100, "--price-history", prices)
    assert "never at or below 0.1" in _no(ask, *asked, "--price-cap", "0.1")
    assert "one kind of machine" in _no(ask, *asked, "--mix", K80)
    assert "No zone with prices" in _no(ask, *asked, "--price-zone", "use1-az9")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lifetime_s,ended\n-5,preempted\n", "not negative"),
        ("lifetime_s,ended\n5,stopped\n7,stopped\n", "all rows are censored"),
        ("0,add,a\n5,add,a\n", "events overlap"),
        (
            "machine,start,end,ended\na,2026-01-01T00:00:00,2026-01-02T00:00:00,preempted\n"
            "a,2026-01-01T12:00:00,2026-01-03T00:00:00,preempted\n",
            "events overlap",
        ),
        ("lifetime_s,ended,region\n", "no"),
        ("0,3\n60000,-1\n", "Counts are not negative"),
        ('{"metadata": {"gap_seconds": 300}, "data": []}', "no availability series"),
    ],
    ids=["negative", "censored", "overlap", "overlapping lives", "no rows", "negative count", "empty series"],
)
def test_bad_logs_are_one_sentence(ask: Cli, run: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    assert said in _no(ask, "fit", "bad.csv")
    if said in ("not negative", "all rows are censored"):
        assert said in _no(ask, "plan", run, *PLAN, "--lifetimes", "bad.csv")


def test_an_empty_region_is_named(ask: Cli, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("lifetime_s,ended,region\n50,preempted,east-a\n70,stopped,west-a\n")
    assert "There are east-a, west-a" in _no(ask, "fit", "log.csv", "--region", "mars")
    said = _no(ask, "fit", "log.csv", "--region", "west")
    assert "all rows are censored" in said
