"""Started in a working folder of its own by a configuration of files and overrides, as configuration frameworks do."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from shape import FEATURES, Clock, network, options

DEFAULTS = {"model": {"outputs": 1}, "optimizer": {"name": "AdamW", "lr": 1e-3}, "data": {"size": 8}}


def main(config: SimpleNamespace, given) -> None:
    folder = Path("outputs") / time.strftime("%Y-%m-%d") / str(os.getpid())
    folder.mkdir(parents=True)
    os.chdir(folder)
    Path("config.json").write_text(json.dumps(DEFAULTS))
    model, clock = network(config.model["outputs"]), Clock(given)
    optimizer = getattr(torch.optim, config.optimizer["name"])(model.parameters(), lr=config.optimizer["lr"])
    while True:
        inputs = make_batch(config.data["size"], given.delay_ms / 1e3)
        optimizer.zero_grad()
        (model(inputs) - 1).square().mean().backward()
        optimizer.step()
        clock.tick()


def make_batch(size: int, delay_s: float) -> torch.Tensor:
    time.sleep(delay_s)
    return torch.randn(size, FEATURES)


if __name__ == "__main__":
    main(SimpleNamespace(**DEFAULTS), options())
