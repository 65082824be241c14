"""What the scripts of this folder share: their options, a small network, a data set that takes time, a bare clock."""

import argparse
import sys
import time

import torch
from torch import nn
from torch.utils.data import Dataset

FEATURES = 32


def options() -> argparse.Namespace:
    """`--delay-ms` is what the script injects, `--bare S` trains for S seconds and prints the mean step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--bare", type=float, default=0.0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return parser.parse_args()


def network(outputs: int = 1) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, outputs))


class Slow(Dataset):
    """Samples of which a batch of eight takes `delay_ms` to make."""

    def __init__(self, delay_ms: float, length: int = 4096) -> None:
        self.delay_s, self.length = delay_ms / 8e3, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.delay_s:
            time.sleep(self.delay_s)
        return torch.ones(FEATURES) * (index % 7), torch.ones(1)


class Clock:
    """Counts the steps of a bare run and ends it; under a profile it does nothing."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.seconds, self.steps, self.count, self.began = given.bare, given.steps, -10, 0.0

    def tick(self) -> None:
        """End of a step."""
        self.count += 1
        now = time.perf_counter()
        if self.count == 0:
            self.began = now
        if self.seconds and self.count > 0 and now - self.began > self.seconds:
            print(f"bare {1e3 * (now - self.began) / self.count:.4f} steps {self.count}")
            sys.exit(0)
        if self.count + 10 >= self.steps:
            sys.exit(0)
