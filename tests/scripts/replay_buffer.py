"""Off-policy reinforcement learning: an environment is stepped, transitions are kept, batches drawn from them."""

import collections
import random
import time

import torch
from shape import FEATURES, Clock, network, options
from torch import nn

given = options()
online, target, clock = network(4), network(4), Clock(given)
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters())
memory = collections.deque(maxlen=5000)


class Environment:
    """A chain that is slow to step."""

    def step(self, action: int) -> tuple[torch.Tensor, float]:
        time.sleep(given.delay_ms / 1e3)
        return torch.full((FEATURES,), float(action)), float(action == 2)


environment, observed, count = Environment(), torch.zeros(FEATURES), 0
while True:
    count += 1
    with torch.no_grad():
        action = random.randrange(4) if random.random() < 0.1 else int(online(observed).argmax())
    following, reward = environment.step(action)
    memory.append((observed, action, reward, following))
    observed = following
    if len(memory) < 8:
        continue
    before, actions, rewards, after = zip(*random.sample(memory, 8), strict=True)
    with torch.no_grad():
        best = torch.tensor(rewards) + 0.9 * target(torch.stack(after)).max(1).values
    values = online(torch.stack(before)).gather(1, torch.tensor(actions)[:, None])[:, 0]
    optimizer.zero_grad()
    nn.functional.smooth_l1_loss(values, best).backward()
    optimizer.step()
    if count % 100 == 0:
        target.load_state_dict(online.state_dict())
    clock.tick()
