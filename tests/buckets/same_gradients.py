"""A small network on every rank: plain DDP's gradients beside those with a bucket plan, step by step."""

import json
import os
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.buckets import BucketPlan, GradientBucket, applied_plan, planned_ddp

STEPS = 4


def network(mixed: bool) -> nn.Module:
    torch.manual_seed(7)
    net = nn.Sequential(
        nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 200), nn.LayerNorm(200), nn.ReLU(), nn.Linear(200, 5)
    )
    net[0].bias.requires_grad_(False)
    if mixed:
        net[5].double()
    return net


class Mixed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, layer in enumerate(self.inner):
            x = layer(x.double() if place == 5 else x)
        return x


def plan_of(model: nn.Module, cuts: list[int]) -> BucketPlan:
    """Trained parameters in the order they become ready, cut after so many."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    ready = trained[::-1]
    runs = [ready[first:last] for first, last in zip([0, *cuts], [*cuts, len(ready)], strict=True)]
    return BucketPlan(
        source="a test",
        gpus=dist.get_world_size(),
        buckets=tuple(
            GradientBucket(parameters=tuple(n for n, _ in run), bytes=sum(p.numel() * p.element_size() for _, p in run))
            for run in runs
        ),
    )


def gradients(model: DistributedDataParallel) -> list[list[torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for step in range(STEPS):
        torch.manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        model(torch.randn(16, 40)).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    return found


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    said = {}
    for mixed in (False, True):
        made = (lambda: Mixed(network(True))) if mixed else (lambda: network(False))
        plain = gradients(DistributedDataParallel(made()))
        for way in ("hook",) if mixed else ("limits", "hook"):
            net = made()
            model = planned_ddp(net, plan_of(net, [2, 4]), way=way)
            before = applied_plan(model).as_planned
            seen = gradients(model)
            pairs = [pair for x, y in zip(plain, seen, strict=True) for pair in zip(x, y, strict=True)]
            worst = max(float((a - b).abs().max()) for a, b in pairs)
            assert all(torch.isfinite(a).all() for a, _ in pairs)
            exact = all(torch.equal(a, b) for a, b in pairs)
            after = applied_plan(model)
            said[f"{way}{' mixed' if mixed else ''}"] = {
                "exact": exact, "worst": worst, "before": before,
                "as_planned": after.as_planned, "buckets": len(after.real_bytes or ()),
            }  # fmt: skip
    if os.environ["RANK"] == "0":
        json.dump(said, sys.stdout)
    sys.stdout.flush()
    dist.barrier()
    # Taking gloo down while the other rank still answers aborts now and then.
    os._exit(0)


if __name__ == "__main__":
    main()
