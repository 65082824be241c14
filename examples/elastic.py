"""Training that survives losing machines: a small network on made-up data, saved and resumed by a session.

    python -m stallwise.elastic coordinator --port 29400 &
    python -m stallwise.elastic host --coordinator 127.0.0.1:29400 --nnodes 1:4 examples/elastic.py --folder build/run

Start further hosts, kill them (or press Ctrl-C, which is a notice): the job goes on with those that are there.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stallwise import elastic


def spirals(count: int) -> TensorDataset:
    """Two spirals, to be told apart."""
    generator = torch.Generator().manual_seed(1)
    turn = torch.rand(count, generator=generator) * 4 + 1
    side = (torch.arange(count) % 2).float()
    angle = turn + torch.pi * side
    points = torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 5
    return TensorDataset(points + 0.01 * torch.randn(count, 2, generator=generator), side)


def main() -> None:
    """Train; every line that makes it survive is one of the session's."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="where checkpoints are kept: a shared folder, or s3://…")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to add to a step, to watch it")
    options = parser.parse_args()

    me = elastic.join()
    torch.set_num_threads(1)  # a network this small gains nothing from more
    torch.manual_seed(1)
    data = spirals(4096)
    sampler = elastic.Resumable(DistributedSampler(data, seed=1))
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    network = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    model = DistributedDataParallel(network.to(me.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.epochs * 128)

    with elastic.Session(
        model, optimizer, folder=options.folder, scheduler=scheduler, interval_s=options.interval
    ) as session:
        for epoch in session.epochs(options.epochs):
            total = 0.0
            for points, side in session.steps(loader):
                time.sleep(options.pause)
                said = model(points.to(me.device)).squeeze(1)
                loss = nn.functional.binary_cross_entropy_with_logits(said, side.to(me.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                total += loss.item()
            if me.rank == 0 and (epoch + 1) % 5 == 0:
                print(f"epoch {epoch + 1}: step {session.step}, {me.world} ranks, loss {total / len(loader):.3f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
