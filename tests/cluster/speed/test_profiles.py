"""Speeds from one's own runs and layer files, through the same exchange as published profiles."""

import json
from pathlib import Path

import pytest

from stallwise.analysis.analysis import open_run
from stallwise.analysis.traces.layers import write_layer_run
from stallwise.cluster.job import Job
from stallwise.cluster.speed._profiles import LayerProfiles, TierNetwork, network_of, own_profile
from stallwise.cluster.speed.base import Shape
from stallwise.errors import InputError, UnknownNameError
from stallwise.run.traces.layer_document import read_layer_file

MIB = 1024 * 1024
NETWORK = network_of("gpu=100GB/s,machine=10gbit,rack=1gbit")
JOB = Job(id="a", arrival_s=0.0, gpus=8, work_s=1.0, model="m")


def layer_file(path: Path, **more: object) -> Path:
    layers = [
        {"id": i, "name": f"block{i}", "forward_s": 0.01, "backward_s": 0.02, "gradient_bytes": 4 * MIB}
        for i in range(12)
    ]
    document = {"format": "stallwise-layers", "version": 1, "source": "a test", "layers": layers, "update_s": 0.005}
    path.write_text(json.dumps(document | more))
    return path


def speed(path: Path, network: TierNetwork = NETWORK) -> LayerProfiles:
    own = own_profile(path)
    return LayerProfiles({"m": own.gradients}, network, ("machine", "rack"), own={"m": own})


def test_a_run_and_its_layer_file_give_the_same_speed(tmp_path: Path) -> None:
    file = layer_file(tmp_path / "layers.json", gpus=1)
    write_layer_run(read_layer_file(file), file, tmp_path / "run")
    for spans in ((1, 1), (2, 1), (2, 2), (8, 2)):
        shape = Shape(8, spans)
        assert speed(tmp_path / "run").rate(JOB, shape) == pytest.approx(speed(file).rate(JOB, shape), rel=1e-9)


def test_the_speed_is_the_exchange_that_sticks_out(tmp_path: Path) -> None:
    """Two machines, one GPU each, 10 Gb/s: all buckets but the last hide; worked out by hand."""
    file = layer_file(tmp_path / "layers.json", overlap={"scheme": "ddp", "bucket_bytes": 16 * MIB})
    # Twelve layers of 4 MiB in buckets of 16: the last bucket holds the four that backward reaches last.
    # A ring of two sends the message once: 2 (n - 1) / n of it, in two rounds with a start each.
    last_s = 16 * MIB / 1.25e9 + 2 * 30e-6
    compute_s = 12 * 0.03 + 0.005
    got = speed(file).rate(Job(id="a", arrival_s=0, gpus=2, work_s=1, model="m"), Shape(2, (2, 1)))
    assert got == pytest.approx(compute_s / (compute_s + last_s), rel=1e-6)


def test_wider_and_slower_links_cost_more(tmp_path: Path) -> None:
    file = layer_file(tmp_path / "layers.json")
    rates = [speed(file).rate(JOB, Shape(8, spans)) for spans in ((1, 1), (2, 1), (2, 2))]
    assert sorted(rates, reverse=True) == rates
    assert rates[0] > 0.99 > rates[-1]
    quicker = network_of("gpu=100GB/s,machine=10gbit,rack=100gbit")
    assert speed(file, quicker).rate(JOB, Shape(8, (2, 2))) > rates[-1]


def test_accumulation_hides_nothing_but_dilutes(tmp_path: Path) -> None:
    once = layer_file(tmp_path / "once.json")
    four = layer_file(tmp_path / "four.json", gpus=1, overlap={"scheme": "ddp", "accumulate": 4})
    write_layer_run(read_layer_file(four), four, tmp_path / "four")
    shape = Shape(8, (2, 2))
    assert speed(tmp_path / "four").rate(JOB, shape) > speed(once).rate(JOB, shape)


def test_the_step_is_that_of_whatif(tmp_path: Path) -> None:
    """Two machines of four GPUs over 10 Gb/s, and a rack border at 1 Gb/s."""
    file = layer_file(tmp_path / "layers.json", gpus=1)
    job, own = open_run(file), own_profile(file)
    for spans, network in (((2, 1), 1.25e9), ((2, 2), 1.25e8)):
        tiers = speed(file).tiers(Shape(8, spans))
        asked = job.on(gpus=8, gpus_per_node=4, link_bytes_per_s=1e11, network_bytes_per_s=network)
        assert own.step_s(8, 2, tiers) == pytest.approx(asked.step_s, rel=1e-9)
        alone_s = job.on(gpus=1).step_s
        assert speed(file).rate(JOB, Shape(8, spans)) == pytest.approx(alone_s / asked.step_s, rel=1e-9)


def test_what_is_no_profile(tmp_path: Path) -> None:
    layers = [{"id": 0, "name": "a", "forward_s": 0.1, "backward_s": 0.1, "gradient_bytes": 0, "comm_s": 0.1}]
    with pytest.raises(InputError, match="sizes of gradients"):
        own_profile(layer_file(tmp_path / "closed.json", layers=layers))
    with pytest.raises(UnknownNameError, match="Did you mean congested"):
        network_of("congestd")
    with pytest.raises(UnknownNameError, match="Did you mean rack"):
        network_of("racks=10gbit")
    with pytest.raises(InputError):
        network_of("rack=fast")
