"""Autocast, a gradient scaler, accumulation, clipping, a schedule by step and averaged weights, as image recipes do."""

import torch
from shape import Clock, Slow, network, options
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

ACCUMULATED = 2
given = options()
model, clock = network(), Clock(given)
averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=10_000_000)
scaler = torch.amp.GradScaler("cpu", enabled=True)
while True:
    for number, (inputs, targets) in enumerate(DataLoader(Slow(given.delay_ms / ACCUMULATED), batch_size=8)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.mse_loss(model(inputs), targets) / ACCUMULATED
        scaler.scale(loss).backward()
        if (number + 1) % ACCUMULATED == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            averaged.update_parameters(model)
            schedule.step()
            clock.tick()
