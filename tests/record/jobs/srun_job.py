"""DDP as people start it with srun: rank and size from Slurm's variables, gradients over gloo."""

import argparse
import os

import torch
from material import Accelerator, Pictures
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{options.port}", rank=rank, world_size=size)
    net = nn.Sequential(nn.Flatten(), Accelerator(0.01), nn.Linear(3 * 48 * 48, 10))
    model = DistributedDataParallel(net)
    data = Pictures(8 * options.steps * size)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for images, classes in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), classes).backward()
        optimizer.step()
    if rank == 0:
        print("trained to the end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
