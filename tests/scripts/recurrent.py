"""A recurrent network over slices of one long text, its state carried from slice to slice, gradients clipped."""

import time

import torch
from shape import Clock, options
from torch import nn

LENGTH, BATCH, WORDS = 16, 8, 50


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(WORDS, 16), nn.GRU(16, 16), nn.Linear(16, WORDS)

    def forward(self, words, state):
        hidden, state = self.rnn(self.embed(words), state)
        return self.out(hidden), state


def get_batch(text: torch.Tensor, begin: int, delay_s: float) -> tuple[torch.Tensor, torch.Tensor]:
    time.sleep(delay_s)
    return text[begin : begin + LENGTH], text[begin + 1 : begin + 1 + LENGTH].reshape(-1)


given = options()
text = torch.randint(0, WORDS, (4001, BATCH))
model, clock = Language(), Clock(given)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
while True:
    state = torch.zeros(1, BATCH, 16)
    for begin in range(0, len(text) - 1 - LENGTH, LENGTH):
        words, targets = get_batch(text, begin, given.delay_ms / 1e3)
        optimizer.zero_grad()
        scores, state = model(words, state.detach())
        nn.functional.cross_entropy(scores.reshape(-1, WORDS), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        clock.tick()
