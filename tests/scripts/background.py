"""A thread reads batches ahead and hands them over in a queue."""

import queue
import threading
import time

import torch
from shape import FEATURES, Clock, network, options

given = options()
model, clock = network(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ready: queue.Queue = queue.Queue(maxsize=2)


def read_ahead() -> None:
    while True:
        time.sleep(given.delay_ms / 1e3)
        ready.put((torch.ones(8, FEATURES), torch.ones(8, 1)))


threading.Thread(target=read_ahead, daemon=True).start()
while True:
    inputs, targets = ready.get()
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.tick()
