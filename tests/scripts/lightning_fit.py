"""A LightningModule fitted by Lightning's Trainer; its data set takes time."""

import lightning
import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.net, self.clock = network(), clock

    def training_step(self, batch, number):
        inputs, targets = batch
        return (self.net(inputs) - targets).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_batch_end(self, *rest: object) -> None:
        self.clock.tick()


given = options()
trainer = lightning.Trainer(
    accelerator="auto", devices=1, max_steps=10_000_000, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Regression(Clock(given)), DataLoader(Slow(given.delay_ms), batch_size=8))
