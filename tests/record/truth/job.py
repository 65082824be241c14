"""A training job whose costs are known: layers that sleep like an accelerator, data that costs what it is told to.

Run bare, it prints its own mean step time as JSON; run under the profiler, it is just a script.
"""

import argparse
import json
import os
import socket
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WARMUP = 20


class Asleep(torch.autograd.Function):
    """Takes a given time in forward and in backward without using a core, and gives its weight a real gradient."""

    @staticmethod
    def forward(ctx, x, weight, forward_s, backward_s, products):
        ctx.backward_s, ctx.products = backward_s, products
        ctx.save_for_backward(weight)
        time.sleep(forward_s)
        multiply(products)
        return x + weight.flatten()[0]

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        multiply(2 * ctx.products)
        (weight,) = ctx.saved_tensors
        return gradient, torch.full_like(weight, float(gradient.sum())), None, None, None


SQUARE = torch.ones(384, 384)


def multiply(products: int) -> None:
    """Compute on this thread: products of two matrices."""
    for _ in range(products):
        torch.mm(SQUARE, SQUARE)


class Accelerated(nn.Module):
    def __init__(self, layers: int, parameters: int, compute_s: float, products: int = 0) -> None:
        super().__init__()
        self.products = products
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(parameters // layers)) for _ in range(layers)])
        self.forward_s, self.backward_s = compute_s / 3 / layers, 2 * compute_s / 3 / layers

    def forward(self, x):
        for weight in self.weights:
            x = Asleep.apply(x, weight, self.forward_s, self.backward_s, self.products)
        return x


class CostlyData(Dataset):
    """Each batch burns `cpu_s` of a core and is blocked for `blocked_s` in a read that nobody answers."""

    def __init__(self, cpu_s: float, blocked_s: float, length: int) -> None:
        self.cpu_s, self.blocked_s, self.length = cpu_s, blocked_s, length
        self.reader = None

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices):
        if self.reader is None:
            self.reader, self.silent_writer = socket.socketpair()
        if self.blocked_s:
            self.reader.settimeout(self.blocked_s)
            try:
                self.reader.recv(1)
            except TimeoutError:
                pass
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        return [torch.ones(4) for _ in indices]


def node_group(ranks: int):
    """The group of this node's ranks; every rank makes all of them."""
    groups = [dist.new_group(list(range(n, n + ranks))) for n in range(0, dist.get_world_size(), ranks)]
    return groups[dist.get_rank() // ranks]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in {
        "compute": 0.030,
        "cpu": 0.002,
        "blocked": 0.0,
        "hook": 0.0,
        "slow-rank": 0.0,
    }.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--parameters", type=int, default=40_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--products", type=int, default=0, help="matrix products of a layer's forward, twice backward")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--no-sync", action="store_true")
    parser.add_argument("--node-only", type=int, default=0, help="exchange among so many ranks of a node only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    compute_s = options.compute + (options.slow_rank if rank == 1 else 0.0)
    model: nn.Module = Accelerated(options.layers, options.parameters, compute_s, options.products)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        if options.hook:

            def slow_hook(group, bucket):
                time.sleep(options.hook)
                return allreduce_hook(group, bucket)

            model.register_comm_hook(None, slow_hook)
        if options.node_only:
            model.register_comm_hook(node_group(options.node_only), allreduce_hook)
        if options.no_sync:
            model.require_backward_grad_sync = False
    data = CostlyData(options.cpu, options.blocked, 8 * options.steps)
    loader = DataLoader(data, batch_size=8, num_workers=options.workers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    times = []
    for batch in loader:
        times.append(time.perf_counter())
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(json.dumps({"step_s": (times[-1] - times[WARMUP]) / (len(times) - 1 - WARMUP)}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
