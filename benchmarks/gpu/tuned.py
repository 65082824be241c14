"""The job that `benchmarks.gpu.tune` tunes: ResNet-50 in bf16 on JPEGs, each decoded, cropped and scaled by a worker.

With --until-stable it ends when its speed is known well enough, and prints it as JSON; else it trains on.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.gpu.train import Photographs

BATCH = 128
WARMUP_S = 3.0
WINDOW_S = 4.0
LEAST, MOST = 5, 6
STANDARD_ERROR = 0.01


class Speed:
    """Means over windows of whole rounds of the workers, so that no burst is cut; nothing counts before warm-up."""

    def __init__(self, workers: int, batch: int) -> None:
        self._quantum = max(1, workers)
        self._batch = batch
        self._began_s: float | None = None
        self._steps = 0
        self._warm = False
        self.windows: list[float] = []

    def step(self) -> None:
        """A step was taken; the clock starts at the first, so that making workers and data is not in it."""
        now_s = time.perf_counter()
        if self._began_s is None:
            self._began_s = now_s
            return
        self._steps += 1
        spent_s = now_s - self._began_s
        if self._steps % self._quantum or spent_s < (WINDOW_S if self._warm else WARMUP_S):
            return
        # A queue that was full at the start lasts for two rounds.
        if self._warm:
            self.windows.append(self._steps * self._batch / spent_s)
        elif self._steps < 3 * self._quantum:
            return
        self._warm, self._began_s, self._steps = True, now_s, 0

    @property
    def stable(self) -> bool:
        """Whether the mean is known to 1 %, or will not be."""
        count = len(self.windows)
        if count < LEAST:
            return False
        error = statistics.stdev(self.windows) / count**0.5
        return count >= MOST or error <= STANDARD_ERROR * statistics.fmean(self.windows)


def network(*, small: bool) -> nn.Module:
    """ResNet-50 with random weights; the small one is two convolutions."""
    if small:
        layers = (nn.Conv2d(3, 8, 7, 4), nn.ReLU(), nn.Conv2d(8, 16, 5, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(16, 1000))
    import torchvision

    return torchvision.models.resnet50(weights=None)


def main() -> None:
    """Train; with --until-stable print the speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/photographs"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a small network on processors")
    parser.add_argument("--until-stable", action="store_true")
    parser.add_argument("--prepare", action="store_true", help="make the images and end")
    options = parser.parse_args()
    device = torch.device("cpu" if options.small else "cuda")
    batch = 16 if options.small else BATCH
    if options.small:
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    dataset = Photographs(options.data, count=64 if options.small else 1024)
    if options.prepare:
        return
    loader = DataLoader(dataset, batch, num_workers=options.workers, pin_memory=device.type == "cuda", drop_last=True)
    model = network(small=options.small).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    speed = Speed(options.workers, batch)
    for images, labels in loader:
        with torch.autocast(device.type, torch.bfloat16, enabled=not options.small):
            pixels = images.to(device, non_blocking=True, memory_format=torch.channels_last).float().div(255)
            loss = loss_of(model(pixels), labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        speed.step()
        if options.until_stable and speed.stable:
            break
    print(json.dumps({"samples_per_s": statistics.fmean(speed.windows), "windows": speed.windows}), flush=True)


if __name__ == "__main__":
    main()
