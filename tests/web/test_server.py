"""The server by itself: who is let in, what is refused, and that it answers as the command line does."""

import json
import os
import re
import shlex
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stallwise.cli.ui import _losses
from stallwise.errors import StallwiseError
from stallwise.hardware.catalog import load_catalog
from stallwise.web.runs import RunCache, RunFolder
from tests.conftest import Cli
from tests.figures import Figures
from tests.fuzz.strangers import replies
from tests.report.made_runs import make_full_run
from tests.web.conftest import Served, serving
from tests.web.made import SCRIPT, make_many

PAGES = ("/", "/api/runs", "/static/ui.js", "/report/profile?run=cold", "/skypilot?run=cold&samples=1e6")


@pytest.mark.parametrize("token", ["", "wrong", "x" * 43])
@pytest.mark.parametrize("page", PAGES)
def test_a_wrong_token_opens_nothing(served: Served, page: str, token: str) -> None:
    answer = served.get(page, token=token)
    assert answer.status == 403
    assert b"token" in answer.body
    assert served.get(f"/?token={token or 'none'}", token="").status == 403


def test_the_token_in_the_address_becomes_a_cookie(served: Served) -> None:
    answer = served.get(f"/?token={served.token}", token="")
    place = "/" + served.base.rpartition("/")[2] + "/"
    assert (answer.status, answer.headers["location"]) == (303, place)
    cookie = answer.headers["set-cookie"]
    assert served.token in cookie
    assert "httponly" in cookie.lower()
    assert "samesite=lax" in cookie.lower()
    assert f"Path={place};" in cookie, "a browser would send it to every port of 127.0.0.1"


def test_nothing_lies_outside_the_place(served: Served) -> None:
    outside = replace(served, address=f"http://127.0.0.1:{served.port}/?token={served.token}")
    for page in (*PAGES, f"/?token={served.token}", "/x" * 20):
        answer = outside.get(page, token=served.token)
        assert answer.status == 403
        assert "set-cookie" not in answer.headers
    assert outside.get("//" + served.base.rpartition("/")[2] + "/api/runs", token=served.token).status == 403


def test_the_owner_is_served_beside_500_idle_strangers(served: Served) -> None:
    strangers: list[socket.socket] = []
    try:
        for number in range(500):
            strangers.append(socket.create_connection(("127.0.0.1", served.port), timeout=250))
            if number % 2:
                strangers[-1].sendall(b"GET / HTTP/1.1\r\nX-")
        for page in PAGES:
            assert served.get(page).status == 200
        assert strangers[0].recv(1) == b"", "the oldest gave way"
    finally:
        for stranger in strangers:
            stranger.close()
    assert served.get("/api/runs").status == 200


def test_whatever_a_stranger_sends_opens_nothing(served: Served, tmp_path: Path) -> None:
    place = "/" + served.base.rpartition("/")[2]
    seeds = [
        f"GET {place}/api/runs HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nCookie: stallwise=x\r\n\r\n".encode(),
        f"GET {place}/?token=x HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nConnection: close\r\n\r\n".encode(),
        f"POST {place}/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode(),
    ]
    statuses = set()
    for sent, reply in replies(
        lambda: socket.create_connection(("127.0.0.1", served.port), 60), seeds, tmp_path / "ran"
    ):
        assert re.match(rb"HTTP/1.1 4|$", reply), sent
        assert served.token.encode() not in reply
        statuses.add(reply[9:12])
    assert {b"400", b"403"} <= statuses
    assert served.get("/api/runs").status == 200


def test_another_host_name_and_another_method_are_refused(served: Served) -> None:
    assert served.get("/api/runs", host="evil.example").status == 403
    assert served.get("/api/runs", method="POST").status == 405
    assert served.get("/api/runs", method="DELETE").status == 405
    assert served.get("/nothing").status == 404


