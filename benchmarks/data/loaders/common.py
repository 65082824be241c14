"""What the loaders share: a shuffled DataLoader over a map dataset, and what a worker does with a sample's bytes."""

import io
from typing import Any

from benchmarks.data.spec import Spec, read_mark

READ_TIMEOUT_S = 20


def kept(data: bytes, decode: str) -> tuple[int, int]:
    """Decode where asked to, drop the pixels, and let number and length go on."""
    if decode == "jpeg":
        from PIL import Image

        Image.open(io.BytesIO(data)).convert("RGB").load()
    return read_mark(data)


def as_list(batch: list[Any]) -> list[Any]:
    """No tensors: what is measured is reading."""
    return batch


def shuffled(dataset: Any, spec: Spec, **options: Any) -> Any:
    """A plain DataLoader in random order; workers live through all epochs."""
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    sampler = RandomSampler(dataset, num_samples=spec.samples, generator=torch.Generator().manual_seed(spec.seed))
    settings = {"batch_size": spec.batch, "num_workers": spec.workers, "collate_fn": as_list, "sampler": sampler}
    if spec.prefetch is not None and spec.workers:
        settings["prefetch_factor"] = spec.prefetch
    return DataLoader(dataset, persistent_workers=spec.workers > 0, **{**settings, **options})
