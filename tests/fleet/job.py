"""A job for a fleet: whatever machines come and go, every sample of every epoch is noted once it is part of a step."""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stallwise import elastic

SAMPLES, BATCH = 240, 4


def main() -> None:
    """Train; the folder of the session and its interval come from the fleet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--notes", type=Path, required=True)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    me = elastic.join()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    data = TensorDataset(torch.arange(SAMPLES).float().unsqueeze(1))
    loader = DataLoader(data, batch_size=BATCH, sampler=elastic.Resumable(DistributedSampler(data, seed=1)))
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    with elastic.Session(model, optimizer) as session, (options.notes / str(os.getpid())).open("a") as notes:
        for epoch in session.epochs(options.epochs):
            for (numbers,) in session.steps(loader):
                time.sleep(options.pause)
                optimizer.zero_grad()
                model(numbers).sum().backward()
                optimizer.step()
                row = [session.step, epoch, *(int(number) for number in numbers.flatten())]
                notes.write(" ".join(map(str, row)) + "\n")
                notes.flush()
        if me.rank == 0:
            print(f"done after {session.step} steps")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
