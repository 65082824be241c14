"""One machine record held against another, and `whatif` between the two."""

import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest

from stallwise.analysis.compute import machine_ratios
from stallwise.hardware.machine import DecodeRecord, HostRecord, MachineRecord, NetworkRecord, StorageRecord
from stallwise.hardware.machine import encode_machine as encode
from tests.conftest import Cli, texts
from tests.report.made_runs import make_full_run


def machine(
    rates: dict[str, float], *, decode: float = 100.0, disk: float = 1e9, precision: str = "bf16"
) -> MachineRecord:
    return MachineRecord(
        created=dt.datetime(2026, 11, 15, tzinfo=dt.UTC), stallwise_version="0", ranks=1, nodes=1,
        hosts=(HostRecord(node=0, cores=8),),
        storage=(StorageRecord(kind="disk", bytes_per_s=disk, readers=8),),
        decode=DecodeRecord(
            library="made", pixels=(500, 375), file_bytes=1, one_core_samples_per_s=decode,
            per_core_samples_per_s=decode, cores=8,
        ),
        networks=tuple(
            NetworkRecord(
                name=name, precision=precision, batch=1, samples_per_s=rate, low_samples_per_s=None,
                high_samples_per_s=None, step_s=1 / rate, parameters=1, gradient_bytes=4, device="made",
            )
            for name, rate in rates.items()
        ),
    )  # fmt: skip


HERE = machine({"resnet18": 100.0, "vgg11": 100.0, "bert-base": 10.0})
THERE = machine({"resnet18": 200.0, "vgg11": 800.0, "resnet50": 9.0}, decode=50.0, disk=4e9)


def test_the_geometric_mean_of_networks_that_both_trained() -> None:
    found = machine_ratios(THERE, HERE)
    assert found.compute == pytest.approx(1 / 4)
    assert (found.compute_low, found.compute_high) == pytest.approx((0.5, 2.0))
    assert found.networks == ("resnet18 in bf16", "vgg11 in bf16")
    assert found.decode == pytest.approx(2.0)
    assert found.disk == pytest.approx(1 / 4)
    back = machine_ratios(HERE, THERE)
    assert back.compute == pytest.approx(4.0)


def test_what_one_of_them_lacks_is_unknown() -> None:
    assert machine_ratios(THERE, HERE, "fp32").compute is None
    assert machine_ratios(machine({"resnet18": 1.0}, precision="fp32"), HERE).compute is None
    bare = msgspec.structs.replace(HERE, decode=None, storage=(), networks=())
    found = machine_ratios(THERE, bare)
    assert (found.compute, found.decode, found.disk, found.text) == (None, None, None, "")


def test_whatif_goes_by_both_records(ask: Cli, tmp_path: Path) -> None:
    make_full_run(tmp_path / "run")  # in fp32
    here, there = ({"resnet18": rate, "vgg11": rate} for rate in (100.0, 400.0))
    for name, record in (
        ("here", machine(here, precision="fp32")), ("there", machine(there, precision="fp32")), ("bf16", HERE)
    ):  # fmt: skip
        (tmp_path / f"{name}.json").write_bytes(encode(record))
    asked = ("whatif", str(tmp_path / "run"), "--gpus", "1", "--machine", str(tmp_path / "there.json"), "--json")
    beside = json.loads(ask(*asked, "--here-machine", str(tmp_path / "here.json")).stdout)
    alone, by_hand = json.loads(ask(*asked).stdout), json.loads(ask(*asked, "--compute", "4x").stdout)
    compute = [one["predicted"]["split"]["compute_s"] for one in (alone, by_hand, beside)]
    assert compute[2] == pytest.approx(compute[1])
    assert compute[2] == pytest.approx(compute[0] / 4)
    assert any("there.json against the run's own machine" in words for words in texts(beside["assumptions"]))
    other = json.loads(ask(*asked, "--here-machine", str(tmp_path / "bf16.json")).stdout)
    assert other["predicted"]["split"]["compute_s"] == pytest.approx(compute[0]), "another precision says nothing"
    lonely = ask("whatif", str(tmp_path / "run"), "--here-machine", str(tmp_path / "here.json"), code=2)
    assert "Options: --machine, --here-machine." in lonely.stderr
