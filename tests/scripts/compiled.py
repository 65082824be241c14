"""A compiled model fed from a list of batches in memory; metrics are gathered in Python after every step."""

import time

import torch
from shape import FEATURES, Clock, network, options

given = options()
model, clock = torch.compile(network(), backend="aot_eager"), Clock(given)
optimizer = torch.optim.AdamW(model.parameters())
batches = [(torch.randn(8, FEATURES), torch.ones(8, 1)) for _ in range(16)]
history = []
while True:
    for inputs, targets in batches:
        loss = (model(inputs) - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        time.sleep(given.delay_ms / 1e3)
        clock.tick()
