"""Four gloo processes that record themselves with torch.profiler: accumulated steps of DDP, and two kinds of groups.

Per folder one trace a rank: `update` (profiler.step() at each update), `batch` (at each batch), `every` (without
no_sync, so that every pass exchanges), `groups` (pairs side by side, then pairs across; rank 3 comes late).
"""

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, TensorDataset

WIDTH, BATCH, PASSES, STEPS = 128, 16, 4, 3
LATE_S = 0.2


def recorder(folder: Path, warmup: int, active: int) -> profile:
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / f"rank{dist.get_rank()}.json.gz")
    return profile(
        schedule=schedule(wait=0, warmup=warmup, active=active, repeat=1),
        on_trace_ready=lambda found: found.export_chrome_trace(path),
        record_shapes=True,
    )


def accumulated(folder: Path, *, at_updates: bool, no_sync: bool) -> None:
    """Four layers alike, as in many networks: their gradients alone do not say where a pass ends."""
    torch.manual_seed(1)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn((STEPS + 1) * PASSES * BATCH, WIDTH)), batch_size=BATCH)
    marks = 1 if at_updates else PASSES
    with recorder(folder, marks, STEPS * marks) as found:
        for number, (images,) in enumerate(loader):
            last = (number + 1) % PASSES == 0
            with nullcontext() if last or not no_sync else model.no_sync():
                model(images).square().mean().backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            if last or not at_updates:
                found.step()


def groups(folder: Path) -> None:
    """Activations are summed side by side ([0, 1], [2, 3]), gradients across ([0, 2], [1, 3])."""
    rank = dist.get_rank()
    side = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    layer = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    with recorder(folder, 1, STEPS) as found:
        for _ in range(STEPS + 1):
            if rank == 3:
                time.sleep(LATE_S)
            out = layer(torch.randn(BATCH, WIDTH))
            dist.all_reduce(out.detach().clone(), group=side)
            out.square().mean().backward()
            dist.all_reduce(layer.weight.grad, group=across)
            optimizer.step()
            found.step()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    accumulated(folder / "update", at_updates=True, no_sync=True)
    accumulated(folder / "batch", at_updates=False, no_sync=True)
    accumulated(folder / "every", at_updates=True, no_sync=False)
    groups(folder / "groups")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
