"""Standard networks with a loader that really decodes or tokenises, in bf16; prints its own speed as JSON."""

import argparse
import io
import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = {"resnet50": 128, "vgg16": 64, "vit_b_16": 128, "gpt2": 16}
WARMUP = 15


class Photographs(Dataset):
    """JPEGs of ImageNet's usual size, decoded, cropped at random and scaled to 224 pixels for every sample."""

    def __init__(self, folder: Path, count: int = 1024, length: int = 10_000_000) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        for number in range(len(list(folder.glob("*.jpg"))), count):
            coarse = Image.fromarray(generator.integers(0, 256, (60, 80, 3), dtype=np.uint8))
            image = coarse.resize((500, 375), Image.Resampling.BICUBIC)
            noise = generator.normal(0, 12, (375, 500, 3))
            pixels = np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:06d}.jpg", quality=92)
        self.files = sorted(folder.glob("*.jpg"))
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = self.files[index % len(self.files)].read_bytes()
        image = Image.open(io.BytesIO(data)).convert("RGB")
        side = random.randint(160, 375)
        left, top = random.randint(0, 500 - side), random.randint(0, 375 - side)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), index % 1000


class Text(Dataset):
    """Source text, tokenised for every sample by a byte-pair tokenizer trained on it at the start."""

    def __init__(self, context: int = 1024, length: int = 10_000_000) -> None:
        import os

        from tokenizers import ByteLevelBPETokenizer

        sources = sorted(Path(os.__file__).parent.glob("*.py"))
        self.text = "".join(path.read_text(errors="ignore") for path in sources)
        self.tokenizer = ByteLevelBPETokenizer()
        self.tokenizer.train_from_iterator([self.text[:2_000_000]], vocab_size=8192, show_progress=False)
        self.context, self.length = context, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = random.randrange(len(self.text) - 8 * self.context)
        ids = self.tokenizer.encode(self.text[start : start + 8 * self.context]).ids[: self.context]
        return torch.tensor(ids + [0] * (self.context - len(ids)))


def network(name: str) -> nn.Module:
    """The network, with random weights."""
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        return GPT2LMHeadModel(GPT2Config(vocab_size=8192))
    import torchvision

    return getattr(torchvision.models, name)(weights=None)


def slow_down(model: nn.Module, layer: str, cycles: int) -> None:
    """Let one layer keep the GPU busy for so many cycles more on its way forward."""
    module = model.get_submodule(layer)
    compute = module.forward

    def forward(*args: object, **kwargs: object) -> object:
        torch.cuda._sleep(cycles)
        return compute(*args, **kwargs)

    module.forward = forward


def main() -> None:
    """Train for a number of seconds, then print the speed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=BATCH, default="resnet50")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--slow-layer", default="")
    parser.add_argument("--data", type=Path, default=Path("build/photographs"))
    options = parser.parse_args()
    language = options.model == "gpt2"
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    dataset: Dataset = Text() if language else Photographs(options.data)
    loader = DataLoader(dataset, BATCH[options.model], num_workers=options.workers, pin_memory=True, drop_last=True)
    model = network(options.model).to(device)
    if not language:
        model = model.to(memory_format=torch.channels_last)
    if options.slow_layer:
        slow_down(model, options.slow_layer, 40_000_000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    began, steps = 0.0, 0
    for number, batch in enumerate(loader):
        if number == WARMUP + 2 * options.workers:
            torch.cuda.synchronize()
            began, steps = time.perf_counter(), 0
        with torch.autocast("cuda", torch.bfloat16):
            if language:
                tokens = batch.to(device, non_blocking=True)
                loss = model(tokens, labels=tokens).loss
            else:
                images = batch[0].to(device, non_blocking=True, memory_format=torch.channels_last).float().div(255)
                loss = loss_of(model(images), batch[1].to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        # Whole rounds of the workers, so that no burst is cut.
        if began and time.perf_counter() - began >= options.seconds and steps % max(1, options.workers) == 0:
            break
    torch.cuda.synchronize()
    speed = steps * BATCH[options.model] / (time.perf_counter() - began)
    print(json.dumps({"samples_per_s": speed}), flush=True)


if __name__ == "__main__":
    main()
