"""An optimizer that evaluates a closure several times a step, over one fixed batch made anew by a function."""

import time

import torch
from shape import FEATURES, Clock, network, options


def sample_points(delay_s: float) -> torch.Tensor:
    time.sleep(delay_s)
    return torch.linspace(0, 1, 8)[:, None].expand(8, FEATURES)


given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=2, history_size=4)
while True:
    points = sample_points(given.delay_ms / 1e3)

    def closure(points=points):
        optimizer.zero_grad()
        loss = (model(points) - 1).square().mean() + 1e-3 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    clock.tick()
