"""Ways of training that a profile does not take apart: tensor parallelism, FSDP1, a pipeline; on two gloo processes."""

import argparse

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, TensorDataset


def tensor_parallel() -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    return parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def fsdp1() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))


def pipeline() -> nn.Module:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank = dist.get_rank()
    model = nn.Linear(64, 64)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    model.schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=lambda out, target: out.square().mean())
    return model


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("tensor", "fsdp1", "pipeline"))
    how = parser.parse_args().how
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = {"tensor": tensor_parallel, "fsdp1": fsdp1, "pipeline": pipeline}[how]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(1000):
        for (batch,) in DataLoader(TensorDataset(torch.ones(320, 64)), batch_size=8):
            if how == "pipeline":
                if dist.get_rank() == 0:
                    model.schedule.step(batch)
                else:
                    model.schedule.step(target=batch)
            else:
                model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
