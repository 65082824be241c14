"""An endless cycle over a loader, and steps counted instead of epochs."""

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


def cycle(loader):
    while True:
        yield from loader


given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = cycle(DataLoader(Slow(given.delay_ms), batch_size=8, shuffle=True))
while True:
    inputs, targets = next(batches)
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.tick()
