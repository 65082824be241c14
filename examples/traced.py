"""A small training job that records itself with torch.profiler: one trace per rank, ready for `stallwise trace`.

torchrun --nproc-per-node 2 examples/traced.py FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile, schedule
from torch.utils.data import DataLoader, TensorDataset

BATCH, STEPS, WIDTH = 64, 5, 512


def main(folder: Path) -> None:
    """Five profiled steps after one of warm-up."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    model: nn.Module = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.randn((STEPS + 2) * BATCH, WIDTH)), batch_size=BATCH)
    rank = dist.get_rank() if dist.is_initialized() else 0
    folder.mkdir(parents=True, exist_ok=True)
    path = str(folder / f"rank{rank}.json.gz")
    # Shapes give the sizes of gradients, and the FLOPs that other GPUs are predicted from.
    with profile(
        schedule=schedule(wait=0, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(path),
        record_shapes=True,
    ) as profiler:
        for (images,) in loader:
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
