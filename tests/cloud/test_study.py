"""Machines side by side: Stash's stalls from machine records."""

import datetime as dt

import pytest

from stallwise.cloud.study import machine_names, study
from stallwise.hardware.machine import (
    DecodeRecord,
    FitRecord,
    HostRecord,
    LineRecord,
    LinkRecord,
    MachineRecord,
    NetworkRecord,
    StorageRecord,
)


def _machine(*, gpus: int, s_per_byte: float, per_core: float = 200.0, cores: int = 16) -> MachineRecord:
    line = LineRecord(latency_s=1e-5, s_per_byte=s_per_byte)
    fit = FitRecord(small=line, large=line, break_bytes=None, low=1.0, high=1.0)
    link = LinkRecord(scope="inside", ranks=gpus, nodes=1, backend="nccl", points=(), fit=fit)
    return MachineRecord(
        created=dt.datetime(2026, 11, 15, tzinfo=dt.UTC),
        stallwise_version="0",
        ranks=gpus,
        nodes=1,
        hosts=(HostRecord(node=0, cores=cores, gpus=("V100",) * gpus),),
        links=(link,) if gpus > 1 else (),
        storage=(StorageRecord(kind="disk", bytes_per_s=3e8, readers=8),),
        decode=DecodeRecord(
            library="made", pixels=(500, 375), file_bytes=110_000, one_core_samples_per_s=per_core,
            per_core_samples_per_s=per_core, cores=cores,
        ),
        networks=(
            NetworkRecord(
                name="vgg11", precision="fp32", batch=32, samples_per_s=320.0, low_samples_per_s=None,
                high_samples_per_s=None, step_s=0.1, parameters=132_863_336, gradient_bytes=531_453_344, device="V100",
            ),
        ),
    )  # fmt: skip


def test_a_slow_link_is_an_interconnect_stall() -> None:
    quick, slow = study({"quick": _machine(gpus=4, s_per_byte=1e-12), "slow": _machine(gpus=4, s_per_byte=1e-9)})
    assert quick.interconnect == pytest.approx(0.0, abs=0.02)
    assert slow.interconnect is not None
    assert slow.interconnect > 0.7
    assert slow.epoch_s > 3 * quick.epoch_s
    assert slow.binds == "exchange"


def test_few_cores_are_a_prep_stall_and_a_slow_disk_a_fetch_stall() -> None:
    (row,) = study({"one": _machine(gpus=4, s_per_byte=1e-12, per_core=40.0, cores=8)}, usd_per_h={"one": 10.0})
    assert row.samples_per_s == pytest.approx(320.0, rel=0.02)  # 40 images a second on each of 8 cores
    assert row.prep == pytest.approx(0.75, abs=0.02)
    assert row.fetch == pytest.approx(0.0, abs=0.01)  # the disk's 2,700 images a second are more than that
    assert row.usd == pytest.approx(row.epoch_s * 10 / 3600)
    (many,) = study({"one": _machine(gpus=16, s_per_byte=1e-12, per_core=2000.0)})
    assert many.fetch is not None
    assert many.fetch > 0.4


def test_what_was_not_measured_is_unknown() -> None:
    one = _machine(gpus=2, s_per_byte=1e-12)
    import msgspec

    (row,) = study({"x": msgspec.structs.replace(one, links=(), decode=None)})
    assert row.interconnect is None
    assert row.prep is None
    assert row.gpus == 1  # without a link, only one can be judged
    assert machine_names(["a/m.json", "b/m.json", "c.json"]) == ["m 1", "m 2", "c"]
