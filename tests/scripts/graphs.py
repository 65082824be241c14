"""Batches are objects of a class of their own, which the model writes to."""

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


class Graph:
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def to(self, device: str) -> "Graph":
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self


def as_graph(samples) -> Graph:
    inputs, targets = zip(*samples, strict=True)
    return Graph(torch.stack(inputs), torch.stack(targets))


given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.Adam(model.parameters())
while True:
    for data in DataLoader(Slow(given.delay_ms), batch_size=8, collate_fn=as_graph):
        data = data.to("cpu")
        data.x = model(data.x)
        loss = (data.x - data.y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clock.tick()
