"""A loop of one's own on Lightning's Fabric."""

import lightning
import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader

given = options()
fabric, clock = lightning.Fabric(accelerator="auto", devices=1), Clock(given)
fabric.launch()
model = network()
model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters()))
loader = fabric.setup_dataloaders(DataLoader(Slow(given.delay_ms), batch_size=8))
while True:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        fabric.backward(loss)
        optimizer.step()
        clock.tick()
