"""A language model on bytes of text, as people write it: a memory-mapped token file and a small transformer.

python examples/language_model.py
torchrun --nproc-per-node 2 examples/language_model.py
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from networks import SmallTransformer
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class TokenWindows(Dataset):
    """Windows of a token file, each with its successor shifted by one."""

    def __init__(self, path: Path, context: int) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.context = context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.context
        window = torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))
        return window[:-1], window[1:]


def make_tokens(path: Path, count: int) -> None:
    """Write the bytes of this interpreter's own library sources as tokens, once."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)[:count]
    np.frombuffer(text, dtype=np.uint8).astype(np.uint16).tofile(path)


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/demo-tokens.bin"))
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()

    distributed = "RANK" in os.environ
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if rank == 0:
        make_tokens(options.data, 4_000_000)
    if distributed:
        dist.barrier()
    if device.type == "cpu":
        torch.set_num_threads(1)

    dataset = TokenWindows(options.data, options.context)
    loader = DataLoader(dataset, options.batch_size, shuffle=True, num_workers=options.workers, drop_last=True)
    model: nn.Module = SmallTransformer(256, options.context).to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        for number, (tokens, targets) in enumerate(loader):
            scores = model(tokens.to(device, non_blocking=True))
            loss = loss_of(scores.flatten(0, 1), targets.to(device, non_blocking=True).flatten())
            (loss / options.accumulate).backward()
            if (number + 1) % options.accumulate == 0:
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
