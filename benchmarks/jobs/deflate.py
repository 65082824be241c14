"""A training job for deflation: an accelerator that sleeps in proportion to its batch, and a real loader on real cores.

Samples are JPEGs that workers decode again and again until they have taken a core for a given time, whatever that
core gets done in it. With `--profile` it is a plain DDP loop for `stallwise profile`; without, it trains under a
session, and rank 0 logs the moment of every step.
"""

import argparse
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from stallwise import elastic

ELEMENTS = 100_000


class Pictures(Dataset[torch.Tensor]):
    """One picture, decoded for `core_s` of a core per sample."""

    def __init__(self, count: int, core_s: float) -> None:
        self._count, self._core_s = count, core_s
        pixels = np.random.default_rng(1).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        made = io.BytesIO()
        Image.fromarray(pixels).resize((96, 96)).save(made, "JPEG")
        self._jpeg = made.getvalue()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        until_s = time.thread_time() + self._core_s
        picture = None
        while picture is None or time.thread_time() < until_s:
            picture = Image.open(io.BytesIO(self._jpeg)).convert("RGB")
        return torch.from_numpy(np.asarray(picture).mean((0, 1), dtype=np.float32))


class _Asleep(torch.autograd.Function):
    """A third of the time in forward, two in backward; a gradient for the weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, sample_s: float) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.sleep_s = sample_s * len(x) / 3
        time.sleep(ctx.sleep_s)
        return x.sum(1) * 1.0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(2 * ctx.sleep_s)
        return gradients[0][:, None].expand(-1, 3), torch.ones_like(ctx.saved_tensors[0]), None


class Accelerator(nn.Module):
    """One layer that takes `sample_s` for every sample."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))
        self._sample_s = sample_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Asleep."""
        out: torch.Tensor = _Asleep.apply(x, self.weight, self._sample_s)
        return out


def plain(loader: DataLoader[torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """For the profiler, which ends it."""
    for epoch in range(1000):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for batch in loader:
            step(batch, model, optimizer)


def step(batch: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One."""
    optimizer.zero_grad()
    model(batch.requires_grad_()).mean().backward()
    optimizer.step()


def main() -> None:
    """Train, or be profiled."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--sample-s", type=float, default=0.010)
    parser.add_argument("--core-s", type=float, default=0.005)
    parser.add_argument("--interval", type=float, default=1e6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # Each rank has a core of its own, as ranks on machines of their own have: they do not take each other's.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    if options.profile:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    else:
        rank = elastic.join().rank
    data = Pictures(options.samples, options.core_s)
    sampler = elastic.Resumable(DistributedSampler(data, seed=1))
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler, num_workers=2)
    model = DistributedDataParallel(Accelerator(options.sample_s))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if options.profile:
        plain(loader, model, optimizer)
        return
    options.log.mkdir(parents=True, exist_ok=True)
    log = (options.log / "steps.jsonl").open("a", buffering=1)
    (options.log / f"rank{rank}.pid").write_text(str(os.getpid()))
    with elastic.Session(
        model, optimizer, folder=options.folder, interval_s=options.interval, scaling="none"
    ) as session:
        for _ in session.epochs(1):
            for batch in session.steps(loader):
                step(batch, model, optimizer)
                if rank == 0:
                    log.write(json.dumps({"at": time.monotonic(), "step": session.step, "own": len(batch)}) + "\n")
    if rank == 0:
        (options.log / "done").write_text(str(time.monotonic()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
