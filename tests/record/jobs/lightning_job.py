"""A small image classifier under Lightning, with validation, logging and checkpoints on the way."""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from material import Accelerator, Pictures, Stopwatch
from torch import nn
from torch.utils.data import DataLoader


class Classifier(lightning.LightningModule):
    def __init__(self, compute_s: float) -> None:
        super().__init__()
        features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.net = nn.Sequential(features, nn.Flatten(), Accelerator(compute_s), nn.Linear(8, 10))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        self.log("held_out", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 50), "interval": "step"},
        }


class Clocked(lightning.Callback):
    def __init__(self, until: int | None) -> None:
        self.watch = Stopwatch(until)

    def on_train_batch_end(self, trainer, *args):
        if (args[-1] + 1) % trainer.accumulate_grad_batches == 0:
            self.watch.step()

    def on_validation_end(self, *args):
        self.watch.pause()

    def on_train_epoch_end(self, *args):
        self.watch.pause()


def callbacks(name: str | None) -> list[lightning.Callback]:
    """Run with `--callback`, the script profiles itself."""
    if name is None:
        return []
    import stallwise

    return [stallwise.LightningCallback("run", full=name == "full", max_time_s=1.0)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--epoch", type=int, default=120, help="batches in an epoch")
    parser.add_argument("--every", type=int, default=50, help="validate after so many batches, and save")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--blocked", type=float, default=0.0)
    parser.add_argument("--until", type=int, help="only the first so many batches are blocked")
    parser.add_argument("--compute", type=float, default=0.02)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--callback", choices=["light", "full"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    lightning.seed_everything(0)
    clock = Clocked(options.until)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        val_check_interval=options.every,
        callbacks=[clock, ModelCheckpoint(dirpath="model", save_last=True), *callbacks(options.callback)],
        logger=CSVLogger("logs"),
        log_every_n_steps=10,
    )
    data = Pictures(8 * options.epoch * options.devices, options.blocked, options.until)
    train = DataLoader(data, batch_size=8, shuffle=True, num_workers=options.workers)
    trainer.fit(Classifier(options.compute), train, DataLoader(Pictures(16), batch_size=8))
    clock.watch.tell()
    trainer.save_checkpoint("final.ckpt")


if __name__ == "__main__":
    main()
