"""FSDP2 and HSDP on two gloo processes; bare it prints its own step time, `--no-exchange` takes its traffic away."""

import argparse
import json
import os
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.utils.data import DataLoader, TensorDataset


class NoGather(AllGather):
    def allocate(self, size, *, dtype, device):
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        return None


class NoScatter(ReduceScatter):
    def allocate(self, size, *, dtype, device):
        return torch.zeros(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--no-exchange", action="store_true")
    parser.add_argument("--hsdp", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(*[nn.Sequential(nn.Linear(768, 768), nn.ReLU()) for _ in range(4)])
    shape, names = ((2, 1), ("replicate", "shard")) if options.hsdp else ((2,), ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if options.no_exchange:
        for layer in model:
            layer.set_custom_all_gather(NoGather())
            layer.set_custom_reduce_scatter(NoScatter())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = TensorDataset(torch.ones(32 * options.steps if options.steps < 10_000 else 320_000, 1).expand(-1, 768))
    times = []
    for _ in range(1 if options.steps < 10_000 else 1000):
        for (batch,) in DataLoader(data, batch_size=32):
            times.append(time.perf_counter())
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print(json.dumps({"step_s": (times[-1] - times[10]) / (len(times) - 11)}), flush=True)
    dist.barrier()
    # Taking FSDP's gloo groups down aborts one time in ten ("terminate called without an active exception").
    os._exit(0)


if __name__ == "__main__":
    main()
