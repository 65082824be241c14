"""Training on images from a bucket as it is first written: one worker, and nobody looks ahead.

python examples/close_the_loop/train.py --url http://127.0.0.1:8000 --names build/close-the-loop/names.txt
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from stallwise.data import BucketDataset, Lookahead

WARMUP = 10


def decode(data: bytes, name: str) -> tuple[torch.Tensor, int]:
    """A JPEG as a tensor; the class is in the object's name."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float32) / 255.0
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), int(name.partition(".")[0].split("-")[1])


def network() -> nn.Module:
    """Three convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, 2, 2), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def main() -> None:
    """Train; with --steps, for that many steps, then print the speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--names", type=Path, required=True, help="one object name per line")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--prefetch", type=int, default=2)
    parser.add_argument("--lookahead", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = BucketDataset(options.url, decode, keys=options.names.read_text().split())
    order = {"sampler": Lookahead(RandomSampler(dataset))} if options.lookahead else {"shuffle": True}
    queue = {"num_workers": options.workers, "prefetch_factor": options.prefetch, "persistent_workers": True}
    loader = DataLoader(dataset, 16, drop_last=True, **queue, **order)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CrossEntropyLoss()
    done, began_s = 0, 0.0
    for _ in range(100):
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == WARMUP:
                began_s = time.perf_counter()
            if options.steps and done == WARMUP + options.steps:
                print(f"{16 * options.steps / (time.perf_counter() - began_s):.1f} samples/s", flush=True)
                return


if __name__ == "__main__":
    main()
