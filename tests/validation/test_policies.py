"""The map of Dally: what is kept is what is shown, and every network is there."""

import json
from itertools import product

import pytest

from tests.conftest import ROOT
from validation import policies
from validation.policies import BANDWIDTHS, LATENCIES_S, MAP, ON_MAP, gains, network_of, show_map


def test_the_page_shows_the_kept_map() -> None:
    page = (ROOT / "evidence/policies.md").read_text()
    assert "\n".join(show_map()) in page, "python -m validation.policies --map --kept"


def test_every_network_of_the_map_has_every_policy() -> None:
    rows = json.loads(MAP.read_text())
    places = {(row["bandwidth"], row["latency_s"], row["shared"], row["policy"]) for row in rows}
    assert places == set(product(BANDWIDTHS, LATENCIES_S, (False, True), ON_MAP))
    settings = [
        tuple(str(row[name]) for name in ("bandwidth", "latency_s", "shared", "trace", "racks")) for row in rows
    ]
    assert all(settings.count(setting) == len(ON_MAP) for setting in settings)


def test_no_mean_beyond_ten_times_fifo_stands_without_its_reason() -> None:
    page = (ROOT / "evidence/policies.md").read_text().splitlines()
    head = next(line for line in page if "beyond 10 × FIFO" in line)
    columns = [cell.strip() for cell in head.split("|")[1:-1]]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page if line.startswith("| poisson_")]
    assert len(rows) == 88
    policies = columns[columns.index("FIFO") : columns.index("patient") + 1]
    for cells in rows:
        row = dict(zip(columns, cells, strict=True))
        far = [name for name in policies if float(row[name]) > 10.5 * float(row["FIFO"])]  # figures are rounded
        assert all(f"{name} " in row["beyond 10 × FIFO"] for name in far), cells


def test_a_mean_beyond_ten_times_fifo_says_where_the_time_went() -> None:
    row = policies.Setting("t", 2, "congested", False)
    cells = {
        (row, name): policies.Cell(jct_mean_s=jct_s, makespan_s=1.0, comm_mean_s=0.0, lost=0.75)
        for name, jct_s in (("fifo", 100.0), ("dally", 1000.0), ("dally:chunk=1000", 2500.0), ("las", 1001.0))
    }
    said = policies.far_from_fifo(cells, row, ["fifo", "dally", "dally:chunk=1000", "las"])
    assert said == (
        "dally:chunk=1000 25 ×, 75% of GPU time lost to links, and a chunk does not end with its lease; "
        "las 10 ×, 75% of GPU time lost to links"
    )


def test_only_links_between_racks_change() -> None:
    slow, released = network_of("0.025 / 0.005"), network_of("released")
    assert slow.links["rack"].bandwidth_bytes_per_s == pytest.approx(10e9)
    assert slow.links["rack"].latency_s == 0.005
    assert {name: link for name, link in slow.links.items() if name != "rack"} == {
        name: link for name, link in released.links.items() if name != "rack"
    }


def test_a_gain_is_what_the_winner_saves(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    place = {"bandwidth": 1.0, "latency_s": 5e-6, "shared": False, "trace": "t", "racks": 2}
    figures = {"makespan_s": 200.0, "jct_mean_s": 100.0, "comm_mean_s": 0.0}
    rows = [place | {"policy": "tiresias"} | figures]
    rows.append(place | {"policy": "dally"} | figures | {"makespan_s": 50.0, "jct_mean_s": 110.0})
    kept = tmp_path / "map.json"
    kept.write_text(json.dumps(rows))
    monkeypatch.setattr(policies, "MAP", kept)
    (gain,) = gains("tiresias")
    assert gain["makespan_s"] == 0.75
    assert gain["jct_mean_s"] == pytest.approx(-0.1)
    assert "comm_mean_s" not in gain  # nothing to save
