"""What the framework jobs train on and with: data that workers really prepare, and a step whose time is steady.

Real compute of a test's size would be drowned by whatever else the cores do, so each model holds a layer that sleeps
as an accelerator would keep the host waiting; everything around it (model, gradients, optimizer, loader) is real.
"""

import io
import json
import os
import sys
import time

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset

WARMUP = 12
AHEAD = 6  # batches that may be prepared before they are trained on
WORDS = 64
SIDE = 48


class _Asleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        time.sleep(s / 3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.s / 3)
        return gradient, None


class Accelerator(nn.Module):
    """Hands its input through, and takes `s` for it: a third on the way forward, the rest on the way back."""

    def __init__(self, s: float) -> None:
        super().__init__()
        self.s = s

    def forward(self, x):
        return _Asleep.apply(x, self.s)


class Costly(Dataset):
    """Each batch takes a read of `blocked_s`; with `until`, only the first so many of a worker do."""

    def __init__(self, length: int, blocked_s: float = 0.0, until: int | None = None) -> None:
        self.length, self.blocked_s, self.until = length, blocked_s, until
        self.batches = 0

    def __len__(self) -> int:
        return self.length

    def __getitems__(self, indices):
        self.batches += 1
        if self.until is None or self.batches <= self.until:
            time.sleep(self.blocked_s)
        return [self[index] for index in indices]


class Sentences(Costly):
    """Text that a worker splits and numbers, byte by byte."""

    def __getitem__(self, index):
        text = " ".join(f"word{(index * 31 + n) % 997}" for n in range(4 * WORDS))
        numbers = [sum(word.encode()) % 255 for word in text.split()][:WORDS]
        tokens = torch.tensor(numbers)
        return {"input_ids": tokens, "labels": tokens}


class StreamedSentences(IterableDataset):
    """The same without a length."""

    def __init__(self, length: int) -> None:
        self.all = Sentences(length)

    def __iter__(self):
        return (self.all[index] for index in range(len(self.all)))


class Pictures(Costly):
    """JPEGs that a worker decodes and flips."""

    def __init__(self, length: int, blocked_s: float = 0.0, until: int | None = None) -> None:
        super().__init__(length, blocked_s, until)
        colours = np.random.default_rng(0).integers(0, 256, (16, 6, 6, 3), dtype=np.uint8)
        self.files = [_jpeg(one) for one in colours]

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        if index % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0).permute(2, 0, 1), index % 10


def _jpeg(colours) -> bytes:
    into = io.BytesIO()
    Image.fromarray(colours).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(into, "JPEG")
    return into.getvalue()


class Stopwatch:
    """The bare script's own mean step; steps with something else in between (evaluation, a checkpoint) do not count.

    With `until`, also the mean of the steps after the data ceased to be slow.
    """

    def __init__(self, until: int | None = None) -> None:
        self.until = until
        self.count = 0
        self.steps: dict[int, float] = {}
        self.last_s: float | None = None

    def step(self) -> None:
        now_s = time.perf_counter()
        if self.last_s is not None:
            self.steps[self.count] = now_s - self.last_s
        self.count += 1
        self.last_s = now_s

    def pause(self) -> None:
        self.last_s = None

    def tell(self) -> None:
        until = self.count + AHEAD if self.until is None else self.until
        slow = [s for n, s in self.steps.items() if WARMUP <= n < until - AHEAD]
        plain = [s for n, s in self.steps.items() if n >= until + WARMUP]
        if int(os.environ.get("RANK", "0")) == 0 and slow:
            found = {"step_s": sum(slow) / len(slow), "steps": len(slow)}
            found |= {"plain_s": sum(plain) / len(plain)} if plain else {}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
