"""Generator and discriminator, each with its optimizer, from one loader."""

import torch
from shape import FEATURES, Clock, Slow, network, options
from torch import nn
from torch.utils.data import DataLoader

given = options()
generator, critic, clock = network(FEATURES), network(), Clock(given)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-4)
score = nn.BCEWithLogitsLoss()
while True:
    for real, ones in DataLoader(Slow(given.delay_ms), batch_size=8):
        fake = generator(torch.randn(len(real), FEATURES))
        of_critic.zero_grad()
        (score(critic(real), ones) + score(critic(fake.detach()), 0 * ones)).backward()
        of_critic.step()
        of_generator.zero_grad()
        score(critic(fake), ones).backward()
        of_generator.step()
        clock.tick()
