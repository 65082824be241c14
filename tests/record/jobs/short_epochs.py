"""Epochs of so few batches that a third of them come from the queue that starting workers fill."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCHES = 24


class Waits(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.full((4,), float(index))


torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
loader = DataLoader(Waits(), 4, num_workers=4)
for _ in range(int(sys.argv[1])):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