def test_every_answer_says_what_the_page_may_do(served: Served) -> None:
    for page in (*PAGES, "/nothing"):
        headers = served.get(page).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
    assert "script-src 'self'" in served.get("/").headers["content-security-policy"]
    report = served.get("/report/profile?run=cold").headers["content-security-policy"]
    assert "sandbox" in report
    assert "script-src" not in report


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good run among links that lead out of the folder, and a pipe that would never end."""
    outside = tmp_path_factory.mktemp("outside")
    make_full_run(outside / "secret")
    folder = outside / "runs"
    for name in ("cold", "linked-manifest", "linked-table", "linked-parts"):
        make_full_run(folder / name)
    (folder / "link").symlink_to(outside / "secret")
    for name, file in (("linked-manifest", "manifest.json"), ("linked-table", "steps.npz")):
        (folder / name / file).unlink()
        (folder / name / file).symlink_to(outside / "secret" / file)
    (folder / "linked-parts" / "parts").symlink_to(outside / "secret")
    (folder / "fifo").mkdir()
    os.mkfifo(folder / "fifo" / "manifest.json")
    return folder


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "cold/../../secret",
        "/etc",
        "cold/../cold",
        "cold//",
        ".\\..\\secret",
        "cold\0",
        "link",
        "linked-manifest",
        "linked-table",
        "linked-parts",
        "fifo",
        "absent",
        "",
        "x" * 5000,
    ],
)
def test_nothing_outside_the_folder_is_read(traps: Path, key: str) -> None:
    shelf = RunFolder(traps)
    assert shelf.run_path("cold") == traps / "cold"
    with pytest.raises(StallwiseError):
        shelf.run_path(key)


def test_a_list_shows_what_is_refused(traps: Path) -> None:
    listed = RunFolder(traps).listing()
    assert {one.key for one in listed.runs} == {"cold", "linked-table", "linked-parts"}
    assert {one.key for one in listed.refused} == {"linked-manifest", "fifo"}


def test_the_server_says_no_to_the_same(served: Served) -> None:
    for key in ("../x", "%2e%2e%2fx", "/etc/passwd", "cold%2f..%2f..%2fx", "cold%00"):
        for path in ("/api/run", "/report/profile", "/api/whatif"):
            answer = served.get(f"{path}?run={key}")
            assert answer.status == 422, answer.body
            assert b"root:" not in answer.body
        assert served.get(f"/api/simulation?file={key}").status == 422
    assert served.get("/static/../app.py").status == 404
    assert served.get("/static/%2e%2e/app.py").status == 404


def _read_bytes() -> int:
    """How much this process has read from files so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A manifest and a simulation of two gigabytes (of holes), and a manifest that is nested too deep."""
    for name in ("manifest.json", "sim.json"):
        path = tmp_path / ("run" if name == "manifest.json" else "sims") / name
        path.parent.mkdir()
        with path.open("wb") as file:
            file.write(b'{"trace": "x", "arrivals": "')
            file.truncate(2 * 2**30)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "manifest.json").write_text("[" * 200_000)
    return tmp_path


def _refused(huge: Path) -> None:
    shelf = RunFolder(huge)
    listed = shelf.listing()
    with pytest.raises(StallwiseError, match="2,147 MB"):
        shelf.run_path("run")
    with pytest.raises(StallwiseError, match="2,147 MB"):
        shelf.file_path("sims/sim.json")
    assert {one.key for one in listed.refused} == {"run", "deep"}
    assert listed.simulations == ()


def test_two_gigabytes_of_json_are_refused_without_reading_them(huge: Path) -> None:
    before = _read_bytes()
    _refused(huge)
    assert _read_bytes() - before < 100e6


@pytest.mark.truth
def test_two_gigabytes_of_json_are_refused_at_once(huge: Path, figures: Figures) -> None:
    began = time.perf_counter()
    _refused(huge)
    figures.at_most("2 GB of JSON refused", time.perf_counter() - began, 1.0)


def test_five_hundred_runs_are_listed(tmp_path: Path) -> None:
    make_many(tmp_path, 500)
    listed = RunFolder(tmp_path).listing()
    assert len({one.key for one in listed.runs}) == 500
    assert not listed.refused


@pytest.mark.truth
def test_five_hundred_runs_are_listed_within_a_second(tmp_path: Path, figures: Figures) -> None:
    make_many(tmp_path, 500)
    with serving(tmp_path) as server:
        for nth in ("first", "second"):
            began = time.perf_counter()
            found = server.ask("/api/runs")
            figures.at_most(f"500 runs listed, {nth} time", time.perf_counter() - began, 1.0)
            assert len(found["runs"]) == 500


def test_a_hostile_record_stays_text(served: Served) -> None:
    report = served.get("/report/profile?run=hostile")
    assert report.status == 200
    assert b"<script" not in report.body
    assert b"&lt;script&gt;" in report.body
    facts = served.get("/api/run?run=hostile")
    assert facts.headers["content-type"] == "application/json"
    assert SCRIPT in facts.json()["script"]
    listed = served.ask("/api/runs")
    assert any(SCRIPT in one["script"] for one in listed["runs"])


def test_a_run_of_1024_ranks_has_a_page_below_a_megabyte(served: Served) -> None:
    report = served.get("/report/profile?run=wide")
    assert report.status == 200
    assert len(report.body) < 1_000_000
    assert report.body.count(b'class="heat') >= 1024
    assert b"rank 1023" in report.body


# Positions of the sliders; the answer names the command that says the same.
OWN: tuple[dict[str, object], ...] = (
    {},
    {"workers": 6},
    {"cache": 0.5},
    {"nodes": 4},
    {"nodes": 8, "network_gbit": 25, "link_gbit": 400},
    {"nodes": 4, "used": 1},
    {"nodes": 4, "batch": "kept"},
    {"workers": 1, "cache": 0.0, "nodes": 2},
)


@pytest.mark.parametrize("sliders", OWN, ids=str)
def test_sliders_answer_as_whatif_does(served: Served, ask: Cli, sliders: dict[str, object]) -> None:
    found = served.ask("/api/whatif", run="cold", samples=1e7, usd_per_h=2.5, **sliders)
    words = shlex.split(found["command"])
    assert words[0] == "stallwise"
    said = json.loads(ask(*words[1:], "--json", "--no-curve").stdout)
    predicted = said["predicted"]
    assert found["step"]["s"] == predicted["step_s"]
    assert {part["name"]: part["s"] for part in found["parts"]} == {
        name.removesuffix("_s"): seconds for name, seconds in predicted["split"].items()
    }
    assert (found["binds"], found["critical"]) == (predicted["binds"], predicted["binding"])
    drawn = ask(*words[1:], "--no-curve").stdout
    assert found["step"]["shown"] in drawn
    assert f"{found['speed']} samples/s" in drawn
    assert found["time"]["s"] == pytest.approx(1e7 / predicted["samples_per_s"], rel=1e-4)
    nodes = sliders.get("nodes", 2)
    assert isinstance(nodes, int)
    assert found["cost"]["usd"] == pytest.approx(nodes * 2.5 * found["time"]["s"] / 3600)


RENTED: tuple[dict[str, object], ...] = (
    {"instance": "aws/p4d.24xlarge", "nodes": 2, "used": 8},
    {"instance": "aws/g5.12xlarge", "nodes": 1, "used": 4, "workers": 4},
    {"instance": "aws/p4d.24xlarge", "nodes": 1, "used": 8, "batch": "kept"},
    {"instance": "aws/p4d.24xlarge", "nodes": 2, "used": 8, "spot": 1, "mean_life_h": 6},
)


@pytest.mark.parametrize("sliders", RENTED, ids=str)
def test_sliders_answer_as_recommend_does(served: Served, ask: Cli, sliders: dict[str, object]) -> None:
    found = served.ask("/api/whatif", run="cold", samples=1e8, **sliders)
    words = shlex.split(found["command"])
    said = json.loads(ask(*words[1:], "--json").stdout)
    alike = [
        one
        for one in [*said["front"], said["pick"], *said["lost"]]
        if one and (one["machines"], one["gpus_per_machine"]) == (sliders["nodes"], sliders["used"])
    ]
    assert alike, "the same fleet is on the front, or lost"
    same = alike[0]
    assert found["fleet"] == same["fleet"]
    assert found["step"]["s"] == pytest.approx(same["step_s"])
    assert found["time"]["s"] == pytest.approx(same["time_s"])
    assert found["cost"]["usd"] == pytest.approx(same["usd"])
    split = {part["name"]: part["s"] for part in found["parts"]}
    assert split == pytest.approx(same["split_s"])


def test_a_link_or_a_cache_changes_a_rented_fleet(served: Served) -> None:
    fleet = {"run": "cold", "instance": "aws/p4d.24xlarge", "nodes": 4, "samples": 1e8}
    listed, slow = (served.ask("/api/whatif", **fleet, **more) for more in ({}, {"network_gbit": 1}))
    assert slow["step"]["s"] > listed["step"]["s"]
    assert slow["command"] is None, "no command asks that"
    warm, cold = (served.ask("/api/whatif", **fleet, workers=1, cache=part) for part in (1, 0))
    assert cold["step"]["s"] > warm["step"]["s"]


def test_what_cannot_be_is_a_sentence(served: Served) -> None:
    for status, query, words in (
        (200, "run=wide", "only single GPUs"),
        (200, "run=cold&network_gbit=25&nodes=4", "link"),
        (200, "run=cold&instance=aws/none&samples=1", "none"),
        (200, "run=cold&instance=aws/p4d.24xlarge", "samples"),
        (422, "run=cold&nodes=0", "nodes"),
        (422, "run=cold&workers=x", "workers"),
        (422, "", "run"),
    ):
        answer = served.get(f"/api/whatif?{query}")
        assert answer.status == status
        assert words in answer.json()["cannot" if status == 200 else "error"]


def test_the_skypilot_file_is_the_commands_own(served: Served, ask: Cli, tmp_path: Path) -> None:
    query = "run=cold&samples=1e8&deadline_h=6&cloud=aws"
    found = served.get(f"/api/recommend?{query}").json()
    words = shlex.split(found["command"])
    told = ask(*words[1:], "--skypilot", str(tmp_path / "task.yaml"), "--json")
    said = json.loads(told.stdout)
    assert (found["verdict"], found["front"][0]["usd"]) == (said["verdict"]["text"], said["front"][0]["usd"])
    sky = served.get(f"/skypilot?{query}")
    assert "attachment" in sky.headers["content-disposition"]
    assert sky.body.decode() == (tmp_path / "task.yaml").read_text()
    other = served.get(f"/skypilot?{query}&place=0").body.decode()
    assert found["front"][0]["instance"].partition("/")[2].partition("+")[0] in other
    assert served.get(f"/skypilot?{query}&place=99").status == 422
    fleet = served.get("/skypilot/fleet?run=cold&samples=1e8&instance=aws/p4d.24xlarge&nodes=2").body.decode()
    assert "num_nodes: 2" in fleet
    assert "p4d.24xlarge" in fleet


def test_two_runs_are_compared_as_compare_does(served: Served, ask: Cli) -> None:
    found = served.ask("/api/compare", a="cold", b="hostile")
    said = json.loads(ask("compare", str(served.folder / "cold"), str(served.folder / "hostile"), "--json").stdout)
    assert [one["phase"] for one in found["phases"]] == [one["phase"] for one in said["phases"]]
    assert [one["verdict"] for one in found["phases"]] == [one["verdict"] for one in said["phases"]]
    assert len(found["changes"]) == len(said["changes"])


def test_jobs_of_a_simulation_are_browsed(served: Served) -> None:
    first = served.ask("/api/jobs", file="sims/jobs.csv")
    assert first["count"] == 250
    assert len(first["rows"]) == 100
    last = served.ask("/api/jobs", file="sims/jobs.csv", offset=200, by="jct_s", down=1)
    assert len(last["rows"]) == 50
    assert last["rows"][-1][0] == "job-0"
    assert first["distributions"][0]["values"][100] == pytest.approx(100 + 2 * 124.5, abs=2)
    assert served.get("/api/jobs?file=sims/jobs.csv&by=__class__").status == 422


def test_a_folder_that_is_not_there_and_a_taken_port(ask: Cli, served: Served, tmp_path: Path) -> None:
    assert "no folder" in ask("ui", str(tmp_path / "none"), code=2).stderr
    assert f"Port {served.port}" in ask("ui", str(tmp_path), "--port", str(served.port), code=2).stderr


def test_spot_terms_go_with_the_run_they_were_read_from(shelf: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(shelf / "cold", tmp_path / "cold"))
    desk = RunCache(RunFolder(tmp_path), load_catalog())
    before = _losses(desk.open("cold"), 12.0)
    assert _losses(desk.open("cold"), 12.0) is before
    os.utime(run / "manifest.json", ns=(1, 1))
    assert _losses(desk.open("cold"), 12.0) is not before
