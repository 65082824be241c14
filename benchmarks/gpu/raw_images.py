"""ResNet-50 on raw images read whole from files, in a new random order every epoch; prints each epoch's speed."""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CROP, BATCH = 448, 224, 100


class Raw(Dataset):
    """Files of plain pixels; a random square of each."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.raw"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        pixels = np.frombuffer(self.files[index].read_bytes(), np.uint8).reshape(SIDE, SIDE, 3)
        top, left = random.randrange(SIDE - CROP), random.randrange(SIDE - CROP)
        return torch.from_numpy(pixels[top : top + CROP, left : left + CROP].copy())


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1000)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50(weights=None).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    labels = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    dataset = Raw(options.data)
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=options.workers, pin_memory=True, persistent_workers=True
    )
    for _ in range(options.epochs):
        began = time.perf_counter()
        for batch in loader:
            images = batch.cuda(non_blocking=True).permute(0, 3, 1, 2).float().div(255)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model(images.contiguous(memory_format=torch.channels_last)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()
        print(json.dumps({"samples_per_s": len(dataset) / (time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    main()
