"""Averages its gradients itself, one rank later than the other; run bare it prints its own step time.

`--exchange 0` leaves the all-reduce out, so the bare script itself shows what the exchange costs.
"""

import argparse
import json
import os
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--exchange", type=int, default=1)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Linear(1000, 4000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    times = []
    for (batch,) in DataLoader(TensorDataset(torch.ones(options.steps, 1).expand(-1, 1000)), batch_size=1):
        times.append(time.perf_counter())
        model(batch).sum().backward()
        time.sleep(0.040 + 0.020 * dist.get_rank())
        if options.exchange:
            works = [dist.all_reduce(p.grad, async_op=options.asynchronous) for p in model.parameters()]
            for work in filter(None, works):
                work.wait()
        optimizer.step()
        optimizer.zero_grad()
    longest = torch.tensor((times[-1] - times[5]) / (len(times) - 6))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps({"step_s": longest.item()}), flush=True)
    dist.barrier()
    # Taking gloo down while the other rank still answers ends with an error now and then.
    os._exit(0)


if __name__ == "__main__":
    main()
