"""Two pipeline stages that take turns: forward passes of all micro-batches, then backward passes (GPipe).

Each stage takes FORWARD_S and BACKWARD_S a micro-batch, by sleeping. With m micro-batches a step takes (m + 1) times
their sum, and each rank waits their sum once: the bubble.

pipelined.py FORWARD_S BACKWARD_S MICRO_BATCHES [batched]
"""

import os
import sys
import time

import torch
from torch import distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FORWARD_S, BACKWARD_S, MICRO = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
BATCHED = sys.argv[4:] == ["batched"]


def pass_on(tensor: torch.Tensor, *, to: int | None = None) -> None:
    """Send the tensor to a rank, or receive it from the other."""
    peer = 1 - dist.get_rank()
    if BATCHED:
        operation = dist.P2POp(dist.irecv if to is None else dist.isend, tensor, peer)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()
    elif to is None:
        dist.recv(tensor, peer)
    else:
        dist.send(tensor, to)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    stage = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-6)
    for (batch,) in DataLoader(TensorDataset(torch.ones(100_000, 1).expand(-1, 64)), batch_size=MICRO):
        outputs, inputs = [], []
        for micro in batch.split(1):
            x = micro.clone() if first else torch.empty(1, 64)
            if not first:
                pass_on(x)
            x.requires_grad_()
            time.sleep(FORWARD_S)
            outputs.append(stage(x))
            inputs.append(x)
            if first:
                pass_on(outputs[-1].detach(), to=1)
        for x, y in zip(inputs, outputs, strict=True):
            gradient = torch.ones(1, 64)
            if first:
                pass_on(gradient)
            time.sleep(BACKWARD_S)
            y.backward(gradient)
            if not first:
                pass_on(x.grad, to=0)
        optimizer.step()
        optimizer.zero_grad()
    os._exit(0)


if __name__ == "__main__":
    main()
