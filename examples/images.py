"""Image classification as people write it: JPEGs on disk, decoded and augmented in workers, DDP where started so.

python examples/images.py --data build/demo-images
torchrun --nproc-per-node 2 examples/images.py --data build/demo-images
"""

import argparse
import os
import random
from pathlib import Path

import numpy as np
import torch
from networks import small_resnet
from PIL import Image
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class JpegFolder(Dataset):
    """JPEG files in a folder; the class is in the file's name."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        left, top = (random.randint(0, max(0, side - self.size)) for side in image.size)
        image = image.crop((left, top, left + self.size, top + self.size))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0).permute(2, 0, 1)
        return pixels.contiguous(), int(path.stem.split("-")[1])


def make_images(folder: Path, count: int, side: int = 256) -> None:
    """Write `count` JPEGs of smooth random colours, once."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for number in range(len(list(folder.glob("*.jpg"))), count):
        coarse = Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        image = coarse.resize((side, side), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:06d}-{number % 10}.jpg", quality=90)


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=2048, help="images to make where the folder has fewer")
    parser.add_argument("--side", type=int, default=256, help="width and height of the images that are made")
    parser.add_argument("--size", type=int, default=128, help="width and height of the crop that is trained on")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()

    distributed = "RANK" in os.environ
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    if rank == 0:
        make_images(options.data, options.images, options.side)
    if distributed:
        dist.barrier()
    if device.type == "cpu":
        torch.set_num_threads(1)

    dataset = JpegFolder(options.data, options.size)
    sampler = DistributedSampler(dataset) if distributed else None
    loader = DataLoader(
        dataset,
        options.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    model: nn.Module = small_resnet().to(device)
    if distributed:
        model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = loss_of(model(images.to(device, non_blocking=True)), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
            torch.save(model.state_dict(), "images-last.pt")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
