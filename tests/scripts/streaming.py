"""A stream of shards without a length, shuffled in a buffer, cut into epochs of steps."""

import itertools
import random
import time

import torch
from shape import FEATURES, Clock, network, options
from torch.utils.data import DataLoader, IterableDataset


class Shards(IterableDataset):
    def __init__(self, delay_ms: float) -> None:
        self.delay_s = delay_ms / 8e3

    def __iter__(self):
        buffer: list[torch.Tensor] = []
        for number in itertools.count():
            time.sleep(self.delay_s)
            buffer.append(torch.full((FEATURES,), number % 7.0))
            if len(buffer) > 16:
                yield buffer.pop(random.randrange(len(buffer))), torch.ones(1)


given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Shards(given.delay_ms), batch_size=8)
while True:
    for inputs, targets in itertools.islice(loader, 200):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        clock.tick()
