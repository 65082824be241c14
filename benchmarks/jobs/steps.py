"""A plain training loop with short steps, which times itself: what watching costs shows here most.

Prints one JSON line: mean seconds and processor seconds (children included) of a step, warm-up left out.
"""

import argparse
import contextlib
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 200


def processor_s() -> float:
    """Processor time of this process and of the loader workers it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--traceml", action="store_true", help="mark steps the way TraceML asks for")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    samples = 64 * options.steps
    data = TensorDataset(torch.randn(1024, 256).repeat(samples // 1024 + 1, 1)[:samples], torch.zeros(samples).long())
    loader = DataLoader(data, batch_size=64, num_workers=1)
    around = contextlib.nullcontext
    if options.traceml:
        import traceml_ai

        around = traceml_ai.trace_step
    marks = []
    for inputs, targets in loader:
        marks.append((time.perf_counter(), processor_s()))
        with around(model):
            optimizer.zero_grad()
            loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
    steps = len(marks) - 1 - WARMUP
    wall, used = (marks[-1][i] - marks[WARMUP][i] for i in (0, 1))
    print(json.dumps({"step_s": wall / steps, "processor_s": used / steps}), flush=True)


if __name__ == "__main__":
    main()
