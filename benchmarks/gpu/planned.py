"""Bucket plans on a real GPU with NCCL, world of one: the hook's CUDA streams and futures, and both ways' gradients.

python -m benchmarks.gpu.planned            one GPU, half a minute

One process cannot show transfers; it shows that the joined all-reduce, the copies back in its callback and DDP's
waiting are ordered right on CUDA streams: gradients must equal plain DDP's bit for bit, also while the GPU is busy.
"""

import json
import os
import sys
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stallwise.buckets import BucketPlan, GradientBucket, applied_plan, planned_ddp
from stallwise.buckets._ddp import has_limits

STEPS, WIDTH, DEPTH = 12, 2048, 12


def network() -> nn.Module:
    """Twelve layers, the same every time."""
    torch.manual_seed(7)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers).cuda()


def plan_of(model: nn.Module, cuts: list[int]) -> BucketPlan:
    """Parameters in ready order, cut at `cuts`."""
    ready = list(model.named_parameters())[::-1]
    runs = [ready[a:b] for a, b in zip([0, *cuts], [*cuts, len(ready)], strict=True)]
    return BucketPlan(
        source="h200",
        gpus=1,
        buckets=tuple(
            GradientBucket(parameters=tuple(n for n, _ in run), bytes=sum(p.numel() * p.element_size() for _, p in run))
            for run in runs
        ),
    )


def gradients(model: nn.Module, *, busy: bool) -> tuple[list[list[torch.Tensor]], float]:
    """Of every step, and the mean step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    side = torch.cuda.Stream()
    found, begin = [], 0.0
    for step in range(STEPS):
        if step == 2:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        torch.manual_seed(step)
        optimizer.zero_grad()
        if busy:  # kernels run late and out of step with the host, so that a missing wait would show
            torch.cuda._sleep(20_000_000)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
        model(torch.randn(256, WIDTH, device="cuda")).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    torch.cuda.synchronize()
    return found, (time.perf_counter() - begin) / (STEPS - 2)


def main() -> None:
    """Both ways beside plain DDP, calm and busy."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}
    torch.backends.cuda.matmul.allow_tf32 = False
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    said: dict[str, object] = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "limits": has_limits()}
    worst_ok = True
    for busy in (False, True):
        plain, plain_s = gradients(DistributedDataParallel(network(), device_ids=[0]), busy=busy)
        again, _ = gradients(DistributedDataParallel(network(), device_ids=[0]), busy=busy)
        said[f"plain again, busy={busy}"] = all(
            torch.equal(a, b) for x, y in zip(plain, again, strict=True) for a, b in zip(x, y, strict=True)
        )
        for way in ("limits", "hook") if has_limits() else ("hook",):
            net = network()
            model = planned_ddp(net, plan_of(net, [2, 5, 11, 20]), way=way, device_ids=[0])
            seen, step_s = gradients(model, busy=busy)
            exact = all(torch.equal(a, b) for x, y in zip(plain, seen, strict=True) for a, b in zip(x, y, strict=True))
            done = applied_plan(model)
            said[f"{way}, busy={busy}"] = {
                "exact": exact, "as_planned": done.as_planned, "buckets": len(done.real_bytes or ()),
                "step_ms": round(1e3 * step_s, 3), "plain_step_ms": round(1e3 * plain_s, 3),
            }  # fmt: skip
            worst_ok &= exact and bool(done.as_planned)
    print(json.dumps(said, indent=1))
    dist.destroy_process_group()
    sys.exit(0 if worst_ok else 1)


if __name__ == "__main__":
    main()
