"""A data problem on purpose: large photographs are decoded and scaled down for every sample, with no loader worker.

python examples/slow_data.py
python examples/slow_data.py --workers 2 --draft    # without the problem
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from images import make_images
from networks import small_resnet
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class LargePhotographs(Dataset):
    """Decodes a whole photograph only to keep a thumbnail of it."""

    def __init__(self, folder: Path, size: int, draft: bool) -> None:
        self.files = sorted(folder.glob("*.jpg"))
        self.size = size
        self.draft = draft

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.files[index]
        image = Image.open(path)
        if self.draft:
            image.draft(
                "RGB", (2 * self.size, 2 * self.size)
            )  # the decoder leaves out what the thumbnail does not need
        image = image.convert("RGB").resize((self.size, self.size), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255.0).permute(2, 0, 1)
        return pixels.contiguous(), int(path.stem.split("-")[1])


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("build/demo-photographs"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--draft", action="store_true", help="decode the photographs at a reduced size")
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    make_images(options.data, 256, side=1024)
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = LargePhotographs(options.data, 64, options.draft)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=options.workers, drop_last=True)
    model = small_resnet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(options.epochs):
        for images, labels in loader:
            loss = loss_of(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
