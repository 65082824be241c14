"""Two views of each sample, a momentum encoder and a queue of negatives."""

import copy

import torch
from shape import FEATURES, Clock, Slow, network, options
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, base: Dataset) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        sample, _ = self.base[index]
        return sample + 0.1 * torch.randn(FEATURES), sample + 0.1 * torch.randn(FEATURES)


given = options()
query, clock = network(16), Clock(given)
key = copy.deepcopy(query).requires_grad_(requires_grad=False)
optimizer = torch.optim.SGD(query.parameters(), lr=0.01)
queue = torch.nn.functional.normalize(torch.randn(64, 16), dim=1)
while True:
    for one, other in DataLoader(TwoViews(Slow(given.delay_ms)), batch_size=8, drop_last=True):
        q = torch.nn.functional.normalize(query(one), dim=1)
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
            k = torch.nn.functional.normalize(key(other), dim=1)
        scores = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.07
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.zeros(len(q), dtype=torch.long)).backward()
        optimizer.step()
        queue = torch.cat([k, queue])[:64]
        clock.tick()
