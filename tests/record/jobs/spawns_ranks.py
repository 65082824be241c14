"""Starts its ranks itself, as many scripts of one machine do."""

import torch
from torch import multiprocessing


def train(rank: int) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(20):
        weight.sum().backward()
        optimizer.step()
    print(f"rank {rank} of {__name__} trained")


if __name__ == "__main__":
    multiprocessing.spawn(train, nprocs=2)
