"""A loader that can be resumed in mid-epoch."""

import torch
from shape import Clock, Slow, network, options
from torchdata.stateful_dataloader import StatefulDataLoader

given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = StatefulDataLoader(Slow(given.delay_ms), batch_size=8)
while True:
    for inputs, targets in loader:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
    state = loader.state_dict()
