"""One of several jobs of a search on a node: `sharing_job.py MODE FOLDER GROUP JOBS EPOCHS`; prints when it ran.

MODE is `apart` (a plain DataLoader with one worker) or `together` (`SharedLoader` with one worker).
"""

import io
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, RandomSampler

from stallwise.data import BucketDataset, Lookahead, SharedLoader

BATCH, SIDE = 16, 224


def decode(data: bytes, name: str) -> torch.Tensor:
    """A JPEG of about 350 × 450, a random crop of it, a random flip: what training does."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left = int(torch.randint(0, image.width - SIDE + 1, ()))
    top = int(torch.randint(0, image.height - SIDE + 1, ()))
    cut = torch.from_numpy(np.asarray(image.crop((left, top, left + SIDE, top + SIDE))).copy())
    return (cut.flip(1) if torch.rand(()) < 0.5 else cut).permute(2, 0, 1).contiguous()


def main() -> None:
    """Wait for the others, then take every batch of every epoch."""
    mode, folder, group, jobs, epochs = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    dataset: BucketDataset[torch.Tensor] = BucketDataset(
        f"file://{folder}/objects", decode, index_folder=folder / "index"
    )
    loader: Any
    if mode == "together":
        loader = SharedLoader(dataset, BATCH, group=group, jobs=jobs, staging_bytes=64 << 20, patience_s=20)
    else:
        sampler = Lookahead(RandomSampler(dataset))
        loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)
    samples = _epoch(loader)  # starts the workers, and warms the page cache
    _meet(folder / "ready", jobs)
    start_s = time.monotonic()
    samples = sum(_epoch(loader) for _ in range(epochs))
    end_s = time.monotonic()
    stat = loader.stat() if mode == "together" else {}
    _meet(folder / "done", jobs)
    print(json.dumps({"start_s": start_s, "end_s": end_s, "samples": samples, "stat": stat}))


def _epoch(loader: Iterable[torch.Tensor]) -> int:
    return sum(len(batch) for batch in loader)


def _meet(path: Path, jobs: int) -> None:
    with path.open("a") as file:
        file.write("x")
    while path.stat().st_size < jobs:
        time.sleep(0.005)


if __name__ == "__main__":
    main()
