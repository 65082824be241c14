"""Validation, a checkpoint and its rotation inside the loop, every so many steps; a slow log line after each step."""

import shutil
import time
from pathlib import Path

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


def log_line(step: int, delay_s: float) -> None:
    time.sleep(delay_s)
    with Path("train.log").open("a") as file:
        file.write(f"{step}\n")


given = options()
model, clock, step = network(), Clock(given), 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
validation = DataLoader(Slow(0.0, 16), batch_size=8)
while True:
    for inputs, targets in DataLoader(Slow(0.0, 512), batch_size=8, shuffle=True):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        step += 1
        log_line(step, given.delay_ms / 1e3)
        clock.tick()
    model.eval()
    with torch.no_grad():
        sum((model(inputs) - targets).square().sum() for inputs, targets in validation)
    model.train()
    torch.save(model.state_dict(), "last.pt")
    shutil.copyfile("last.pt", "best.pt")
    Path("last.pt").replace("previous.pt")
