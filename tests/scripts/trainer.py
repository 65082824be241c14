"""A trainer class with callbacks and gradient accumulation, dictionaries as batches; a callback takes time."""

import time

import torch
from shape import Clock, Slow, network, options
from torch.utils.data import DataLoader


class Logger:
    """Writes metrics after every step, slowly."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_s, self.history = delay_ms / 1e3, []

    def on_step_end(self, step: int, loss: float) -> None:
        self.history.append((step, loss))
        time.sleep(self.delay_s)


class Trainer:
    def __init__(self, model, loader, callbacks, accumulation: int = 2) -> None:
        self.model, self.loader, self.callbacks, self.accumulation = model, loader, callbacks, accumulation
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step / 1e4))

    def compute_loss(self, batch):
        return (self.model(batch["inputs"]) - batch["labels"]).square().mean()

    def train(self, clock: Clock) -> None:
        step = 0
        while True:
            for number, batch in enumerate(self.loader):
                loss = self.compute_loss(batch) / self.accumulation
                loss.backward()
                if (number + 1) % self.accumulation:
                    continue
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
                step += 1
                for callback in self.callbacks:
                    callback.on_step_end(step, loss.item())
                clock.tick()


def as_dictionary(samples):
    inputs, labels = zip(*samples, strict=True)
    return {"inputs": torch.stack(inputs), "labels": torch.stack(labels)}


given = options()
batches = DataLoader(Slow(0.0), batch_size=8, collate_fn=as_dictionary)
Trainer(network(), batches, [Logger(given.delay_ms)]).train(Clock(given))
