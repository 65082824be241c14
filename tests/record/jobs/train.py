"""A small real training script that can be told to go wrong, as a subject of tests. Sleeps instead of computing."""

import argparse
import os
import signal
import sys
import time

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEP_S = 0.005


class Points(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index % 7))


def go_wrong(how: str, at: int, step: int, rank: int, on_rank: int) -> None:
    if step != at or rank != on_rank:
        return
    if how == "raise":
        raise ValueError("the subject's own error")
    if how == "exit":
        sys.exit(3)
    if how == "exit-text":
        sys.exit("the subject's last words")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--wrong", default="")
    parser.add_argument("--at", type=int, default=-1)
    parser.add_argument("--on", type=int, default=0)
    parser.add_argument("--mark", default="")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    model: torch.nn.Module = torch.nn.Linear(4, 1)
    if many:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(Points(args.steps * 2), batch_size=2, num_workers=args.workers)
    if args.mark:
        print(args.mark, flush=True)
    for step, batch in enumerate(loader):
        go_wrong(args.wrong, args.at, step, rank, args.on)
        optimizer.zero_grad()
        model(batch).mean().backward()
        time.sleep(STEP_S)
        optimizer.step()
    print("trained to the end")
    if many:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
