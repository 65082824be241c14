"""An optimizer of one's own beside AdamW, and a generator of batches that can say where it is."""

import time

import torch
from shape import FEATURES, Clock, network, options


class Orthogonal(torch.optim.Optimizer):
    """Momentum, made orthogonal by a few Newton-Schulz iterations."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                update = momentum / (momentum.norm() + 1e-7)
                for _ in range(3):
                    update = 1.5 * update - 0.5 * update @ update.T @ update
                p.add_(update, alpha=-group["lr"])


def batches(delay_s: float, state: dict[str, int]):
    while True:
        time.sleep(delay_s)
        state["position"] += 8
        yield torch.randn(8, FEATURES), torch.ones(8, 1)


given = options()
model, clock, state = network(), Clock(given), {"position": 0}
matrices = [p for p in model.parameters() if p.ndim == 2]
optimizers = [Orthogonal(matrices), torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2])]
for inputs, targets in batches(given.delay_ms / 1e3, state):
    (model(inputs) - targets).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    clock.tick()
