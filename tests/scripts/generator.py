"""Batches from a generator function, as tutorials with text files do."""

import time

import torch
from shape import FEATURES, Clock, network, options


def stream(delay_ms: float):
    number = 0
    while True:
        number += 1
        time.sleep(delay_ms / 1e3)
        yield torch.full((8, FEATURES), float(number % 5)), torch.ones(8, 1)


given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.Adam(model.parameters())
for inputs, targets in stream(given.delay_ms):
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.tick()
