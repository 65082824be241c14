"""Labelled and unlabelled data side by side: two loaders, one of them slow."""

import itertools

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader

given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
labelled = DataLoader(Slow(0.0, 800), batch_size=8)
unlabelled = DataLoader(Slow(given.delay_ms), batch_size=8)
while True:
    for (inputs, targets), (more, _) in zip(itertools.cycle(labelled), unlabelled, strict=False):
        supervised = (model(inputs) - targets).square().mean()
        consistent = (model(more) - model(more + 0.01)).square().mean()
        optimizer.zero_grad()
        (supervised + consistent).backward()
        optimizer.step()
        clock.tick()
