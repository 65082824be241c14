"""A wrapper around a loader that is one batch ahead, on a stream of its own where there is a GPU."""

import contextlib

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


class Prefetcher:
    def __init__(self, loader) -> None:
        self.loader = loader
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self):
        ready = None
        for inputs, targets in self.loader:
            with torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext():
                following = inputs.to(self.device, non_blocking=True), targets.to(self.device, non_blocking=True)
            if ready is not None:
                yield ready
            if self.stream:
                torch.cuda.current_stream().wait_stream(self.stream)
            ready = following
        yield ready


given = options()
batches = Prefetcher(DataLoader(Slow(given.delay_ms), batch_size=8, drop_last=True))
model, clock = network().to(batches.device), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for inputs, targets in batches:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        clock.tick()
