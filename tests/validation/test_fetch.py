"""`make data`: what is fetched is what was measured on, and nothing else is kept."""

import hashlib
import json
from pathlib import Path

import pytest

from validation.fetch import CONVERSIONS, PublishedFile, fetch, main, published_files

CONTENT = b"time,machines\n0,3\n"


def item(content: bytes = CONTENT, **changes: str) -> PublishedFile:
    fields = {
        "file": "a/b c.csv",
        "repository": "owner/name",
        "commit": "f" * 40,
        "path": "d/b c.csv",
        "conversion": "",
    }
    return PublishedFile(**(fields | {"sha256": hashlib.sha256(content).hexdigest()} | changes))


def publisher(folder: Path, content: bytes = CONTENT) -> str:
    path = folder / "owner/name" / ("f" * 40) / "d/b c.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return folder.as_uri()


def test_a_file_is_fetched_once_and_kept_where_its_checksum_is_right(tmp_path: Path) -> None:
    server = publisher(tmp_path / "server")
    assert fetch(item(), tmp_path / "data", server) == "fetched"
    assert (tmp_path / "data/a/b c.csv").read_bytes() == CONTENT
    assert fetch(item(), tmp_path / "data", "file:///nowhere") == "there"


def test_another_content_is_never_kept(tmp_path: Path) -> None:
    server = publisher(tmp_path / "server", b"something else")
    assert fetch(item(), tmp_path / "data", server).startswith("not kept (file://")
    assert not (tmp_path / "data").exists()
    assert fetch(item(conversion="gcp_lives"), tmp_path / "data", server).startswith("not fetched (file://")


def test_what_cannot_be_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("validation.fetch.published_files", lambda: [item()])
    monkeypatch.setattr("sys.argv", ["fetch", "--into", str(tmp_path / "data"), "--publisher", "file:///nowhere"])
    assert main() == 1
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'data'}: 0 files there, 0 fetched, 1 missing\n"
    assert err.startswith("a/b c.csv: not fetched (file:///nowhere/owner/name/")


def test_user_names_do_not_survive_the_conversion() -> None:
    life = {
        "instance_data": {"NAME": "m", "ZONE": "z", "MACHINE_TYPE": "n1"},
        "time_in_sec": 5.5,
        "insert": {"insertTime": "t0", "user": "someone@example.org"},
        "compute.instances.preempted": {"insertTime": "t1", "user": "system"},
        "day_of_week": "Monday",
        "hr_of_day": 3,
        "idle_vs_nonidle": "idle",
    }
    table = CONVERSIONS["gcp_lives"](json.dumps({"m": life}).encode()).decode()
    assert table.splitlines()[1] == "m,z,n1,5.5,t0,t1,preempted,Monday,3,idle"
    assert "someone" not in table


def test_the_manifest_is_what_the_figures_were_made_from(shared_data: Path) -> None:
    items = published_files()
    assert len({item.file for item in items}) == len(items) > 500
    assert {item.conversion for item in items} == set(CONVERSIONS)
    assert all(len(item.commit) == 40 and not Path(item.file).is_absolute() for item in items)
    for one in items:
        assert hashlib.sha256((shared_data / one.file).read_bytes()).hexdigest() == one.sha256, one.file
