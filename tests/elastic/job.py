"""A small real training job that lives under an agent: a network, DDP over gloo, dropout, augmentation, a schedule.

Each rank appends one line per step to its log: round, rank, step, the indices of its samples. When the job ends rank 0
writes the weights.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from stallwise import elastic


class Numbers(Dataset[tuple[int, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.full((8,), index / self.count)


def noisy(sample: tuple[int, torch.Tensor]) -> tuple[int, torch.Tensor]:
    return sample[0], sample[1] + 0.1 * torch.randn(8)


class Running(nn.Module):
    """Statistics as batch-norm keeps them, for batches of one sample, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class Net(nn.Module):
    """Deep enough for several buckets, with statistics and dropout; `ballast` makes a checkpoint take its time."""

    def __init__(self, ballast: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 64), Running(), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(),
            nn.Linear(64, 33), nn.Linear(33, 1),
        )  # fmt: skip
        self.register_buffer("ballast", torch.zeros(ballast))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def wait_beyond_limit(notes: Path, step: int) -> None:
    """Take a second for a step beyond the one that `Lab.limit` names: the job does not end before a test is ready."""
    for _ in range(20):
        try:
            limit = int((notes / "limit").read_text())
        except (FileNotFoundError, ValueError):
            return
        if step < limit:
            return
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.02)
    parser.add_argument("--interval-steps", type=int, default=None)
    parser.add_argument("--ballast", type=int, default=0)
    parser.add_argument("--scaling", default="linear")
    parser.add_argument("--endpoint", default=None)
    parser.add_argument("--crash-at", type=int, default=None)
    parser.add_argument("--blame", action="store_true")
    options = parser.parse_args()

    me = elastic.join()
    if options.blame and me.rank == 0:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:535] Connection closed by peer")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    data = elastic.Augmented(Numbers(options.samples), noisy, seed=3)
    sampler = elastic.Resumable(DistributedSampler(data, seed=5))
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)
    net = DistributedDataParallel(Net(options.ballast), bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=1024.0, growth_interval=7)
    torch.manual_seed(100 + me.rank)
    options.notes.mkdir(parents=True, exist_ok=True)
    log = (options.notes / f"{me.round:04d}-{me.rank}-{os.getpid()}.jsonl").open("a", buffering=1)
    with elastic.Session(
        net,
        optimizer,
        folder=options.folder,
        scheduler=scheduler,
        scaler=scaler,
        interval_steps=options.interval_steps,
        scaling=options.scaling,
        endpoint=options.endpoint,
    ) as session:
        log.write(json.dumps({"begin": session.step, "at": time.time(), "world": me.world}) + "\n")
        for _ in session.epochs(options.epochs):
            for index, x in session.steps(loader):
                if options.crash_at is not None and session.step == options.crash_at and me.rank == me.world - 1:
                    raise ValueError("a bug of the user's own")
                time.sleep(options.step_s)
                wait_beyond_limit(options.notes, session.step)
                loss = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                lr = optimizer.param_groups[0]["lr"]
                log.write(json.dumps({"step": session.step + 1, "samples": index.tolist(), "lr": lr}) + "\n")
    if me.rank == 0:
        digest = hashlib.sha256()
        for name, value in sorted(net.module.state_dict().items()):
            digest.update(name.encode() + value.numpy().tobytes())
        print("weights", digest.hexdigest(), "steps", session.step, flush=True)
        (options.notes / "done.json").write_text(json.dumps({"weights": digest.hexdigest(), "steps": session.step}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
