"""Image classification under Lightning, on the JPEGs of images.py; with `--devices 2` Lightning starts two processes.

python examples/lightning_images.py --data build/demo-images
"""

import argparse
from pathlib import Path

import lightning
import torch
from images import JpegFolder, make_images
from networks import small_resnet
from torch import nn
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_resnet()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        """The loss of one batch."""
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain stochastic gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    make_images(options.data, 2048)
    loader = DataLoader(JpegFolder(options.data, 128), batch_size=16, shuffle=True, num_workers=options.workers)
    trainer = lightning.Trainer(devices=options.devices, max_epochs=20, logger=False, default_root_dir="build")
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
