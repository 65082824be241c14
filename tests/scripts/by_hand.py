"""Weights updated by hand, without an optimizer, as the language-model example does it; data cut from one tensor."""

import time

import torch
from shape import FEATURES, Clock, network, options

given = options()
model, clock = network(), Clock(given)
data = torch.randn(512, FEATURES)


def get_batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    time.sleep(given.delay_ms / 1e3)
    rows = data[8 * number % 504 : 8 * number % 504 + 8]
    return rows, rows.sum(1, keepdim=True)


number = 0
while True:
    inputs, targets = get_batch(number)
    model.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.001)
    number += 1
    clock.tick()
