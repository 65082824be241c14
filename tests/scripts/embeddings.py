"""Embeddings with sparse gradients and a dense network, an optimizer each; the data set makes whole batches."""

import time

import torch
from shape import Clock, options
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    """Whole batches, as the loader is told by batch_size=None."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_s = delay_ms / 1e3

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        time.sleep(self.delay_s)
        return torch.ones(8, 4), torch.randint(0, 1000, (8, 3)), torch.ones(8, 1)


given = options()
table, clock = nn.EmbeddingBag(1000, 8, sparse=True), Clock(given)
top = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
of_table, of_top = torch.optim.SparseAdam(table.parameters()), torch.optim.Adam(top.parameters())
while True:
    for dense, ids, clicked in DataLoader(Clicks(given.delay_ms), batch_size=None):
        score = top(torch.cat([dense, table(ids)], 1))
        loss = nn.functional.binary_cross_entropy_with_logits(score, clicked)
        of_table.zero_grad()
        of_top.zero_grad()
        loss.backward()
        of_table.step()
        of_top.step()
        clock.tick()
