"""Every kind of log is known by its content; what cannot be read is one sentence."""

from pathlib import Path

import numpy as np
import pytest

from stallwise.errors import InputError, UnknownNameError
from stallwise.spot.lifetimes.log import AvailabilityTrace, LifetimeLog, lives_of_counts, select
from stallwise.spot.lifetimes.published import losses_by_hour_of_day, published_lifetimes, published_lifetimes_in
from stallwise.spot.lifetimes.readers import read_log

BAMBOO = "0,add,a\n0,add,b\n60000,remove,a\n120000,add,a\n180000,remove,b\n"
PARCAE = "0,1\n0,2\n60000,1\n120000,3\n"
SEGMENT = (
    '[0, "add", {"nodes": ["a", "b"], "duration": 60000}]\n[60000, "remove", {"nodes": ["a"], "duration": 60000}]\n'
)
SKYPILOT = '{"metadata": {"gap_seconds": 300}, "data": [0, 1, 1, 0, 0, 2, 1]}'
DATED = "2021-12-11, 11:11:30, 5\n2021-12-11, 11:13:30, 4\n2021-12-11, 11:12:30, 6\n"
TABLE = "machine,lifetime_s,ended,gpu,region\nm1,3600,preempted,T4,us-east1-b\nm2,7200,stopped,T4,us-west1-a\n"


def read(folder: Path, text: str, name: str = "log.txt") -> LifetimeLog:
    path = folder / name
    path.write_text(text)
    return read_log(path)


@pytest.mark.parametrize(
    ("text", "lives"),
    [
        (BAMBOO, [(60, True), (180, True), (60, False)]),
        (PARCAE, [(0, False), (0, False)]),
        (SEGMENT, [(60, True), (120, False)]),
        (SKYPILOT, [(600, True), (300, True), (600, False)]),
        (TABLE, [(3600, True), (7200, False)]),
    ],
    ids=["bamboo", "parcae", "segment", "skypilot", "table"],
)
def test_lives_are_what_the_log_says(tmp_path: Path, text: str, lives: list[tuple[float, bool]]) -> None:
    found = read(tmp_path, text)
    seen = sorted((life.lived_s, life.lost) for life in found.lives)
    assert seen == sorted(pair for pair in lives if pair != (0, False))


def test_dated_counts_are_put_in_order_and_say_so(tmp_path: Path) -> None:
    found = read(tmp_path, DATED)
    assert found.trace is not None
    assert found.trace.counts.tolist() == [5, 6, 4]
    assert any("put in order" in note for note in found.notes)


def test_a_series_brings_zone_and_gpu_from_its_name(tmp_path: Path) -> None:
    found = read(tmp_path, SKYPILOT, "us-east-1a_v100_1.json")
    assert {(life.region, life.gpu) for life in found.lives} == {("us-east-1a", "v100")}
    assert found.trace is not None
    assert found.trace.availability(1) == pytest.approx(4 / 7)


def test_the_mean_does_not_depend_on_which_machine_was_lost() -> None:
    trace = AvailabilityTrace(np.array([0.0, 10, 20, 30]), np.array([0, 3, 1, 0]), 40.0)
    lives, unseen = lives_of_counts(trace)
    assert unseen == 0
    assert sum(life.lived_s for life in lives) == pytest.approx(10 * 3 + 10)
    assert sum(life.lost for life in lives) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no column lifetime_s"),
        ("lifetime_s\n5\n", "no column ended"),
        ("lifetime_s,ended\n", "no rows"),
        (
            "lifetime_s,ended\n-5,preempted\n",
            r"line 2: a machine that lived -5 s. Lifetimes are finite and not negative",
        ),
        ("lifetime_s,ended\nsoon,preempted\n", "is no number"),
        ("lifetime_s,ended\n5,vanished\n", "expected preempted or stopped"),
        ("start,end,ended\n2026-01-02T00:00:00,2026-01-01T00:00:00,lost\n", "not negative; check which column"),
        ("start,end,ended\nyesterday,2026-01-01T00:00:00,lost\n", "is no time like"),
        (
            "machine,start,lifetime_h,ended\nm,2026-01-01T00:00:00,5,lost\nm,2026-01-01T02:00:00,1,lost\n",
            "events overlap: m has a life that begins",
        ),
        ("0,add,a\n60000,add,a\n", "events overlap: a is added while it is there already, at 60 s"),
        ("0,add,a\n60000,remove,b\n", "events overlap: b is removed while it is not there"),
        ("60000,add,a\n0,add,b\n", "time goes back"),
        ("0,1\n5,-2\n", "Counts are not negative"),
        ("5,1\n0,2\n", "time goes back"),
        ('{"metadata": {}, "data": [1]}', "no availability series"),
        ('{"metadata": {"gap_seconds": 5}, "data": [1, -1]}', "not a count"),
        ('{"metadata": ', "cut off or not JSON"),
        ('[0, "add", {"nodes": ["a"]}]\n[1, "remove"]\n', "line 2: expected"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_log(tmp_path / "none.csv")


def test_a_region_stands_for_its_zones_and_an_empty_one_is_an_error(tmp_path: Path) -> None:
    log = read(tmp_path, TABLE)
    assert len(select(log, region="us-east1").lives) == 1
    with pytest.raises(
        UnknownNameError, match=r"No region with lifetimes in log\.txt is called 'mars'\. There are us-"
    ):
        select(log, region="mars")
    with pytest.raises(InputError, match="names no gpu"):
        select(read(tmp_path, BAMBOO), gpu="V100")


def test_shipped_tables_are_whole() -> None:
    assert sum(table.machines for table in published_lifetimes()) == 396
    assert {gpu: sum(hours) for gpu, hours in losses_by_hour_of_day().items()}.keys() == {"K80", "P100", "V100"}
    for table in published_lifetimes():
        life = table.life()
        assert float(life.cdf(24 * 3600.0)) == 1
        for hours in range(1, 24):
            assert float(life.cdf(hours * 3600.0)) == pytest.approx(table.fraction_lost(hours))
        assert sum(life.lost for life in table.log().lives) == table.lost
    with pytest.raises(UnknownNameError, match="There are asia-east1, europe-west4, us-central1, us-west1"):
        published_lifetimes_in("V100", "us-east9")
