"""What characterize measures with: the networks are the published ones, disk and decoding are read for real."""

from pathlib import Path

import torch

from stallwise.machine.characterize import CharacterizeRequest, characterize_machine, make_jpeg, measure_disk
from stallwise.machine.device import STANDARD_NETWORKS

PUBLISHED = {"resnet18": 11_689_512, "resnet50": 25_557_032, "vgg11": 132_863_336}


def test_the_networks_are_the_published_ones() -> None:
    for standard in STANDARD_NETWORKS:
        with torch.device("meta"):
            model = standard.make()
        count = sum(p.numel() for p in model.parameters())
        if standard.name in PUBLISHED:
            assert count == PUBLISHED[standard.name]
        else:
            assert 105e6 < count < 112e6  # BERT-base has 110 million
        data, _ = standard.batch(2, torch.device("meta"))
        assert model(data).shape[0] == 2


def test_a_disk_is_read_cold_and_warm_and_left_as_it_was(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, 80 * 2**20)
    assert [one.kind for one in found.records] == ["disk", "page cache"]
    assert all(one.bytes_per_s > 0 for one in found.records)
    assert list(tmp_path.iterdir()) == []
    small = measure_disk(tmp_path, 2**20)
    assert small.records == ()
    assert "no room" in small.unknown["disk"]


def test_the_picture_is_as_large_as_a_photograph() -> None:
    assert 60_000 < len(make_jpeg()) < 180_000


def test_parts_that_are_left_out_are_unknown(tmp_path: Path) -> None:
    said: list[str] = []
    asked = CharacterizeRequest(
        out=tmp_path / "m.json", disk=tmp_path, skip=frozenset({"device", "decode", "links"}), disk_bytes=80 * 2**20
    )
    record = characterize_machine(asked, said.append)
    assert set(record.unknown) >= {"device", "decode", "links"}
    assert record.storage
    assert said == [f"reading from {tmp_path}"]
