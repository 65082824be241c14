"""A training job of known costs for bucket plans: a network of the stand-in accelerator at its real size.

Alone it is just a script that can be profiled. Under a launcher it runs blocks of steps in turns: in DDP with torch's
own buckets, and in DDP with a plan; rank 0 prints the median step of each as JSON.
"""

import argparse
import copy
import json
import os
import statistics
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from stallwise.buckets import applied_plan, planned_ddp
from stallwise.machine.study_rank import SleepingNetwork
from stallwise.workload.families import network


def step(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Forward and backward."""
    model.zero_grad(set_to_none=True)
    model(torch.ones(1, requires_grad=True)).sum().backward()
    if optimizer is not None:
        optimizer.step()


def block_s(model: nn.Module, steps: int) -> float:
    """Mean of steps that begin together on all ranks; one before them is not counted."""
    dist.barrier()
    step(model)
    begin_s = time.perf_counter()
    for _ in range(steps):
        step(model)
    return (time.perf_counter() - begin_s) / steps


def in_turns(made: nn.Module, plan: str, rounds: int, steps: int) -> None:
    """Both ways, block by block; rank 0 prints medians."""
    dist.init_process_group("gloo")
    arms = {"own": DistributedDataParallel(copy.deepcopy(made)), "planned": planned_ddp(made, plan)}
    for model in arms.values():
        for _ in range(2):
            step(model)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name in list(arms)[:: -1 if turn % 2 else 1]:  # neither is always first
            times[name].append(block_s(arms[name], steps))
    if dist.get_rank() == 0:
        found = {name: {"median_s": statistics.median(s), "all_s": s} for name, s in times.items()}
        print(json.dumps(found | {"as_planned": applied_plan(arms["planned"]).as_planned}), flush=True)
    dist.destroy_process_group()


def alone(made: nn.Module) -> None:
    """A plain training loop, for the profiler."""
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-6)
    for _ in DataLoader(range(100_000), batch_size=1):
        step(made, optimizer)


def main() -> None:
    """As a launcher or a profiler started it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", required=True)
    parser.add_argument("--compute", type=float, required=True, help="seconds of forward and backward")
    parser.add_argument("--plan")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = network(options.network)
    made = SleepingNetwork(shape, scale=1, s_per_mac=options.compute / 3 / shape.macs)
    if "RANK" in os.environ and options.plan:
        in_turns(made, options.plan, options.rounds, options.steps)
    else:
        alone(made)


if __name__ == "__main__":
    main()
