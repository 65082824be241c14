"""A loop prepared by Accelerate, with its accumulation."""

import torch
from accelerate import Accelerator
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader

given = options()
accelerator, clock = Accelerator(cpu=not torch.cuda.is_available()), Clock(given)
model = network()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Slow(given.delay_ms), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
while True:
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        clock.tick()
