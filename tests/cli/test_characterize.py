"""`stallwise characterize` on this machine, and records side by side."""

import json
from pathlib import Path

import pytest

from stallwise.hardware.machine import read_machine
from tests.conftest import Cli


def test_this_machine(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "here.json"
    done = cli(
        "characterize", "-o", str(out), "--networks", "resnet18", "--network-time", "1", "--disk-size", "70MiB",
        "--disk", str(tmp_path),
    )  # fmt: skip
    record = read_machine(out)
    assert record.decode is not None
    assert record.decode.per_core_samples_per_s > 5
    assert {one.kind for one in record.storage} >= {"page cache"}
    assert [one.name for one in record.networks] == ["resnet18"]
    assert record.networks[0].parameters == 11_689_512
    if not record.hosts[0].gpus:
        assert record.unknown["copies"] == "there is no GPU"
        assert record.unknown["links"] == "there is no GPU"
        assert "unknown" in done.stdout
    assert not list(tmp_path.glob(".stallwise-*"))
    side = json.loads(cli("characterize", "--compare", str(out), "--price", "here=2.5", "--json").stdout)
    row = side["rows"][0]
    assert row["usd"] == pytest.approx(2.5 * row["epoch_s"] / 3600)


def test_what_cannot_be(ask: Cli, tmp_path: Path) -> None:
    assert "No network" in ask("characterize", "--networks", "resnet5O", code=2).stderr
    assert "not a folder" in ask("characterize", "--disk", "nowhere", "--skip", "device,links,decode", code=2).stderr
    assert "is a folder" in ask("characterize", "-o", str(tmp_path), code=2).stderr
    probed = tmp_path / "probed.json"
    empty = {"kind": "machine", "schema_version": 1, "created": "2026-11-15T12:00:00Z", "stallwise_version": "0"}
    probed.write_text(json.dumps({**empty, "ranks": 2, "nodes": 1}))
    assert "None of these records" in ask("characterize", "--compare", str(probed), code=2).stderr
