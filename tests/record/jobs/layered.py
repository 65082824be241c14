"""A network with one slow layer, in the ways people wrap one; run bare it prints what its own clock saw."""

import argparse
import json
import os
import statistics
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.record.truth.job import Asleep


class Slept(nn.Module):
    """Takes its time on the way forward and back, on no core."""

    def __init__(self, size: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.times_s = (forward_s, backward_s)

    def forward(self, x):
        return Asleep.apply(x, self.weight, *self.times_s, 0)


class Network(nn.Module):
    def __init__(self, sizes: list[int], slow: int, checkpointed: bool) -> None:
        super().__init__()
        times = [(0.020, 0.030) if n == slow else (0.002, 0.004) for n in range(len(sizes))]
        self.blocks = nn.ModuleList([Slept(size, *time) for size, time in zip(sizes, times, strict=True)])
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", type=int, nargs="+", default=[200_000, 1_000, 300_000, 70_000, 400_000, 10])
    parser.add_argument("--slow", type=int, default=3)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--how", choices=("plain", "compile", "checkpoint", "accumulate"), default="plain")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model: nn.Module = Network(options.sizes, options.slow, options.how == "checkpoint")
    if options.how == "compile":
        model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), backend="aot_eager")
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = TensorDataset(torch.ones(8 * min(options.steps, 20_000), 4, requires_grad=False))
    forwards, backwards = [], []
    for n, (batch,) in enumerate(DataLoader(data, batch_size=8)):
        began = time.perf_counter()
        loss = model(batch).sum()
        halfway = time.perf_counter()
        loss.backward()
        backwards.append(time.perf_counter() - halfway)
        forwards.append(halfway - began)
        if options.how != "accumulate" or n % 2:
            optimizer.step()
            optimizer.zero_grad()
    print(json.dumps({"forward_s": statistics.median(forwards), "backward_s": statistics.median(backwards)}))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
