"""The shape of a small GPT trained on a memory-mapped file of tokens: no DataLoader, batches cut out by hand."""

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.first(x)).split(c, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    def __init__(self, vocabulary: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device)))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--data-ms", type=float, default=0.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bare", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = Path(tempfile.mkdtemp()) / "train.bin"
    np.random.default_rng(0).integers(0, 512, 1 << 18).astype(np.uint16).tofile(path)

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        places = torch.randint(len(data) - options.length - 1, (options.batch,)).tolist()
        x = torch.stack([torch.from_numpy(data[i : i + options.length].astype(np.int64)) for i in places])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + options.length].astype(np.int64)) for i in places])
        if options.data_ms:
            time.sleep(options.data_ms / 1e3)
        if device == "cuda":
            return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
        return x, y

    model = Model(512, options.length, options.width, options.layers).to(device)
    trained = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = get_batch()
    began, count = time.perf_counter(), 0
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (0.1 + 0.9 * math.exp(-step / 1000))
        loss = trained(x, y)
        x, y = get_batch()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 10:
            began, count = time.perf_counter(), 0
        count += 1
        if options.bare and step > 10 and time.perf_counter() - began > options.bare:
            break
    if device == "cuda":
        torch.cuda.synchronize()
    if options.bare:
        print(f"bare {1e3 * (time.perf_counter() - began) / count:.4f} steps {count}")
    path.unlink()
    path.parent.rmdir()


if __name__ == "__main__":
    main()
