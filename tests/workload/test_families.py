"""Networks by structure: parameters, tensors and layers as counted elsewhere, exactly."""

import csv
from pathlib import Path

import pytest

from stallwise.errors import UnknownNameError
from stallwise.workload.families import NETWORKS, network
from stallwise.workload.zoo import image_networks

_NAMES = {"mobilenetv2_100": "mobilenet_v2"}


def test_counts_are_the_published_ones(shared_data: Path) -> None:
    with (shared_data / "stash/model_macro_features.csv").open() as lines:
        rows = {row["model"].replace("noBN_", "nobn_"): row for row in csv.DictReader(lines)}
    shared = set(rows) & set(NETWORKS)
    assert len(shared) >= 19
    for name in shared:
        made, row = network(name), rows[name]
        assert made.parameters == int(row["parameters"]), name
        assert len(made.tensors) == int(row["gradient_tensors"]), name
        assert made.layers == int(row["conv_and_fc_layers"]), name


def test_work_and_sizes_are_those_of_the_zoo() -> None:
    """The zoo was counted by running the networks; it keeps three digits."""
    compared = 0
    for name, counted in image_networks().items():
        ours = _NAMES.get(name, name)
        if ours not in NETWORKS or counted.image_size != 224:
            continue
        made = network(ours)
        assert made.parameters == pytest.approx(counted.parameters, rel=0.005), name
        assert len(made.tensors) == counted.tensors, name
        if not name.startswith("vgg"):  # timm counts its dense layers as convolutions over one pixel
            assert made.macs == pytest.approx(counted.all_macs, rel=0.01), name
        compared += 1
    assert compared >= 15


def test_shufflenets_are_torchvisions() -> None:
    """Parameters and multiply-accumulates as its model list gives them, rounded there to three digits."""
    listed = {
        "x0_5": (1_366_792, 0.04),
        "x1_0": (2_278_604, 0.14),
        "x1_5": (3_503_624, 0.30),
        "x2_0": (7_393_996, 0.58),
    }
    for name, (parameters, gmacs) in listed.items():
        made = network(f"shufflenet_v2_{name}")
        assert made.parameters == parameters
        assert made.macs / 1e9 == pytest.approx(gmacs, abs=0.0051)


def test_an_unknown_network_is_named() -> None:
    with pytest.raises(UnknownNameError, match="resnet50"):
        network("resnet51")
