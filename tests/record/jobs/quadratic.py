"""A quadratic whose gradient noise is known: x ~ N(0, 1) in 2,000 dimensions, loss |w - x|²/2, so tr Σ / |G|² = 1/w².

quadratic.py W PARTS: every weight is W; PARTS micro-batches a step, their gradients clipped; several ranks use DDP.
"""

import os
import sys

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WEIGHT, PARTS = float(sys.argv[1]), int(sys.argv[2])


class Normal(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(2000, generator=torch.Generator().manual_seed(index))


class Point(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((2000,), WEIGHT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.w - x) ** 2).sum(1).mean() / 2


torch.set_num_threads(1)
torch.manual_seed(1)
model: torch.nn.Module = Point()
data, sampler = Normal(), None
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    dist.init_process_group("gloo")
    model, sampler = DistributedDataParallel(model), DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
loader = DataLoader(data, batch_size=16, sampler=sampler, shuffle=sampler is None)
for _ in range(100):
    for number, batch in enumerate(loader, start=1):
        (model(batch) / PARTS).backward()
        if number % PARTS == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
