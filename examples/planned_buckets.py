"""DDP with planned buckets: `--plan` takes what `stallwise whatif RUN --best-buckets plan.json` has written.

stallwise profile -o run examples/planned_buckets.py
stallwise whatif run --gpus 2 --network 1gbit --best-buckets plan.json
torchrun --nproc-per-node 2 examples/planned_buckets.py --plan plan.json
"""

import argparse
import os

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from stallwise.buckets import applied_plan, planned_ddp


def main() -> None:
    """Train; with a plan, say at the end what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", help="bucket plan; without, torch's own buckets")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(768, 768), nn.ReLU())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(768, 10))
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        model = planned_ddp(model, options.plan) if options.plan else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(2048, 768), torch.randint(10, (2048,)))
    step = 0
    while step < options.steps:
        for x, y in DataLoader(data, batch_size=64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            step += 1
            if step == options.steps:
                break
    if dist.is_initialized():
        if options.plan and dist.get_rank() == 0:
            found = applied_plan(model)
            print(f"{len(found.planned_bytes)} buckets planned, carried out as {found.way}: {found.as_planned}")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
