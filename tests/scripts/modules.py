"""The loop lives in a library-like class; the model says what a training step and its optimizer are."""

import time

import torch
from shape import Clock, Slow, network, options
from torch import nn
from torch.utils.data import DataLoader


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch):
        inputs, targets = batch
        return (self(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Fit:
    def __init__(self, model, loader, progress_s: float) -> None:
        self.model, self.loader, self.progress_s = model, loader, progress_s

    def update_progress_bar(self) -> None:
        time.sleep(self.progress_s)

    def run(self, clock: Clock) -> None:
        optimizer = self.model.configure_optimizers()
        while True:
            for batch in self.loader:
                optimizer.zero_grad()
                self.model.training_step(batch).backward()
                optimizer.step()
                self.update_progress_bar()
                clock.tick()


given = options()
Fit(Regression(), DataLoader(Slow(0.0), batch_size=8), given.delay_ms / 1e3).run(Clock(given))
