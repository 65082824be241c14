"""Rank 1 leaves the training loop for another loop of fetches, and never comes to the next collective."""

import os
import time

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def stray(loader: DataLoader) -> None:
    while True:
        for _ in loader:
            time.sleep(0.1)


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(torch.zeros(1000, 4), batch_size=2)
for step, batch in enumerate(loader):
    if step == 4 and os.environ["RANK"] == "1":
        with torch.no_grad():
            stray(loader)
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
