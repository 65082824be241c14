"""Policy gradient: act in an environment for some moves, then learn from what was collected."""

import time

import torch
from shape import FEATURES, Clock, network, options

MOVES = 8


class Environment:
    """The state decays and follows the action; a move takes a while."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_s, self.state = delay_ms / 1e3 / MOVES, torch.zeros(FEATURES)

    def step(self, action: int) -> tuple[torch.Tensor, float]:
        time.sleep(self.delay_s)
        self.state = 0.9 * self.state + action
        return self.state, float(self.state[0])


given = options()
policy, clock, env = network(2), Clock(given), Environment(given.delay_ms)
optimizer = torch.optim.Adam(policy.parameters())
observation = env.state
while True:
    observations, actions, rewards = [], [], []
    for _ in range(MOVES):
        with torch.no_grad():
            action = int(torch.distributions.Categorical(logits=policy(observation)).sample())
        observations.append(observation)
        observation, reward = env.step(action)
        actions.append(action)
        rewards.append(reward)
    logits = policy(torch.stack(observations)).log_softmax(-1)
    chosen = logits[torch.arange(MOVES), torch.tensor(actions)]
    loss = -(chosen * torch.tensor(rewards)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.tick()
