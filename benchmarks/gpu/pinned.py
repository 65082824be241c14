"""A training on a GPU whose batches are copied from pageable memory: does `stallwise tune` find `pin_memory`?

python -m benchmarks.gpu.pinned                      tune it, and print what was tried (a GPU, about 2 minutes)
python -m benchmarks.gpu.pinned --network small      the same with next to no compute: the copy is most of the step
python -m benchmarks.gpu.pinned --train              the job itself

Batches of 256 images of 224 x 224 as floats (154 MB) from memory; a ResNet-50 in bf16, or three layers.
Bars (written before the measurement): with the ResNet-50 `pin_memory` is kept and predicted and measured gain differ by
15 points at most; nothing that measured slower is ever kept.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, SIDE = 256, 224


class Batches(Dataset[torch.Tensor]):
    """Whole batches, made once: a worker only hands them on."""

    def __init__(self) -> None:
        self._one = torch.rand(BATCH, 3, SIDE, SIDE)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._one


def network(name: str) -> nn.Module:
    """ResNet-50, or three layers."""
    if name == "resnet50":
        from torchvision.models import resnet50

        return resnet50().to(memory_format=torch.channels_last)
    return nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def train(name: str) -> None:
    """Until it is ended."""
    device = torch.device("cuda")
    model = network(name).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Batches(), batch_size=None, num_workers=4)
    for _ in range(1000):
        for images in loader:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(images.to(device, non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main() -> None:
    """Tune the job and print every setting that was tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--network", choices=("resnet50", "small"), default="resnet50")
    parser.add_argument("--max-time", type=float, default=120.0)
    options = parser.parse_args()
    if options.train:
        train(options.network)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = ["--json", "--max-time", str(options.max_time), "-o", str(Path(folder) / "run")]
        job = ["-m", "benchmarks.gpu.pinned", "--train", "--network", options.network]
        command = [sys.executable, "-m", "stallwise", "tune", *out, *job]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    for one in found["attempts"]:
        print(
            f"{one['settings']}: predicted {one['predicted_gain']:.0%}, measured {one['gain']:.0%}, kept {one['kept']}"
        )
    print(json.dumps({key: found[key] for key in ("binds", "step_s", "proposals", "kept", "gain", "notes", "seconds")}))


if __name__ == "__main__":
    main()
