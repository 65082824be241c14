"""Random augmentation that a restart does not change: drawn from (seed, epoch, index), whichever worker does it."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class Augmented(Dataset[Any]):
    """`transform(sample)` over a map-style dataset, with torch's, NumPy's and Python's random state set for each.

    The state around it is left as it was. A session calls `set_epoch`; without one, do so before each epoch.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any], seed: int = 0) -> None:
        self.dataset, self._transform, self._seed = dataset, transform, seed
        # Shared, so that loader workers which live on see the next epoch.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Which epoch the next samples are of."""
        self._epoch[0] = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        kept, kept_numpy = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=[]):
            drawn = seed_of(self._seed, int(self._epoch[0]), index)
            torch.manual_seed(drawn)
            random.seed(drawn)
            np.random.seed([drawn & 0xFFFFFFFF, drawn >> 32])
            try:
                return self._transform(sample)
            finally:
                random.setstate(kept)
                np.random.set_state(kept_numpy)


def seed_of(seed: int, epoch: int, index: int) -> int:
    """63 bits that differ wherever one of the three does (splitmix64's mixing)."""
    mixed = 0
    for value in (seed, epoch, index):
        mixed = (mixed + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed >> 1
