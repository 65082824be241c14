"""The stand-in networks have the tensors of the real ones, and take the time they are told to."""

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from stallwise.machine.study import AS_IS, StudySample, StudySettings, _command, _environment, _launch, study_of
from stallwise.machine.study_rank import SleepingNetwork
from stallwise.model.exchange.merge import Gradients, ddp_buckets, message_bytes
from stallwise.record.processes import is_alive
from stallwise.workload.families import network
from tests.figures import Figures

SCALE = 64


def test_every_tensor_is_there_at_its_size_and_gets_a_gradient() -> None:
    shape = network("resnet18")
    made = SleepingNetwork(shape, scale=SCALE, s_per_mac=0.0)
    sizes = [parameter.numel() for parameter in made.parameters()]
    assert sizes == [tensor.scaled(SCALE) for tensor in shape.tensors]
    made(torch.ones(1, requires_grad=True)).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in made.parameters())
    assert sum(sizes) == pytest.approx(shape.parameters / SCALE, rel=0.01)


def slept() -> tuple[float, float]:
    """Forward and backward of a network that is told to take 50 ms and 100 ms."""
    shape = network("alexnet")
    made = SleepingNetwork(shape, scale=SCALE, s_per_mac=0.05 / shape.macs)
    begin_s = time.perf_counter()
    loss = made(torch.ones(1, requires_grad=True)).sum()
    middle_s = time.perf_counter()
    loss.backward()
    end_s = time.perf_counter()
    return middle_s - begin_s, end_s - middle_s


def test_layers_sleep_for_their_work() -> None:
    """A sleep is never shorter; how much longer depends on the machine."""
    forward_s, backward_s = slept()
    assert forward_s >= 0.05
    assert backward_s >= 0.10


@pytest.mark.truth
def test_layers_sleep_for_little_else(figures: Figures) -> None:
    forward_s, backward_s = slept()
    figures.at_most("sleeping network: forward", forward_s, 0.5)
    figures.at_most("sleeping network: backward", backward_s, 1.0)


def test_stopped_between_two_ranks_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def interrupted(*words: Any, **options: Any) -> "subprocess.Popen[bytes]":
        if begun:
            raise KeyboardInterrupt
        begun.append(start(*words, **options))
        return begun[0]

    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    settings = StudySettings(networks=("alexnet",), rates=(AS_IS,))
    with pytest.raises(KeyboardInterrupt):
        _launch(settings, tmp_path, AS_IS, (None, None), settings.networks, lambda: None)
    assert not is_alive(begun[0].pid)


def test_a_rank_whose_study_is_gone_measures_nothing(tmp_path: Path) -> None:
    settings = StudySettings(networks=("alexnet",), rates=(AS_IS,))
    words = _command(settings, tmp_path, AS_IS, None, settings.networks)
    words[words.index("--parent") + 1] = str(os.getppid())
    environment = _environment(0, 1, None, 1)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (2, "The study that started this rank is gone.\n")
    assert not list(tmp_path.iterdir())


def sample(name: str, stall_s: float) -> StudySample:
    """As DDP would bucket it, with a tenth of a second of backward."""
    sizes = tuple(tensor.scaled(SCALE) * 4 for tensor in network(name).tensors[::-1])
    made = Gradients(tuple(range(len(sizes))), (0.0,) * len(sizes), sizes)
    runs = ddp_buckets(made, first_bytes=2**20 // SCALE, bucket_bytes=25 * 2**20 // SCALE)
    return StudySample(
        rate="1gbit",
        processes=2,
        network=name,
        alone_s=0.15,
        backward_s=0.1,
        shared_s=0.15 + stall_s,
        spread_s=0.0,
        bucket_bytes=message_bytes(made, runs),
    )


def test_buckets_become_ready_in_order_and_the_last_at_the_end() -> None:
    names = ("resnet18", "resnet50", "vgg16", "densenet121", "alexnet")
    settings = StudySettings(networks=names, rates=("1gbit",), scale=SCALE)
    (link,) = study_of(settings, [sample(name, 0.01 * n) for n, name in enumerate(names, 1)]).links
    for seen in link.seen:
        ready = seen.features.bucket_ready
        assert list(ready) == sorted(ready)
        assert ready[-1] == pytest.approx(1.0)
        assert seen.features.bytes == sum(seen.features.bucket_bytes)
        gathered, done = seen.features.bucket_tensors, seen.features.bucket_layers
        assert (list(gathered), list(done)) == (sorted(gathered), sorted(done))
        assert (gathered[-1], done[-1]) == (seen.features.tensors, seen.features.layers)
    vgg = next(seen for seen in link.seen if seen.network == "vgg16")
    # Three dense layers hold nine in ten bytes and hardly any work: most buckets are ready almost at once.
    assert vgg.features.bucket_ready[2] < 0.1


def test_a_fit_does_not_end_where_bytes_cost_nothing() -> None:
    """Five networks as measured on four hosts at 1 Gb/s: turns that begin badly explain the small ones alone."""
    measured = {
        "resnet10": (0.0075, 0.0058),
        "resnet18": (0.0145, 0.0055),
        "mobilenet_v2": (0.0098, 0.0079),
        "alexnet": (0.0060, 0.0445),
        "vgg11": (0.0527, 0.0594),
    }
    samples = [
        msgspec.structs.replace(sample(name, stall_s), backward_s=backward_s)
        for name, (backward_s, stall_s) in measured.items()
    ]
    settings = StudySettings(networks=tuple(measured), rates=("1gbit",), scale=SCALE)
    (link,) = study_of(settings, samples).links
    # 8 ns a byte, and four hosts send each byte 1.5 times.
    assert link.fit.per_byte_s == pytest.approx(12e-9, rel=0.2)
