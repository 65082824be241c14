"""Two gloo ranks with DDP buckets of 1 MiB: `trace FOLDER` records them, `plan FILE` carries out a plan."""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule

from stallwise.buckets import planned_ddp
from stallwise.buckets._ddp import carried_out

WIDTHS, BATCH, STEPS = (300, 500, 400, 600, 500, 400, 200, 10), 32, 3


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(layer for pair in pairwise(WIDTHS) for layer in (nn.Linear(*pair), nn.ReLU())))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(BATCH, WIDTHS[0])).square().mean().backward()
    optimizer.step()


def trace(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    model = DistributedDataParallel(network(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        step(model, optimizer)
    path = str(folder / f"rank{dist.get_rank()}.json.gz")
    with profile(
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(path),
        record_shapes=True,
    ) as recorded:
        for _ in range(STEPS + 1):
            step(model, optimizer)
            recorded.step()


def plan(path: str) -> None:
    model = planned_ddp(network(), path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        step(model, optimizer)
    done = carried_out(model)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps({"way": done.way, "real_bytes": done.real_bytes, "as_planned": done.as_planned}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    trace(Path(sys.argv[2])) if sys.argv[1] == "trace" else plan(sys.argv[2])
    dist.destroy_process_group()
    # Threads of torch that are still alive when the interpreter ends abort the process once in a while.
    sys.stdout.flush()
    os._exit(0)
