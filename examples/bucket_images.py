"""The training of images.py with its JPEGs straight from a bucket: look-ahead in the sampler's order, a node's cache.

python examples/bucket_images.py --url s3://bucket/train/ --cache /mnt/nvme/cache
torchrun --nproc-per-node 2 examples/bucket_images.py --url file://$PWD/build/demo-images
"""

import argparse
import io
import os

import numpy as np
import torch
from networks import small_resnet
from PIL import Image
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from stallwise.data import BucketDataset, Lookahead, NodeCache

SIDE = 128


def decode(data: bytes, name: str) -> tuple[torch.Tensor, int]:
    """A JPEG's middle as a tensor; the class is in the object's name."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top = ((side - SIDE) // 2 for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + SIDE, top + SIDE)), dtype=np.float32) / 255.0
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), int(name.rpartition(".")[0].split("-")[1])


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--endpoint", help="another server that speaks S3")
    parser.add_argument("--cache", help="folder of the node's cache")
    parser.add_argument("--cache-bytes", type=int, default=10**9)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()

    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    dataset = BucketDataset(
        options.url,
        decode,
        match="*.jpg",
        endpoint=options.endpoint,
        cache=NodeCache(options.cache, options.cache_bytes) if options.cache else None,
    )
    sampler = Lookahead(DistributedSampler(dataset, ranks, rank))
    loader = DataLoader(
        dataset,
        options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        drop_last=True,
    )
    model: nn.Module = small_resnet()
    if "RANK" in os.environ:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}, {dataset.account().hits:.0f} hits so far", flush=True)
    if "RANK" in os.environ:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
