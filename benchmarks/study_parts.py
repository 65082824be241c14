"""What a study's stall consists of, taken apart on the shaped link; needs root. No claim, so `make bench` passes it by.

python -m benchmarks.study_parts [RATE] [NETWORKS]

1. One all-reduce by its size, one after another and each after a rest of 4 ms.
2. When each network's last layer is done in backward, and backward itself: alone, in DDP that sends nothing, in DDP.
3. By how much layers were later in DDP than in DDP that sends nothing, per layer: beside the first bucket's exchange
   and after its end.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.machine import study_rank
from stallwise.machine._study_hosts import shape, study_hosts
from stallwise.machine.study import LEAST_S, S_PER_MAC, StudySettings, _environment, _free_port
from stallwise.units import parse_rate
from stallwise.workload.families import network

SIZES = (64_000, 125_000, 368_000, 1_112_000, 2_500_000, 8_000_000)
NETWORKS = "squeezenet1_0,mobilenet_v2,resnet10,resnet18,densenet121"
REST_S, ROUNDS, STEPS = 0.004, 8, 10
SCALE, BATCH = StudySettings(networks=(), rates=()).scale, StudySettings(networks=(), rates=()).batch
ends: list[float] = []
sent: dict[int, tuple[float, float]] = {}


def main(rate: str = "1gbit", networks: str = NETWORKS) -> None:
    """Two hosts at this rate."""
    with study_hosts(2) as hosts:
        shape(hosts, parse_rate(rate))
        port, command = _free_port(), [sys.executable, "-m", "benchmarks.study_parts", rate, networks]
        ranks = [
            subprocess.Popen(host.command(*command), env=_environment(rank, 2, hosts[0], port))
            for rank, host in enumerate(hosts)
        ]
        for rank in ranks:
            rank.wait()


def rank_main(rate: str, networks: str) -> None:
    """One of the two ranks; rank 0 prints."""
    study_rank._raise_priority()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for line in (*messages(parse_rate(rate)), *(line for name in networks.split(",") for line in layers(name))):
        if dist.get_rank() == 0:
            print(line, flush=True)
    dist.destroy_process_group()


def messages(bytes_per_s: float) -> Iterator[str]:
    """All-reduces by size."""
    for size in SIZES:
        times = [median_s(size, rest_s) for rest_s in (0.0, REST_S)]
        free = ", ".join(f"{1e3 * (found - size / bytes_per_s):+.2f} ms" for found in times)
        yield f"{size:>9,} bytes: {1e3 * times[0]:.2f} ms, after a rest {1e3 * times[1]:.2f} ms; over the rate {free}"


def median_s(size: int, rest_s: float) -> float:
    """Of 22 all-reduces; three before them are not counted."""
    tensor, found = torch.ones(size // 4), []
    for _ in range(25):
        if rest_s:
            dist.barrier()
            time.sleep(rest_s)
        begin_s = time.perf_counter()
        dist.all_reduce(tensor)
        found.append(time.perf_counter() - begin_s)
    return statistics.median(found[3:])


def layers(name: str) -> Iterator[str]:
    """Backward of one network, taken apart."""
    ways = {"alone": made(name), "sends nothing": in_ddp(name, nothing), "in DDP": in_ddp(name, timed)}
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    spans = []
    for _ in range(ROUNDS):
        for way, model in ways.items():
            dist.barrier()
            step(model)
            for _ in range(STEPS):
                found[way].append(step(model))
                if way == "in DDP":
                    spans.append(sent[0])
    middle = {way: [statistics.median(column) for column in zip(*rows, strict=True)] for way, rows in found.items()}
    for way, times in middle.items():
        yield f"{name}, {way}: last layer done after {1e3 * times[-2]:.2f} ms, backward after {1e3 * times[-1]:.2f} ms"
    begin_s, end_s = (statistics.median(span[i] for span in spans) for i in (0, 1))
    late = [here - there for here, there in zip(middle["in DDP"], middle["sends nothing"], strict=True)][:-1]
    beside = [i for i, at in enumerate(middle["in DDP"][:-1]) if begin_s < at <= end_s]
    if beside and beside[0] > 0:
        grown = (late[beside[-1]] - late[beside[0] - 1]) / len(beside)
        rest = len(late) - 1 - beside[-1]
        after = (late[-1] - late[beside[-1]]) / rest if rest else 0.0
        yield (
            f"{name}: first bucket on the link from {1e3 * begin_s:.2f} to {1e3 * end_s:.2f} ms; {len(beside)} layers "
            f"beside it {1e6 * grown:.0f} µs later each, {rest} after it {1e6 * after:.0f} µs"
        )


def made(name: str) -> nn.Module:
    """As the study makes it."""
    return study_rank.SleepingNetwork(network(name), scale=SCALE, s_per_mac=BATCH * S_PER_MAC, least_s=LEAST_S)


def in_ddp(name: str, hook: Callable[[Any, Any], Any]) -> nn.Module:
    """In DDP with the study's buckets, once torch has built them."""
    model = DistributedDataParallel(made(name), **study_rank._scaled_buckets(SCALE))
    model.register_comm_hook(None, hook)
    for _ in range(2):
        step(model)
    return model


def step(model: nn.Module) -> list[float]:
    """When each layer was done, and backward, since it began."""
    model.zero_grad(set_to_none=True)
    loss = model(torch.ones(1, requires_grad=True)).sum()
    ends.clear()
    sent.clear()
    begin_s = time.perf_counter()
    loss.backward()
    done_s = time.perf_counter()
    for bucket, span in sent.items():
        sent[bucket] = (span[0] - begin_s, span[1] - begin_s)
    return [*(end_s - begin_s for end_s in ends), done_s - begin_s]


def nothing(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that gives each bucket back as it is."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def timed(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that all-reduces, and keeps when."""
    number, begin_s = bucket.index(), time.perf_counter()
    future = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True).get_future()

    def done(found: Any) -> Any:
        sent[number] = (begin_s, time.perf_counter())
        return found.value()[0]

    return future.then(done)


def marked(ctx: Any, *gradients: torch.Tensor) -> Any:
    """A layer's backward, and when it was done."""
    found = plain(ctx, *gradients)
    ends.append(time.perf_counter())
    return found


plain = study_rank._SleepingLayer.backward

if __name__ == "__main__":
    if "RANK" in os.environ:
        study_rank._SleepingLayer.backward = staticmethod(marked)  # type: ignore[method-assign]
        rank_main(*sys.argv[1:])
    else:
        main(*sys.argv[1:])
