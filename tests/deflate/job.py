"""A small real job whose last rank is asked for less at one step and for everything again at another.

Every step each rank logs its samples, the weight of its gradient, and how far the exchanged gradient is from that of
the global batch, worked out without DDP.
"""

import argparse
import contextlib
import copy
import json
import multiprocessing
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from stallwise import elastic
from stallwise.deflate.requests import SlowdownRequest, request_folder, withdraw_request, write_request


class Numbers(Dataset[tuple[int, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.sin(torch.arange(8, dtype=torch.float64) * (index + 1))


def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = (net(x) - x.sum(1, keepdim=True)).pow(2).mean()
    return out


def global_gradient(net: nn.Module, indices: list[list[int]], data: Numbers) -> list[torch.Tensor]:
    """Of the mean loss over all ranks' samples."""
    alone = copy.deepcopy(net)
    alone.zero_grad()
    loss_of(alone, torch.stack([data[i][1] for part in indices for i in part])).backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in alone.parameters() if parameter.grad is not None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--speed", type=float, default=0.4)
    parser.add_argument("--ask-at", type=int, default=-1)
    parser.add_argument("--undo-at", type=int, default=-1)
    parser.add_argument("--stop-at", type=int, default=-1)
    parser.add_argument("--largest", type=int)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--drop-last", action="store_true")
    options = parser.parse_args()

    me = elastic.join()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    data = Numbers(options.samples)
    loader = DataLoader(
        data,
        batch_size=options.batch,
        sampler=elastic.Resumable(DistributedSampler(data, seed=5)),
        num_workers=options.workers,
        drop_last=options.drop_last,
    )
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    folder = request_folder(os.getuid())
    options.log.mkdir(parents=True, exist_ok=True)
    log = (options.log / f"{me.rank}-{os.getpid()}.jsonl").open("a", buffering=1)
    with elastic.Session(
        net, optimizer, folder=options.folder, interval_s=1e6, scaling="none", largest_batch=options.largest
    ) as session:
        for epoch in session.epochs(options.epochs):
            for index, x in session.steps(loader):
                if me.rank == me.world - 1 and session.step in (options.ask_at, options.undo_at):
                    if session.step == options.ask_at:
                        write_request(folder, os.getpid(), SlowdownRequest(speed=options.speed))
                    else:
                        withdraw_request(folder, os.getpid())
                    time.sleep(0.25)  # the door is looked at five times a second: heard now, done two steps later
                gathered: list[list[int]] = [[]] * me.world
                dist.all_gather_object(gathered, index.tolist())
                last = (session.step + 1) % options.accumulate == 0
                if session.step % options.accumulate == 0:
                    wanted = [torch.zeros_like(parameter) for parameter in net.parameters()]
                    optimizer.zero_grad()
                wanted = [
                    sum_ + one for sum_, one in zip(wanted, global_gradient(net.module, gathered, data), strict=True)
                ]
                with contextlib.nullcontext() if last else net.no_sync():
                    loss_of(net, x).backward()  # type: ignore[no-untyped-call]
                off = max(
                    ((p.grad - w).abs().max() / w.abs().max()).item()
                    for p, w in zip(net.module.parameters(), wanted, strict=True)
                    if p.grad is not None
                )
                off = off if last else 0.0  # not exchanged yet
                if last:
                    optimizer.step()
                fact = {"step": session.step, "epoch": epoch, "samples": index.tolist(), "off": off}
                fact |= {"weight": session.weight, "workers": loader.num_workers}
                log.write(json.dumps({**fact, "children": len(multiprocessing.active_children())}) + "\n")
                if session.step + 1 == options.stop_at:
                    break
            if session.step + 1 == options.stop_at:
                # The step is not over for the session: it is the next run that makes it.
                session.save()
                dist.barrier()
                os._exit(0)
    withdraw_request(folder, os.getpid())
    assert (loader.num_workers, getattr(loader.batch_sampler, "batch_size", 0)) == (options.workers, options.batch)
    if me.rank == 0:
        weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        (options.log / "weights.json").write_text(json.dumps(weights.tolist()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
