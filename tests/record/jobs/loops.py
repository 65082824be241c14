"""Loops that are no epochs over a DataLoader: an endless stream, and a loop of the script's own."""

import itertools
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.ones(4) for _ in itertools.count())


def own() -> Iterator[torch.Tensor]:
    for _ in range(100_000):
        yield torch.ones(2, 4)


torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(Endless(), batch_size=2) if sys.argv[1] == "endless" else own():
    optimizer.zero_grad()
    model(batch).mean().backward()
    time.sleep(0.005)
    optimizer.step()
print("trained to the end")
